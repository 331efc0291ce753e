package jobfile

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"buf.build/go/protovalidate"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// walker finds what is wrong with a document's shape before it is decoded: unknown and repeated fields, aliases, absurd depth.
type walker struct {
	file     string
	problems Problems
}

func (w *walker) add(node *yaml.Node, field, hint, format string, args ...any) {
	w.problems = append(w.problems, Problem{File: w.file, Line: node.Line, Field: field, Message: fmt.Sprintf(format, args...), Hint: hint})
}

// message checks the keys of a mapping against a message's fields. Values of the wrong shape are left to the decoder.
func (w *walker) message(node *yaml.Node, d protoreflect.MessageDescriptor, at string, depth int) {
	if !w.sound(node, at, depth) {
		return
	}
	if at == "" && node.Kind != yaml.MappingNode {
		w.add(node, "", "", "a document must hold the fields of a %s, as in 'name: value'", d.Name())
		return
	}
	if node.Kind != yaml.MappingNode || d.FullName().Parent() == "google.protobuf" {
		return
	}
	seen := map[protoreflect.Name]int{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		field := findField(d, key.Value)
		if key.Kind != yaml.ScalarNode || field == nil {
			w.unknown(key, d, at)
			continue
		}
		path := join(at, string(field.Name()))
		if line, twice := seen[field.Name()]; twice {
			w.add(key, path, "", "is given twice, first on line %d", line)
			continue
		}
		seen[field.Name()] = key.Line
		w.value(value, field, path, depth)
	}
}

func (w *walker) value(node *yaml.Node, field protoreflect.FieldDescriptor, at string, depth int) {
	switch {
	case !w.sound(node, at, depth):
	case field.IsMap():
		w.mapping(node, field, at, depth)
	case field.IsList():
		w.list(node, field, at, depth)
	case field.Message() != nil:
		w.message(node, field.Message(), at, depth+1)
	case node.Kind == yaml.ScalarNode && node.Tag == "!!null":
		w.add(node, at, "", "has no value")
	}
}

func (w *walker) list(node *yaml.Node, field protoreflect.FieldDescriptor, at string, depth int) {
	if node.Kind != yaml.SequenceNode {
		if node.Tag != "!!null" {
			hint := ""
			if node.Kind == yaml.ScalarNode {
				hint = fmt.Sprintf("a list is written %s: [a, b] or as lines that begin with '- '", field.Name())
			}
			w.add(node, at, hint, "must be a list")
		}
		return
	}
	for i, item := range node.Content {
		path := fmt.Sprintf("%s[%d]", at, i)
		if w.sound(item, path, depth+1) && field.Message() != nil {
			w.message(item, field.Message(), path, depth+1)
		}
	}
}

func (w *walker) mapping(node *yaml.Node, field protoreflect.FieldDescriptor, at string, depth int) {
	if node.Kind != yaml.MappingNode {
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		path := fmt.Sprintf("%s[%q]", at, key.Value)
		if line, twice := seen[key.Value]; twice {
			w.add(key, path, "", "is given twice, first on line %d", line)
		}
		seen[key.Value] = key.Line
		if w.sound(value, path, depth+1) && value.Tag == "!!null" && field.MapValue().Message() == nil {
			w.add(value, path, `write "" for an empty value`, "has no value")
		}
	}
}

// sound refuses what the schema has no use for and what decoders tend to stumble over.
func (w *walker) sound(node *yaml.Node, at string, depth int) bool {
	switch {
	case depth > maxDepth:
		w.add(node, at, "", "is nested deeper than %d levels", maxDepth)
	case node.Kind == yaml.AliasNode || node.Anchor != "":
		w.add(node, at, "", "YAML anchors and aliases are not supported: write the value out")
	default:
		return true
	}
	return false
}

func (w *walker) unknown(key *yaml.Node, d protoreflect.MessageDescriptor, at string) {
	var names []string
	for i := range d.Fields().Len() {
		names = append(names, string(d.Fields().Get(i).Name()))
	}
	hint := fmt.Sprintf("the fields of %s are %s", d.Name(), strings.Join(names, ", "))
	if near := closest(key.Value, names); near != "" {
		hint = fmt.Sprintf("did you mean %q?", near)
	}
	w.add(key, join(at, key.Value), hint, "%s has no field %q", d.Name(), key.Value)
}

// findField finds a field by its name in the schema or its lowerCamelCase form.
func findField(d protoreflect.MessageDescriptor, name string) protoreflect.FieldDescriptor {
	if f := d.Fields().ByName(protoreflect.Name(name)); f != nil {
		return f
	}
	return d.Fields().ByJSONName(name)
}

func join(at, name string) string {
	if at == "" {
		return name
	}
	return at + "." + name
}

// closest returns the name that s abbreviates, or that differs from s by the fewest edits, if that is few enough to be a slip.
func closest(s string, names []string) string {
	const shortest = 3 // letters that say something
	i := slices.IndexFunc(names, func(name string) bool { return strings.HasPrefix(name, s) })
	if i >= 0 && len(s) >= shortest {
		return names[i]
	}
	best, bestEdits := "", max(1, len(s)/3)+1
	for _, name := range names {
		if edits := distance(strings.ToLower(s), name); edits < bestEdits {
			best, bestEdits = name, edits
		}
	}
	return best
}

