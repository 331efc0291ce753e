package policy

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"text/template"

	"github.com/spf13/cobra"

	"github.com/paceline-sched/paceline/sdk/guest"
)

//go:embed scaffold
var scaffolds embed.FS

// made is what a new policy's folder is made of.
type made struct {
	Name, Module string
	Version, SDK string // of sdk/policy: a version, and a checkout to take it from instead
	Does         string
	Title        string
	Source       string
	Tests        string
	Given        string // files of the language that stand beside the source
}

// files of each language: what they are called in the folder, and in scaffold.
var scaffoldFiles = map[string]map[string]string{
	"go":             {"main.go": "go/%s.go.txt", "main_test.go": "go/%s_test.go.txt", "go.mod": "go/go.mod.txt"},
	"c":              {"policy.c": "c/policy.c.txt"},
	"rust":           {"policy.rs": "rust/policy.rs.txt"},
	"assemblyscript": {"policy.ts": "assemblyscript/policy.ts.txt"},
}

var does = map[string]string{"place": "placement", "preempt": "preemption", "quota": "quota", "route": "routes"}

func newNewCommand(version string) *cobra.Command {
	var lang, kind, sdk string
	cmd := &cobra.Command{
		Use:   "new NAME",
		Short: "Make the folder of a new policy",
		Long: `Make a folder with a policy that works, to be changed: its source, a test where the language has some, and a README. NAME is the policy's name, and the
folder's below the current one.

A policy in Go takes the Go module of this command's version. A command that was not released has none: it needs --sdk, a checkout of Paceline.`,
		Example: `  paceline policy new tight
  paceline policy new tight --sdk ~/src/paceline
  paceline policy new tight --lang c`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, given []string) error {
			m, err := newFolder(given[0], lang, kind, version, sdk)
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			fmt.Fprintf(out, "policy %s: %s is in %s\n", m.Name, m.Source, m.Name)
			fmt.Fprintf(out, "  paceline policy test %[1]s     its tests, and those of every policy\n  paceline policy build %[1]s    makes %[1]s/policy.wasm\n", m.Name)
			return nil
		},
	}
	cmd.Flags().StringVar(&lang, "lang", "go", "language: "+languageNames())
	cmd.Flags().StringVar(&kind, "kind", "place", "what it decides: place; in Go also preempt, quota, route")
	cmd.Flags().StringVar(&sdk, "sdk", "", "checkout of Paceline that a policy in Go is built against")
	return cmd
}

var (
	goodName = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$`) // that servers take, too
	released = regexp.MustCompile(`^v\d+\.\d+\.\d+$`)
)

func newFolder(name, lang, kind, version, sdk string) (*made, error) {
	var l *language
	for i := range languages {
		if languages[i].name == lang {
			l = &languages[i]
		}
	}
	switch {
	case !goodName.MatchString(name):
		return nil, mistakef("the name %q: small letters, digits and dashes, 63 at most, first a letter and last no dash", name)
	case l == nil:
		return nil, mistakef("--lang %s: choose one of %s", lang, languageNames())
	case does[kind] == "" || kind != "place" && lang != "go":
		return nil, mistakef("--kind %s: choose place, or in Go place, preempt, quota or route; for other languages docs/policy-abi.md has what these need", kind)
	case sdk != "" && lang != "go":
		return nil, mistakef("--sdk is for policies in Go")
	}
	m := &made{Name: name, Module: "example.org/" + name, Version: version, Does: does[kind], Source: l.source, Title: l.title, Tests: "builds it and judges the module"}
	if l.test != nil {
		m.Tests = "its own tests; builds it and judges the module"
	}
	if lang == "go" {
		m.Source = "main.go"
		if err := m.takeSDK(sdk); err != nil {
			return nil, err
		}
	}
	if err := os.Mkdir(name, 0o755); err != nil { //nolint:gosec // sources, for everybody's eyes
		if errors.Is(err, fs.ErrExist) {
			return nil, mistakef("%s is there already: choose another name", name)
		}
		return nil, mistakeError{err}
	}
	return m, m.write(lang, kind)
}

// takeSDK says where the module of the SDK comes from.
func (m *made) takeSDK(sdk string) error {
	if sdk == "" {
		if !released.MatchString(m.Version) {
			return mistakef("this command is no release, so there is no version of the Go module to build against: give --sdk, a checkout of Paceline")
		}
		return nil
	}
	full, err := filepath.Abs(sdk)
	if err != nil {
		return mistakeError{err}
	}
	if _, err := os.Stat(filepath.Join(full, "sdk", "policy")); err != nil {
		return mistakef("--sdk %s: it is no checkout of Paceline: %w", sdk, err)
	}
	m.SDK, m.Version = full, "v0.0.0"
	return nil
}

// write writes the folder's files.
func (m *made) write(lang, kind string) error {
	if lang != "go" {
		list, err := fs.Glob(guest.Files(lang), "*")
		if err != nil {
			return err
		}
		for _, name := range list {
			raw, err := fs.ReadFile(guest.Files(lang), name)
			if err != nil {
				return err
			}
			if err := m.file(name, raw); err != nil {
				return err
			}
		}
		m.Given = strings.Join(list, " and ")
	}
	files := map[string]string{"README.md": "README.md.txt"}
	for name, from := range scaffoldFiles[lang] {
		files[name] = strings.ReplaceAll(from, "%s", kind)
	}
	for name, from := range files {
		text, err := template.ParseFS(scaffolds, "scaffold/"+from)
		if name == "main_test.go" && err != nil {
			continue // policytest asks about hosts and candidates; the rest is judged as a module
		}
		if err != nil {
			return err
		}
		var b strings.Builder
		if err := text.Execute(&b, m); err != nil {
			return err
		}
		if err := m.file(name, []byte(b.String())); err != nil {
			return err
		}
	}
	return nil
}

func (m *made) file(name string, content []byte) error {
	if err := os.WriteFile(filepath.Join(m.Name, name), content, 0o644); err != nil { //nolint:gosec // sources, for everybody's eyes
		return fmt.Errorf("write the policy's files: %w", err)
	}
	return nil
}
