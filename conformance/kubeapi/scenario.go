package kubeapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator/wire"
)

// Target is an API server.
type Target struct {
	Base   string // its URL
	Client *http.Client
	// Patience bounds the wait for one answer.
	Patience time.Duration
}

// step is one request of a scenario.
type step struct {
	comments []string
	line     string // as it stands in the file
	method   string
	path     string
	options  map[string]string
	body     string
}

// Run sends the requests of a scenario, in which $ns stands for a namespace that is there, and returns the scenario with the answers that it
// got, in the form of a file. What the file says of answers is not looked at.
func Run(ctx context.Context, t Target, scenario, namespace string) (string, error) {
	steps, err := parse(scenario)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	saved := map[string]string{"ns": namespace}
	for _, s := range steps {
		for _, c := range s.comments {
			out.WriteString(c + "\n")
		}
		if s.method == "" {
			continue
		}
		out.WriteString(s.line + "\n")
		if s.body != "" {
			out.WriteString(s.body + "\n")
		}
		answer, err := t.send(ctx, s, saved)
		if err != nil {
			return "", fmt.Errorf("%s: %w", s.line, err)
		}
		for line := range strings.SplitSeq(strings.TrimRight(answer, "\n"), "\n") {
			out.WriteString(strings.TrimRight("< "+line, " ") + "\n")
		}
	}
	return out.String(), nil
}

// parse reads a scenario: "> METHOD PATH key=value..." with the lines of a body below, comments and empty lines, and answers, which begin
// with "<".
func parse(text string) ([]*step, error) {
	var steps []*step
	now := &step{}
	for n, line := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		switch {
		case strings.HasPrefix(line, "<"):
		case strings.HasPrefix(line, "> "):
			if now.method != "" {
				steps, now = append(steps, now), &step{}
			}
			words := strings.Fields(line[2:])
			if len(words) < 2 {
				return nil, fmt.Errorf("line %d: %q is no request: write METHOD PATH", n+1, line)
			}
			now.line, now.method, now.path, now.options = line, words[0], words[1], map[string]string{}
			for _, w := range words[2:] {
				key, value, _ := strings.Cut(w, "=")
				now.options[key] = value
			}
		case strings.HasPrefix(line, "#") || line == "":
			if now.method != "" {
				steps, now = append(steps, now), &step{}
			}
			now.comments = append(now.comments, line)
		case now.method == "":
			return nil, fmt.Errorf("line %d: %q belongs to no request", n+1, line)
		default:
			now.body = strings.TrimPrefix(now.body+"\n"+line, "\n")
		}
	}
	return append(steps, now), nil
}

// media are short names for what stands in headers.
var media = map[string]string{
	"json": wire.JSON, "yaml": wire.YAML, "protobuf": wire.Protobuf,
	"merge": "application/merge-patch+json", "jsonpatch": "application/json-patch+json", "strategic": "application/strategic-merge-patch+json",
	"table":   "application/json;as=Table;v=v1;g=meta.k8s.io",
	"partial": "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", "partials": "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
}

func header(name string) string {
	if full, ok := media[name]; ok {
		return full
	}
	return name
}

