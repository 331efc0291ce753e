package policy

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/paceline-sched/paceline/policies/wasm"
	"github.com/paceline-sched/paceline/policies/wasm/kit"
)

// verdict is a report for programs.
type verdict struct {
	Policy  string  `json:"policy"`
	Version string  `json:"version,omitempty"`
	Digest  string  `json:"digest"`
	Passed  bool    `json:"passed"`
	Checks  []check `json:"checks"`
}

type check struct {
	Name    string `json:"name"`
	Outcome string `json:"outcome"`
	Detail  string `json:"detail"`
}

func verdictOf(r *kit.Report) verdict {
	v := verdict{Policy: r.Policy, Version: r.Version, Digest: r.Digest.String(), Passed: r.Err() == nil}
	for _, c := range r.Checks {
		v.Checks = append(v.Checks, check{c.Name, c.Outcome.String(), c.Detail})
	}
	return v
}

func newVerifyCommand() *cobra.Command {
	var o kit.Options
	var set *[]string
	cmd := &cobra.Command{
		Use:   "verify FILE",
		Short: "Judge a module as a server does before it keeps it",
		Long: `Judge a module: that it may be loaded at all, and what it does on random tables: empty and full ones, with gangs, GPUs, hosts that it must leave
out, named resources; of policies of other kinds, what they say of random pools, jobs and clusters. All is asked of two fresh instances, which must say
the same. A policy passes that places badly; bench and shadow tell of that.

The exit code is 1 when a check fails. A warning is something to know, and fails nothing.`,
		Example: `  paceline policy verify best-fit.wasm
  paceline policy verify best-fit.wasm --seed 7 --rounds 100 --set weight=2`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, given []string) error {
			asJSON, err := wantsJSON(cmd)
			if err != nil {
				return err
			}
			return verify(cmd, given[0], o, *set, asJSON)
		},
	}
	cmd.Flags().Uint64Var(&o.Seed, "seed", 1, "what the tables are drawn from")
	cmd.Flags().IntVar(&o.Rounds, "rounds", 0, "tables of each scene (default 6)")
	cmd.Flags().IntVar(&o.Calls, "calls", 0, "calls for which memory is watched (default 8000)")
	set = setFlag(cmd)
	return cmd
}

func verify(cmd *cobra.Command, path string, o kit.Options, set []string, asJSON bool) error {
	binary, err := readModule(path)
	if err != nil {
		return err
	}
	if m, err := wasm.Check(binary, o.Config.Limits); err == nil {
		if o.Config.Values, err = values(m, set); err != nil {
			return err
		}
	}
	r, err := kit.Run(cmd.Context(), binary, o)
	if err != nil {
		return err
	}
	if asJSON {
		err = writeJSON(cmd.OutOrStdout(), verdictOf(&r))
	} else {
		tellReport(cmd.OutOrStdout(), &r)
	}
	if err != nil {
		return err
	}
	return failed(&r)
}

func failed(r *kit.Report) error {
	n := 0
	for i := range r.Checks {
		if r.Checks[i].Outcome == kit.Failed {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d checks failed", n, len(r.Checks))
}

func tellReport(w io.Writer, r *kit.Report) {
	rows := make([][]string, 0, len(r.Checks))
	for _, c := range r.Checks {
		rows = append(rows, []string{c.Outcome.String(), c.Name, c.Detail})
	}
	columns(w, rows)
	if failed(r) == nil {
		fmt.Fprintf(w, "policy %s (%s) passes\n", r.Policy, r.Digest.Short())
	}
}