// maxDistanceBytes bounds the words that distance compares; longer ones are no slips of a key.
const maxDistanceBytes = 64

// distance is the Levenshtein distance, with a transposition as one edit (optimal string alignment).
func distance(a, b string) int {
	if len(a) > maxDistanceBytes || len(b) > maxDistanceBytes {
		return maxDistanceBytes
	}
	before, previous, current := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range previous {
		previous[j] = j
	}
	for i := 1; i <= len(a); i++ {
		current[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			current[j] = min(previous[j]+1, current[j-1]+1, previous[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				current[j] = min(current[j], before[j-2]+1)
			}
		}
		before, previous, current = previous, current, before
	}
	return previous[len(b)]
}

// positionPattern is how the decoder begins each of its errors, after the file's name.
var positionPattern = regexp.MustCompile(`^:(\d+):(\d+) (.*)$`)

// decoding turns the decoder's errors into problems that name their field.
func (w *walker) decoding(root *yaml.Node, err error) {
	for _, one := range flatten(err) {
		text, _, _ := strings.Cut(one.Error(), "\n")
		match := positionPattern.FindStringSubmatch(strings.TrimPrefix(text, w.file))
		if match == nil {
			w.add(root, "", "", "%s", text)
			continue
		}
		line, errLine := strconv.Atoi(match[1])
		column, errColumn := strconv.Atoi(match[2])
		if errLine != nil || errColumn != nil {
			continue
		}
		w.problems = append(w.problems, Problem{File: w.file, Line: line, Field: fieldAt(root, line, column, ""), Message: match[3]})
	}
}

func flatten(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}

// fieldAt returns the path of the node that stands at a position.
func fieldAt(node *yaml.Node, line, column int, at string) string {
	if node.Line == line && node.Column == column && node.Kind == yaml.ScalarNode {
		return at
	}
	switch node.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(node.Content); i += 2 {
			path := join(at, node.Content[i].Value)
			if node.Content[i].Line == line && node.Content[i].Column == column {
				return path
			}
			if found := fieldAt(node.Content[i+1], line, column, path); found != "" {
				return found
			}
		}
	case yaml.SequenceNode:
		for i, item := range node.Content {
			if found := fieldAt(item, line, column, fmt.Sprintf("%s[%d]", at, i)); found != "" {
				return found
			}
		}
	}
	if node.Line == line && node.Column == column {
		return at
	}
	return ""
}

// violations turns broken rules into problems.
func (w *walker) violations(root *yaml.Node, err error) {
	var invalid *protovalidate.ValidationError
	switch {
	case err == nil:
		return
	case !errors.As(err, &invalid):
		w.add(root, "", "", "%v", err)
		return
	}
	for _, v := range invalid.Violations {
		field := protovalidate.FieldPathString(v.Proto.GetField())
		w.add(nearest(root, field), field, "", "%s", v.Proto.GetMessage())
	}
}

// stepPattern cuts a field path into names, indexes and map keys.
var stepPattern = regexp.MustCompile(`\[(?:\d+|"(?:[^"\\]|\\.)*"|[^\]]*)\]|[^.\[\]]+`)

// nearest returns the node of a field, or of the innermost field around it that is there.
func nearest(root *yaml.Node, field string) *yaml.Node {
	node := root
	for _, step := range stepPattern.FindAllString(field, -1) {
		next := child(node, step)
		if next == nil {
			break
		}
		node = next
	}
	return node
}

func child(node *yaml.Node, step string) *yaml.Node {
	key := step
	if strings.HasPrefix(step, "[") {
		key = step[1 : len(step)-1]
		if unquoted, err := strconv.Unquote(key); err == nil {
			key = unquoted
		}
	}
	switch node.Kind {
	case yaml.SequenceNode:
		if i, err := strconv.Atoi(key); err == nil && i >= 0 && i < len(node.Content) {
			return node.Content[i]
		}
	case yaml.MappingNode:
		keys := slices.Collect(everySecond(node.Content))
		if i := slices.IndexFunc(keys, func(k *yaml.Node) bool { return k.Value == key || snake(k.Value) == key }); i >= 0 {
			return keyed(keys[i], node.Content[2*i+1])
		}
	}
	return nil
}

// keyed places a value that spans lines at its key, where a reader looks for it.
func keyed(key, value *yaml.Node) *yaml.Node {
	if value.Kind == yaml.ScalarNode || value.Line == key.Line {
		return value
	}
	moved := *value
	moved.Line = key.Line
	return &moved
}

func everySecond(nodes []*yaml.Node) func(yield func(*yaml.Node) bool) {
	return func(yield func(*yaml.Node) bool) {
		for i := 0; i+1 < len(nodes); i += 2 {
			if !yield(nodes[i]) {
				return
			}
		}
	}
}

// snake turns lowerCamelCase into the schema's names.
func snake(s string) string {
	var b strings.Builder
	for _, r := range s {
		if r >= 'A' && r <= 'Z' {
			b.WriteByte('_')
			r += 'a' - 'A'
		}
		b.WriteRune(r)
	}
	return b.String()
}
