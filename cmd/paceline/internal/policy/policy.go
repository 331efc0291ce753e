// Package policy is what can be done with policies without a server: making, building, looking at, judging and measuring them.
//
// It owns the commands for that, their output, and the scaffolds of each language. A policy runs in the same sandbox as on a server. Each command
// runs on the goroutine of its caller; compilers and tests are processes that it waits for.
package policy

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/paceline-sched/paceline/policies/wasm"
	"github.com/paceline-sched/paceline/sdk/policyabi"
)

// NewCommands returns the verbs that need no server. version is this binary's, "" for an unknown one.
func NewCommands(version string) []*cobra.Command {
	return []*cobra.Command{newNewCommand(version), newBuildCommand(), newTestCommand(), newInspectCommand(), newVerifyCommand(), newBenchCommand(), newSignCommand()}
}

// mistakeError tells the command line that the user has to mend something.
type mistakeError struct{ error }

func (mistakeError) Mistake() {}

func mistakef(format string, args ...any) error { return mistakeError{fmt.Errorf(format, args...)} }

// maxModuleBytes bounds what is read of a file. The check of modules has a lower bound and says so; this is for files that are none.
const maxModuleBytes = 64 << 20

// readModule reads a module's file.
func readModule(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, mistakef("read the module: %w", err)
	}
	defer file.Close() //nolint:errcheck // it is only read
	raw, err := io.ReadAll(io.LimitReader(file, maxModuleBytes+1))
	switch {
	case err != nil:
		return nil, mistakef("read the module: %w", err)
	case len(raw) > maxModuleBytes:
		return nil, mistakef("read the module: %s is longer than %d bytes", path, maxModuleBytes)
	}
	return raw, nil
}

// wantsJSON reads -o: a table for people, or JSON.
func wantsJSON(cmd *cobra.Command) (bool, error) {
	format := "table"
	if f := cmd.Flag("output"); f != nil {
		format = f.Value.String()
	}
	switch format {
	case "table", "wide":
		return false, nil
	case "json":
		return true, nil
	}
	return false, mistakef("-o %s: this command writes table, wide or json", format)
}

func writeJSON(w io.Writer, v any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(v)
}

// columns writes rows with their cells below one another.
func columns(w io.Writer, rows [][]string) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(t, strings.TrimRight(strings.Join(row, "\t"), "\t"))
	}
	t.Flush()
}

// setFlag is --set key=value, which may be given several times.
func setFlag(cmd *cobra.Command) *[]string {
	return cmd.Flags().StringArray("set", nil, "a value of the policy's configuration, as key=value; may be repeated (default: what the policy says itself)")
}

// values reads --set by the types that the policy names.
func values(m *wasm.Module, given []string) (policyabi.Config, error) {
	set := map[string]string{}
	for _, s := range given {
		key, text, ok := strings.Cut(s, "=")
		if !ok {
			return nil, mistakef("--set %q: it is key=value", s)
		}
		set[key] = text
	}
	list, err := m.Values(set)
	if err != nil {
		return nil, mistakef("--set: %w", err)
	}
	return list, nil
}

func valueOf(v *policyabi.Value) any {
	switch v.Type {
	case policyabi.Bool:
		return v.Bool
	case policyabi.Int:
		return v.Int
	case policyabi.Float:
		return v.Float
	default:
		return v.Text
	}
}
