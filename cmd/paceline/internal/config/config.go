// Package config says where commands find a server and who they are to it: flags over environment over the configuration file over
// the defaults.
//
// It owns the file's schema and the order of precedence. It never talks to a server and never prints. Parsing is separate from
// reading files. Values are plain data; nothing here is shared.
package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// The defaults, which suit a server that `paceline dev` started on this machine.
const (
	DefaultAddress = "http://127.0.0.1:7411"
	DefaultTimeout = 30 * time.Second
	// maxFileBytes bounds the configuration file and token files.
	maxFileBytes = 1 << 20
)

// Context names one server and how to reach it.
type Context struct {
	Name string `yaml:"name" json:"name"`
	// Address is the server's URL, or host:port. Default: DefaultAddress.
	Address string `yaml:"address,omitempty" json:"address,omitempty"`
	// TokenFile holds the token that is sent. Default for a server on this machine: the one that it made on its first start.
	TokenFile string `yaml:"token_file,omitempty" json:"token_file,omitempty"`
	// CAFile holds the certificates that a server's must chain to. Default: the system's.
	CAFile string `yaml:"ca_file,omitempty" json:"ca_file,omitempty"`
}

// File is the configuration file.
type File struct {
	CurrentContext string    `yaml:"current_context,omitempty" json:"current_context,omitempty"`
	Contexts       []Context `yaml:"contexts,omitempty" json:"contexts,omitempty"`
}

// Settings is what a command works with.
type Settings struct {
	Context
	// Token was given by the environment, and goes before TokenFile.
	Token   string
	Timeout time.Duration
}

// Flags are what the command line gave; an empty value was not given.
type Flags struct {
	ConfigFile string
	Context    string
	Address    string
	TokenFile  string
	CAFile     string
	Timeout    time.Duration
}

// Env reads one environment variable; empty is unset.
type Env func(name string) string

// Path returns where the configuration file is: the flag, PACELINE_CONFIG, or config.yaml in the user's configuration folder.
func Path(flags Flags, env Env) string {
	switch {
	case flags.ConfigFile != "":
		return flags.ConfigFile
	case env("PACELINE_CONFIG") != "":
		return env("PACELINE_CONFIG")
	case env("XDG_CONFIG_HOME") != "":
		return filepath.Join(env("XDG_CONFIG_HOME"), "paceline", "config.yaml")
	}
	return filepath.Join(env("HOME"), ".config", "paceline", "config.yaml")
}

// DataDir returns where a server that is told nothing else keeps its store: PACELINE_DATA, or paceline in the user's data folder.
func DataDir(env Env) string {
	switch {
	case env("PACELINE_DATA") != "":
		return env("PACELINE_DATA")
	case env("XDG_DATA_HOME") != "":
		return filepath.Join(env("XDG_DATA_HOME"), "paceline")
	}
	return filepath.Join(env("HOME"), ".local", "share", "paceline")
}

// LocalTokenFile returns where a server on this machine leaves the token that it made on its first start.
func LocalTokenFile(env Env) string { return filepath.Join(DataDir(env), "token") }

// Parse reads a configuration file. Unknown fields are refused.
func Parse(data []byte) (File, error) {
	var f File
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	decoder.KnownFields(true)
	if err := decoder.Decode(&f); err != nil && !errors.Is(err, io.EOF) {
		return File{}, err
	}
	seen := map[string]bool{}
	for i, c := range f.Contexts {
		switch {
		case c.Name == "":
			return File{}, fmt.Errorf("contexts[%d] has no name", i)
		case seen[c.Name]:
			return File{}, fmt.Errorf("two contexts are named %q", c.Name)
		}
		seen[c.Name] = true
	}
	if f.CurrentContext != "" && !seen[f.CurrentContext] {
		return File{}, fmt.Errorf("current_context %q is not among the contexts (%s)", f.CurrentContext, strings.Join(f.names(), ", "))
	}
	return f, nil
}

func (f *File) names() []string {
	names := make([]string, len(f.Contexts))
	for i, c := range f.Contexts {
		names[i] = c.Name
	}
	return names
}

// Find returns the context of a name.
func (f *File) Find(name string) (Context, error) {
	if i := slices.IndexFunc(f.Contexts, func(c Context) bool { return c.Name == name }); i >= 0 {
		return f.Contexts[i], nil
	}
	if len(f.Contexts) == 0 {
		return Context{}, fmt.Errorf("there is no context %q: the configuration file has none; add it with 'paceline context set'", name)
	}
	return Context{}, fmt.Errorf("there is no context %q: there are %s", name, strings.Join(f.names(), ", "))
}

