package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/paceline-sched/paceline/cmd/paceline/internal/config"
)

func env(values map[string]string) config.Env {
	return func(name string) string { return values[name] }
}

const file = `
current_context: prod
contexts:
  - name: prod
    address: https://prod.example.com
    token_file: /prod/token
    ca_file: /prod/ca
  - name: lab
    address: https://lab.example.com
`

// TestPrecedence: flags over environment over the file over the defaults.
func TestPrecedence(t *testing.T) {
	t.Parallel()
	parsed, err := config.Parse([]byte(file))
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name  string
		flags config.Flags
		env   map[string]string
		file  config.File
		want  config.Settings
	}{
		{"defaults", config.Flags{}, nil, config.File{}, config.Settings{Context: config.Context{Address: config.DefaultAddress}, Timeout: config.DefaultTimeout}},
		{
			"file",
			config.Flags{},
			nil, parsed,
			config.Settings{Context: config.Context{Name: "prod", Address: "https://prod.example.com", TokenFile: "/prod/token", CAFile: "/prod/ca"}, Timeout: config.DefaultTimeout},
		},
		{
			"environment",
			config.Flags{},
			map[string]string{"PACELINE_CONTEXT": "lab", "PACELINE_TOKEN": "secret", "PACELINE_TIMEOUT": "5s", "PACELINE_CA_FILE": "/env/ca"},
			parsed,
			config.Settings{Context: config.Context{Name: "lab", Address: "https://lab.example.com", CAFile: "/env/ca"}, Token: "secret", Timeout: 5 * time.Second},
		},
		{
			"flags",
			config.Flags{Context: "prod", Address: "https://flag", TokenFile: "/flag/token", CAFile: "/flag/ca", Timeout: time.Second},
			map[string]string{"PACELINE_CONTEXT": "lab", "PACELINE_TOKEN": "secret", "PACELINE_TIMEOUT": "5s", "PACELINE_CA_FILE": "/env/ca", "PACELINE_ADDRESS": "https://env"},
			parsed,
			config.Settings{Context: config.Context{Name: "prod", Address: "https://flag", TokenFile: "/flag/token", CAFile: "/flag/ca"}, Timeout: time.Second},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got, err := config.Resolve(tc.flags, env(tc.env), tc.file)
			if err != nil || got != tc.want {
				t.Errorf("got %+v, %v\nwant %+v", got, err, tc.want)
			}
		})
	}
}

// TestLocalToken: the token of a server on this machine is found by itself, and never sent elsewhere.
func TestLocalToken(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	environment := env(map[string]string{"XDG_DATA_HOME": home})
	local := config.LocalTokenFile(environment)
	if err := os.MkdirAll(filepath.Dir(local), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(local, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for address, want := range map[string]string{
		"": "secret", "127.0.0.1:1": "secret", "localhost:1": "secret", "http://[::1]:1": "secret", "https://127.9.9.9": "secret",
		"https://example.com": "", "example.com:1": "", "https://127.0.0.1.example.com": "", "https://localhost.example.com": "",
	} {
		s, err := config.Resolve(config.Flags{Address: address}, environment, config.File{})
		if err != nil {
			t.Fatal(err)
		}
		if token, err := s.ReadToken(); err != nil || token != want {
			t.Errorf("%q gets the token %q, want %q (%v)", address, token, want, err)
		}
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	for data, want := range map[string]string{
		"contexts: [{nome: x}]":              "field nome not found",
		"contexts: [{address: x}]":           "contexts[0] has no name",
		"contexts: [{name: a}, {name: a}]":   `two contexts are named "a"`,
		"current_context: b\ncontexts: []":   `current_context "b" is not among the contexts`,
		"contexts: 3":                        "cannot unmarshal",
		"current_context: a\ncontexts: [{}]": "no name",
	} {
		if _, err := config.Parse([]byte(data)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: want %q, got %v", data, want, err)
		}
	}
	if _, err := config.Resolve(config.Flags{}, env(map[string]string{"PACELINE_TIMEOUT": "soon"}), config.File{}); err == nil {
		t.Error("a time-out of 'soon' was taken")
	}
	token := filepath.Join(t.TempDir(), "token")
	for _, content := range []string{"", "two words", "two\nlines"} {
		if err := os.WriteFile(token, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		s := config.Settings{Context: config.Context{TokenFile: token}}
		if _, err := s.ReadToken(); err == nil {
			t.Errorf("the token %q was taken", content)
		}
	}
}

// TestSave: what was saved is what is loaded, and others may not read it.
func TestSave(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "new", "config.yaml")
	var f config.File
	f.Put("a").Address = "http://a"
	f.Put("b").TokenFile = "/b"
	f.Put("a").CAFile = "/a"
	f.CurrentContext = "b"
	if err := config.Save(path, f); err != nil {
		t.Fatal(err)
	}
	got, err := config.Load(path)
	if err != nil || len(got.Contexts) != 2 || got.Contexts[0] != (config.Context{Name: "a", Address: "http://a", CAFile: "/a"}) || got.CurrentContext != "b" {
		t.Errorf("got %+v, %v", got, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if err := got.Remove("b"); err != nil || got.CurrentContext != "" || len(got.Contexts) != 1 {
		t.Errorf("after removal: %+v, %v", got, err)
	}
	if err := got.Remove("b"); err == nil {
		t.Error("removed twice")
	}
	missing, err := config.Load(filepath.Join(t.TempDir(), "none"))
	if err != nil || len(missing.Contexts) != 0 {
		t.Errorf("a missing file is %+v, %v", missing, err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(file))
	f.Add([]byte("contexts: [{name: a, name: b}]"))
	f.Add([]byte("- &a [*a]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		parsed, err := config.Parse(data)
		if err != nil {
			return
		}
		if parsed.CurrentContext != "" {
			if _, err := parsed.Find(parsed.CurrentContext); err != nil {
				t.Errorf("the context in use is not there: %v", err)
			}
		}
	})
}
