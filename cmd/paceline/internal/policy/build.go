package policy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/paceline-sched/paceline/policies/wasm"
	"github.com/paceline-sched/paceline/policies/wasm/kit"
	"github.com/paceline-sched/paceline/sdk/guest"
)

// stage is where a policy is built: a copy of its source with the files of its language beside it.
type stage struct {
	from string    // the author's folder
	dir  string    // the copy; of Go, which finds what it needs itself, nothing but the output
	out  string    // the module
	tell io.Writer // takes what programs that succeed write; nil: nobody
}

func newStage(from string, l *language) (*stage, error) {
	dir, err := os.MkdirTemp("", "paceline-policy-")
	if err != nil {
		return nil, fmt.Errorf("make a folder to build in: %w", err)
	}
	s := &stage{from: from, dir: dir, out: filepath.Join(dir, "policy.wasm")}
	if len(l.extends) == 0 {
		return s, nil
	}
	// The author's own files go before ours.
	if err := errors.Join(s.copy(guest.Files(l.name), l), s.copy(os.DirFS(from), l)); err != nil {
		s.close()
		return nil, fmt.Errorf("copy the policy's source: %w", err)
	}
	return s, nil
}

// copy copies the sources that stand in a folder, not those below it.
func (s *stage) copy(from fs.FS, l *language) error {
	list, err := fs.ReadDir(from, ".")
	if err != nil {
		return err
	}
	for _, f := range list {
		if f.IsDir() || !slices.Contains(l.extends, filepath.Ext(f.Name())) {
			continue
		}
		raw, err := fs.ReadFile(from, f.Name())
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(s.dir, f.Name()), raw, 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (s *stage) close() { _ = os.RemoveAll(s.dir) } // a folder of temporary files that stays is no failure of the build

// build builds a folder's policy and returns the module, with its custom section.
func build(ctx context.Context, dir string) ([]byte, error) {
	l, err := of(dir)
	if err != nil {
		return nil, err
	}
	s, err := newStage(dir, l)
	if err != nil {
		return nil, err
	}
	defer s.close()
	return s.build(ctx, l)
}

func (s *stage) build(ctx context.Context, l *language) ([]byte, error) {
	if err := l.build(ctx, s); err != nil {
		return nil, err
	}
	module, err := readModule(s.out)
	if err != nil {
		return nil, err
	}
	section, err := wasm.Describe(ctx, module, wasm.Limits{})
	var fault *wasm.Fault
	switch {
	case err == nil:
		if module, err = wasm.Stamp(module, section); err != nil {
			return nil, err
		}
	case !errors.As(err, &fault) || fault.Kind != wasm.FaultModule:
		return nil, err
	}
	_, err = wasm.Check(module, wasm.Limits{}) // where nothing can be asked the section must be there
	return module, err
}

// asMistake makes what an author has to mend an error that says so.
func asMistake(dir string, err error) error {
	var missing *missingError
	var fault *wasm.Fault
	if err != nil && (errors.As(err, &missing) || errors.As(err, &fault)) {
		return mistakef("build %s: %w", dir, err)
	}
	if err != nil {
		return fmt.Errorf("build %s: %w", dir, err)
	}
	return nil
}

func newBuildCommand() *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use:   "build DIR",
		Short: "Build a policy from its source",
		Long: `Build the policy in a folder: Go files, policy.c, policy.rs or policy.ts. What is compiled gets the custom section that says what the policy is, and is
looked at as a server does before it loads a module.

  Go              the plain toolchain, for wasip1; the policy is written against sdk/policy
  C               clang and lld; paceline.h and paceline_place.h are there
  Rust            rustc with the target wasm32-unknown-unknown; the module paceline is there
  AssemblyScript  asc, of a node_modules folder above the policy or in the path; ./paceline is there

A file of the same name in the folder goes before the one that is there.`,
		Example: `  paceline policy build ./tight
  paceline policy build ./tight --out tight.wasm`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, given []string) error {
			module, err := build(cmd.Context(), given[0])
			if err != nil {
				return asMistake(given[0], err)
			}
			to := out
			if to == "" {
				to = filepath.Join(given[0], "policy.wasm")
			}
			if err := os.WriteFile(to, module, 0o644); err != nil { //nolint:gosec // a module is no secret
				return fmt.Errorf("write the module: %w", err)
			}
			m, err := wasm.Check(module, wasm.Limits{})
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "policy %s is in %s: %d bytes, %s\n", m.Capability.Name, to, len(module), m.Digest)
			return nil
		},
	}
	cmd.Flags().StringVar(&out, "out", "", "file of the module (default: policy.wasm in the folder)")
	return cmd
}

func newTestCommand() *cobra.Command {
	var o kit.Options
	cmd := &cobra.Command{
		Use:   "test DIR",
		Short: "Run a policy's own tests, build it and judge the module",
		Long: `Run what tests a folder's policy has, those of Go and Rust; then build it, and judge the module as verify does. The exit code is 1 when something
fails.`,
		Example: `  paceline policy test ./tight`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, given []string) error {
			l, err := of(given[0])
			if err != nil {
				return err
			}
			s, err := newStage(given[0], l)
			if err != nil {
				return err
			}
			defer s.close()
			if l.test != nil {
				s.tell = cmd.OutOrStdout()
				if err := l.test(cmd.Context(), given[0], s); err != nil {
					return fmt.Errorf("test %s: %w", given[0], err)
				}
				s.tell = nil
			}
			module, err := s.build(cmd.Context(), l)
			if err != nil {
				return asMistake(given[0], err)
			}
			r, err := kit.Run(cmd.Context(), module, o)
			if err != nil {
				return err
			}
			tellReport(cmd.OutOrStdout(), &r)
			return failed(&r)
		},
	}
	cmd.Flags().Uint64Var(&o.Seed, "seed", 1, "what the tables are drawn from")
	cmd.Flags().IntVar(&o.Rounds, "rounds", 0, "tables of each scene (default 6)")
	return cmd
}
