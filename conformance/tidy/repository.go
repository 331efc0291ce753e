package tidy

import (
	"bytes"
	"fmt"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// topLevel lists what may stand at the root. The folders are the architecture's first page: another one is a decision.
var topLevel = []string{
	"core", "policies", "federation", "hostmanagers", "sdk", "cmd", "examples", "conformance", "docs", "deploy",
	"Makefile", "LICENSE", "go.mod", "go.sum",
}

// topLevelPatterns admit root files by form.
var topLevelPatterns = []string{"*.md", "buf*.yaml", "buf.lock", ".*"}

// binaryNames are the forms of binary files that may be committed, as test data or pictures.
var binaryNames = []string{"*.gz", "*.zst", "*.png", "*.ico", "*.wasm", "*.woff2", "*.binpb", "*.decisions"}

// foreignPhrases must not appear: the repository stands alone and is finished. The patterns do not match themselves.
var foreignPhrases = []struct {
	pattern *regexp.Regexp
	why     string
}{
	{regexp.MustCompile(`/work/[(]?(main|shared)|/tmp/[(]?task\d`), "a path of one machine"},
	{regexp.MustCompile(`\b(TO[D]O|FIX[M]E|X[X]X|not [i]mplemented)\b`), "unfinished: finish it, or leave it out"},
}

// proseExtensions are the files that are read for foreignPhrases.
var proseExtensions = []string{".go", ".proto", ".md", ".yaml", ".yml", ".sh", ".txtar", ".html", ".css", ".js", ".ts", ""}

// CheckTopLevel guards the root folder.
func CheckTopLevel(t *Tree) []Finding {
	var found []Finding
	reported := map[string]bool{}
	for _, p := range t.paths {
		top, _, nested := strings.Cut(p, "/")
		if reported[top] || slices.Contains(topLevel, top) || matchesAny(top, topLevelPatterns) && (!nested || strings.HasPrefix(top, ".")) {
			continue
		}
		reported[top] = true
		found = append(found, Finding{Path: top, Text: "is new at the root: find its place below " + strings.Join(topLevel[:10], ", ")})
	}
	return found
}

// CheckContents finds binaries, large files and foreign phrases.
func CheckContents(t *Tree) []Finding {
	var found []Finding
	for _, p := range t.paths {
		content := t.files[p]
		if len(content) > maxFileBytes {
			found = append(found, Finding{Path: p, Text: fmt.Sprintf("is over %d bytes: fetch or generate it instead", maxFileBytes)})
			continue
		}
		if bytes.IndexByte(content, 0) >= 0 {
			if !matchesAny(path.Base(p), binaryNames) {
				found = append(found, Finding{Path: p, Text: "is binary: build products are not committed"})
			}
			continue
		}
		if !slices.Contains(proseExtensions, path.Ext(p)) || t.isGenerated(p) {
			continue
		}
		for _, f := range foreignPhrases {
			if at := f.pattern.FindIndex(content); at != nil {
				line := 1 + bytes.Count(content[:at[0]], []byte("\n"))
				found = append(found, Finding{p, line, fmt.Sprintf("contains %q: %s", content[at[0]:at[1]], f.why)})
			}
		}
	}
	return found
}

// isGenerated reports whether p is a generated Go file, whose words are its generator's.
func (t *Tree) isGenerated(p string) bool {
	return slices.ContainsFunc(t.gos, func(f *goFile) bool { return f.path == p && f.generated })
}

func matchesAny(name string, patterns []string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		ok, err := path.Match(pattern, name)
		return ok && err == nil
	})
}

var (
	linkPattern    = regexp.MustCompile(`\]\(([^()\s]+(?:\([^()\s]*\))?)(?:\s+"[^"]*")?\)`)
	headingPattern = regexp.MustCompile(`^#{1,6}\s+(.*?)\s*#*\s*$`)
	inlineCode     = regexp.MustCompile("`[^`]*`")
)

// CheckLinks resolves the relative links of every Markdown file, fragments included. Links to other sites are not followed.
func CheckLinks(t *Tree) []Finding {
	var found []Finding
	for _, p := range t.paths {
		if path.Ext(p) != ".md" {
			continue
		}
		for i, line := range proseLines(t.files[p]) {
			for _, match := range linkPattern.FindAllStringSubmatch(inlineCode.ReplaceAllString(line, ""), -1) {
				if text := t.checkLink(p, match[1]); text != "" {
					found = append(found, Finding{p, i + 1, text})
				}
			}
		}
	}
	return found
}

func (t *Tree) checkLink(from, link string) string {
	u, err := url.Parse(link)
	if err != nil {
		return fmt.Sprintf("link %s: %v", link, err)
	}
	if u.Scheme != "" || u.Host != "" {
		return ""
	}
	target := from
	if u.Path != "" {
		target = path.Join(path.Dir(from), u.Path)
	}
	if _, ok := t.files[target]; !ok && !t.isFolder(target) {
		return fmt.Sprintf("link %s leads nowhere: there is no %s", link, target)
	}
	if u.Fragment != "" && path.Ext(target) == ".md" && !slices.Contains(anchors(t.files[target]), u.Fragment) {
		return fmt.Sprintf("link %s: %s has no heading #%s", link, target, u.Fragment)
	}
	return ""
}

func (t *Tree) isFolder(name string) bool {
	return name == "." || slices.ContainsFunc(t.paths, func(p string) bool { return strings.HasPrefix(p, name+"/") })
}

// proseLines returns the lines with fenced code blanked.
func proseLines(content []byte) []string {
	lines := strings.Split(string(content), "\n")
	fenced := false
	for i, line := range lines {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
			lines[i] = ""
		} else if fenced {
			lines[i] = ""
		}
	}
	return lines
}

// anchors returns the fragment names of a Markdown file's headings, as GitHub makes them.
func anchors(content []byte) []string {
	var all []string
	seen := map[string]int{}
	for _, line := range proseLines(content) {
		m := headingPattern.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		name := strings.Map(func(r rune) rune {
			switch {
			case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
				return unicode.ToLower(r)
			case r == ' ':
				return '-'
			}
			return -1
		}, m[1])
		if n := seen[name]; n > 0 {
			all = append(all, fmt.Sprintf("%s-%d", name, n))
		} else {
			all = append(all, name)
		}
		seen[name]++
	}
	return all
}
