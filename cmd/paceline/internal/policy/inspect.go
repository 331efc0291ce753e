package policy

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

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
	return &cobra.Command{
		Use:   "inspect FILE",
		Short: "Show what a module is, without running any of it",
		Long: `Show what a module says of itself and what it is made of. Nothing of it runs. A module that no server would take is refused with the reason;
what it does when it runs, verify tells.`,
		Example: `  paceline policy inspect best-fit.wasm
  paceline policy inspect best-fit.wasm -o json`,
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
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), f)
			}
			columns(cmd.OutOrStdout(), f.rows())
			return nil
		},
	}
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
	return append(rows, []string{"imports", none(f.Imports)}, []string{"exports", none(f.Exports)})
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}