func (t Target) send(ctx context.Context, s *step, saved map[string]string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, t.Patience)
	defer cancel()
	replace := make([]string, 0, 2*len(saved))
	for name, value := range saved {
		replace = append(replace, "$"+name, value)
	}
	fill := strings.NewReplacer(replace...)
	raw := []byte(fill.Replace(s.body))
	if s.options["type"] == "protobuf" {
		var err error
		if raw, err = toProtobuf(raw); err != nil {
			return "", err
		}
	}
	var body io.Reader = http.NoBody
	if len(raw) > 0 {
		body = bytes.NewReader(raw)
	}
	request, err := http.NewRequestWithContext(ctx, s.method, t.Base+fill.Replace(s.path), body)
	if err != nil {
		return "", err
	}
	if kind := s.options["type"]; len(raw) > 0 {
		if kind == "" {
			kind = "json"
		}
		request.Header.Set("Content-Type", header(kind))
	}
	accept := "json"
	if a, ok := s.options["accept"]; ok {
		accept = a
	}
	request.Header.Set("Accept", header(accept))
	response, err := t.Client.Do(request)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }() // what is wanted was read
	var out strings.Builder
	kind := response.Header.Get("Content-Type")
	fmt.Fprintf(&out, "%d %s\n", response.StatusCode, kind)
	for _, w := range response.Header.Values("Warning") {
		fmt.Fprintf(&out, "Warning: %s\n", w)
	}
	if after := response.Header.Get("Retry-After"); after != "" {
		fmt.Fprintf(&out, "Retry-After: %s\n", after)
	}
	if n, err := strconv.Atoi(s.options["events"]); err == nil {
		err = readEvents(&out, response.Body, kind, n, saved)
		return out.String(), err
	}
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return "", err
	}
	value, err := readAnswer(kind, answer)
	if err != nil {
		return "", err
	}
	save(s.options["save"], value, saved)
	out.WriteString(show(value, saved))
	return out.String(), nil
}

// save keeps a field of an answer: "name:path.to.field".
func save(what string, value any, saved map[string]string) {
	name, path, ok := strings.Cut(what, ":")
	if !ok {
		return
	}
	for word := range strings.SplitSeq(path, ".") {
		object, ok := value.(map[string]any)
		if !ok {
			return
		}
		value = object[word]
	}
	saved[name] = fmt.Sprint(value)
}

// toProtobuf writes a body of JSON as protobuf.
func toProtobuf(raw []byte) ([]byte, error) {
	var meta metav1.TypeMeta
	if err := json.Unmarshal(raw, &meta); err != nil {
		return nil, err
	}
	gvk := meta.GroupVersionKind()
	object, _, err := wire.Decode(wire.JSON, raw, gvk, nil)
	if err != nil {
		return nil, err
	}
	return wire.Encode(wire.Protobuf, gvk.GroupVersion(), object)
}

// readAnswer makes a value of an answer that can be shown.
func readAnswer(kind string, raw []byte) (any, error) {
	switch {
	case strings.HasPrefix(kind, wire.JSON):
		return fromJSON(raw)
	case strings.HasPrefix(kind, wire.Protobuf):
		return fromProtobuf(raw)
	}
	return string(raw), nil
}

func fromJSON(raw []byte) (any, error) {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return nil, fmt.Errorf("an answer is no JSON: %w: %.200q", err, raw)
	}
	return value, nil
}

func fromProtobuf(raw []byte) (any, error) {
	object, _, err := wire.Decode(wire.Protobuf, raw, schema.GroupVersionKind{}, nil)
	if err != nil {
		return nil, err
	}
	return objectToJSON(object)
}

func objectToJSON(object runtime.Object) (any, error) {
	raw, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	return fromJSON(raw)
}

// readEvents shows the first n events of a watch, or all until its end if n is 0.
func readEvents(out *strings.Builder, in io.Reader, kind string, n int, saved map[string]string) error {
	reader := bufio.NewReader(in)
	for i := 0; n == 0 || i < n; i++ {
		value, err := readEvent(reader, kind)
		if errors.Is(err, io.EOF) && n == 0 {
			out.WriteString("the end\n")
			return nil
		}
		if err != nil {
			return fmt.Errorf("event %d: %w; until then there was\n%s", i+1, err, out.String())
		}
		out.WriteString(show(value, saved))
	}
	return nil
}

func readEvent(in *bufio.Reader, kind string) (any, error) {
	if strings.HasPrefix(kind, wire.JSON) {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return nil, err
		}
		return fromJSON(line)
	}
	var head [4]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return nil, err
	}
	raw := make([]byte, binary.BigEndian.Uint32(head[:]))
	if _, err := io.ReadFull(in, raw); err != nil {
		return nil, err
	}
	var event metav1.WatchEvent
	if err := event.Unmarshal(raw); err != nil {
		return nil, err
	}
	object, err := fromProtobuf(event.Object.Raw)
	return map[string]any{"type": event.Type, "object": object}, err
}