// Load reads the file at path. A file that is not there is an empty one.
func Load(path string) (File, error) {
	data, err := readSmall(path)
	if errors.Is(err, fs.ErrNotExist) {
		return File{}, nil
	}
	if err != nil {
		return File{}, fmt.Errorf("read the configuration: %w", err)
	}
	f, err := Parse(data)
	if err != nil {
		return File{}, fmt.Errorf("configuration file %s: %w", path, err)
	}
	return f, nil
}

// Save replaces the file at path, which only the user may then read.
func Save(path string, f File) error {
	data, err := yaml.Marshal(f)
	if err != nil {
		return err
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("save the configuration: %w", err)
	}
	temp, err := os.CreateTemp(dir, ".config-*")
	if err != nil {
		return fmt.Errorf("save the configuration: %w", err)
	}
	_, err = temp.Write(data)
	if err = errors.Join(err, temp.Close()); err == nil {
		err = os.Rename(temp.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("save the configuration: %w", err), os.Remove(temp.Name()))
	}
	return nil
}

// Resolve joins what the flags, the environment and the file say.
func Resolve(flags Flags, env Env, f File) (Settings, error) {
	s := Settings{Timeout: DefaultTimeout}
	if name := first(flags.Context, env("PACELINE_CONTEXT"), f.CurrentContext); name != "" {
		found, err := f.Find(name)
		if err != nil {
			return Settings{}, err
		}
		s.Context = found
	}
	s.Address = first(flags.Address, env("PACELINE_ADDRESS"), s.Address, DefaultAddress)
	if flags.TokenFile == "" {
		s.Token = env("PACELINE_TOKEN")
	}
	s.TokenFile = first(flags.TokenFile, env("PACELINE_TOKEN_FILE"), s.TokenFile)
	s.CAFile = first(flags.CAFile, env("PACELINE_CA_FILE"), s.CAFile)
	if v := env("PACELINE_TIMEOUT"); v != "" {
		d, err := time.ParseDuration(v)
		if err != nil || d <= 0 {
			return Settings{}, fmt.Errorf("PACELINE_TIMEOUT is %q: give a duration such as 30s", v)
		}
		s.Timeout = d
	}
	if flags.Timeout != 0 {
		s.Timeout = flags.Timeout
	}
	if s.Timeout < 0 {
		return Settings{}, fmt.Errorf("the time-out is %s: it must be positive", s.Timeout)
	}
	s.addLocalToken(env)
	return s, nil
}

// addLocalToken lets a user of this machine reach the server that runs here without further ado.
func (s *Settings) addLocalToken(env Env) {
	local := LocalTokenFile(env)
	if s.TokenFile == "" && s.Token == "" && isLocal(s.Address) && exists(local) {
		s.TokenFile = local
	}
}

// isLocal reports whether an address, a URL or host:port, is this machine's.
func isLocal(address string) bool {
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	u, err := url.Parse(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// ReadToken returns the token to send; empty: none.
func (s *Settings) ReadToken() (string, error) {
	if s.Token != "" || s.TokenFile == "" {
		return s.Token, nil
	}
	data, err := readSmall(s.TokenFile)
	if err != nil {
		return "", fmt.Errorf("read the token: %w", err)
	}
	token := strings.TrimSpace(string(data))
	if token == "" || strings.ContainsAny(token, " \t\r\n") {
		return "", fmt.Errorf("token file %s must hold one token and nothing else", s.TokenFile)
	}
	return token, nil
}

func readSmall(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // nothing was written
	data, err := io.ReadAll(io.LimitReader(file, maxFileBytes+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxFileBytes {
		return nil, fmt.Errorf("%s is over %d bytes", path, maxFileBytes)
	}
	return data, nil
}

func first(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

// Put returns the context of a name for change, and adds it when it is not there.
func (f *File) Put(name string) *Context {
	i := slices.IndexFunc(f.Contexts, func(c Context) bool { return c.Name == name })
	if i < 0 {
		i = len(f.Contexts)
		f.Contexts = append(f.Contexts, Context{Name: name})
	}
	return &f.Contexts[i]
}

// Remove drops the context of a name; if it was in use, none is.
func (f *File) Remove(name string) error {
	if _, err := f.Find(name); err != nil {
		return err
	}
	f.Contexts = slices.DeleteFunc(f.Contexts, func(c Context) bool { return c.Name == name })
	if f.CurrentContext == name {
		f.CurrentContext = ""
	}
	return nil
}
