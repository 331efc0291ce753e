package policy

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/paceline-sched/paceline/policies/signature"
	"github.com/paceline-sched/paceline/policies/wasm"
)

// facts are what inspect tells of a module.
type facts struct {
	Name      string        `json:"name"`
	Version   string        `json:"version,omitempty"`
	Digest    string        `json:"digest"`
	Kinds     []string      `json:"kinds"`
	ABI       string        `json:"abi"`
	SDK       string        `json:"sdk,omitempty"`
	Bytes     int           `json:"bytes"`
	Functions int           `json:"functions"`
	Memory    int           `json:"memory_bytes"` // that an instance starts with
	Columns   []string      `json:"columns"`
	Features  []string      `json:"features"`
	Scratch   int           `json:"scratch_bytes"`
	PerRow    int           `json:"scratch_bytes_per_row"`
	Config    []configValue `json:"config"`
	Imports   []string      `json:"imports"`
	Exports   []string      `json:"exports"`
	Signature string        `json:"signature"` // in words
	SignedBy  string        `json:"signed_by,omitempty"`
}

type configValue struct {
	Key     string `json:"key"`
	Type    string `json:"type"`
	Default any    `json:"default"`
}

const pageBytes = 64 << 10

func factsOf(m *wasm.Module) facts {
	c := &m.Capability
	f := facts{
		Name: c.Name, Version: c.Version, Digest: m.Digest.String(), ABI: fmt.Sprintf("%d.%d", c.Major, c.Minor), SDK: c.SDK,
		Bytes: m.Facts.Bytes, Functions: m.Facts.Functions, Memory: int(m.Facts.MemoryPages) * pageBytes,
		Columns: []string{}, Features: append([]string{}, c.Features...), Scratch: c.Scratch, PerRow: c.ScratchPerRow,
		Config: []configValue{}, Imports: []string{}, Exports: []string{},
	}
	for _, k := range c.Kinds {
		f.Kinds = append(f.Kinds, k.String())
	}
	for _, w := range c.Columns {
		f.Columns = append(f.Columns, w.String())
	}
	for i := range c.Config {
		v := &c.Config[i]
		f.Config = append(f.Config, configValue{v.Key, v.Type.String(), valueOf(v)})
	}
	for i := range m.Facts.Imports {
		im := &m.Facts.Imports[i]
		f.Imports = append(f.Imports, im.Module+"."+im.Name)
	}
	for i := range m.Facts.Exports {
		f.Exports = append(f.Exports, m.Facts.Exports[i].Name)
	}
	return f
}

func newInspectCommand() *cobra.Command {
	var keys string
	cmd := &cobra.Command{
		Use:   "inspect FILE",
		Short: "Show what a module is, without running any of it",
		Long: `Show what a module says of itself and what it is made of. Nothing of it runs. A module that no server would take is refused with the reason;
what it does when it runs, verify tells.

A signature is read from FILE.sig; --keys tells whose it is.`,
		Example: `  paceline policy inspect best-fit.wasm
  paceline policy inspect best-fit.wasm -o json
  paceline policy inspect best-fit.wasm --keys /etc/paceline/policy-keys`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, given []string) error {
			asJSON, err := wantsJSON(cmd)
			if err != nil {
				return err
			}
			binary, err := readModule(given[0])
			if err != nil {
				return err
			}
			m, err := wasm.Check(binary, wasm.Limits{})
			if err != nil {
				return mistakef("%s: %w", given[0], err)
			}
			f := factsOf(m)
			if f.Signature, f.SignedBy, err = signer(given[0], m, keys); err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), f)
			}
			columns(cmd.OutOrStdout(), f.rows())
			return nil
		},
	}
	cmd.Flags().StringVar(&keys, "keys", "", "directory of public keys (ID.pem), as servers have with --policy-keys")
	return cmd
}

// signer says whose signature stands beside a module, in words and as the id of the key.
func signer(path string, m *wasm.Module, keys string) (words, id string, err error) {
	text, err := os.ReadFile(path + ".sig")
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "none", "", nil
	case err != nil:
		return "", "", mistakef("read the signature: %w", err)
	case keys == "":
		return path + ".sig, not looked into: give --keys", "", nil
	}
	known, err := signature.ReadKeys(os.DirFS(keys))
	if err != nil {
		return "", "", mistakef("read the keys: %w", err)
	}
	if id, err = known.Verify(m.Digest, text); err != nil {
		return path + ".sig, not good: " + err.Error(), "", nil //nolint:nilerr // what is wrong is what inspect tells
	}
	return "by " + id, id, nil
}

func (f *facts) rows() [][]string {
	none := func(list []string) string {
		if len(list) == 0 {
			return "none"
		}
		return strings.Join(list, " ")
	}
	rows := [][]string{
		{"name", f.Name},
		{"version", orNone(f.Version)},
		{"digest", f.Digest},
		{"kinds", none(f.Kinds)},
		{"abi", f.ABI},
		{"sdk", orNone(f.SDK)},
		{"size", fmt.Sprintf("%d bytes, %d functions", f.Bytes, f.Functions)},
		{"memory", fmt.Sprintf("%d KiB at first", f.Memory>>10)},
		{"columns", none(f.Columns)},
		{"features", none(f.Features)},
		{"scratch", fmt.Sprintf("%d bytes, and %d for each row", f.Scratch, f.PerRow)},
	}
	for i, v := range f.Config {
		head := ""
		if i == 0 {
			head = "config"
		}
		rows = append(rows, []string{head, fmt.Sprintf("%s %s, by default %v", v.Key, v.Type, v.Default)})
	}
	if len(f.Config) == 0 {
		rows = append(rows, []string{"config", "none"})
	}
	rows = append(rows, []string{"signature", f.Signature})
	return append(rows, []string{"imports", none(f.Imports)}, []string{"exports", none(f.Exports)})
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}
