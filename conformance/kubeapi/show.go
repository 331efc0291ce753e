package kubeapi

import (
	"encoding/json"
	"regexp"
	"strings"
)

// What differs from one server, or one moment, to the next.
var (
	times    = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`)
	uids     = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	ages     = regexp.MustCompile(`^(\d+[smhd])+$`)
	hosts    = regexp.MustCompile(`127\.0\.0\.1:\d+`)
	made     = regexp.MustCompile(`\bgenerated-[a-z0-9]{5}\b`)
	versions = regexp.MustCompile(`(resource version: |ResourceVersion in precondition: |ResourceVersion in object meta: |current: |ResourceVersion in (?:the precondition|record) \()\d+( \(\d+\))?`)
)

// dropped are fields that are not compared: who wrote which field is not emulated.
var dropped = map[string]bool{"managedFields": true}

// unnamed are fields whose values differ from server to server.
var unnamed = map[string]string{"uid": "<uid>", "resourceVersion": "<version>", "continue": "<continue>"}

// show writes a value so that the answers of two servers can be compared.
func show(value any, saved map[string]string) string {
	if s, ok := value.(string); ok {
		return plain(s, saved) + "\n"
	}
	var out strings.Builder
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", " ")
	_ = encoder.Encode(clean(value, saved)) // it was made of JSON
	return out.String()
}

func clean(value any, saved map[string]string) any {
	switch v := value.(type) {
	case map[string]any:
		if _, table := v["columnDefinitions"]; table {
			cleanColumns(v)
		}
		for key, field := range v {
			switch text, isText := field.(string); {
			case dropped[key]:
				delete(v, key)
			case isText && unnamed[key] != "" && text != "" && text != "0":
				v[key] = unnamed[key]
			default:
				v[key] = clean(field, saved)
			}
		}
		return v
	case []any:
		for i := range v {
			v[i] = clean(v[i], saved)
		}
		return v
	case string:
		return plain(v, saved)
	}
	return value
}

// cleanColumns drops the descriptions of a table's columns, which are prose.
func cleanColumns(table map[string]any) {
	columns, _ := table["columnDefinitions"].([]any)
	for _, c := range columns {
		if column, ok := c.(map[string]any); ok {
			column["description"] = "<prose>"
		}
	}
}

// plain takes out of a text what differs from server to server. Of a message of several lines the first counts.
func plain(s string, saved map[string]string) string {
	s, _, _ = strings.Cut(s, "\n")
	if ages.MatchString(s) {
		return "<age>"
	}
	s = times.ReplaceAllString(s, "<time>")
	s = uids.ReplaceAllString(s, "<uid>")
	s = made.ReplaceAllString(s, "generated-<suffix>")
	s = hosts.ReplaceAllString(s, "<address>")
	s = versions.ReplaceAllString(s, "${1}<version>")
	return strings.ReplaceAll(s, saved["ns"], "$ns")
}
