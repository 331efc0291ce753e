// Package rules is what can be done with admission rules without a server: packing, testing and trying them out.
//
// It owns the commands for that and their output. They judge with the same engine as a server does, but know of pools and clusters only what
// they are told. Each runs on the goroutine of its caller.
package rules

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/paceline-sched/paceline/cmd/paceline/internal/jobfile"
	"github.com/paceline-sched/paceline/core/api/admit"
	"github.com/paceline-sched/paceline/core/api/auth"
	"github.com/paceline-sched/paceline/core/api/spec"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/policies/rego"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

// Pack reads a bundle: a directory, or a tar.gz file.
func Pack(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return rego.Pack(os.DirFS(path))
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // it is only read
	raw, err := io.ReadAll(io.LimitReader(file, rego.MaxArchiveBytes+1))
	if err == nil && len(raw) > rego.MaxArchiveBytes {
		err = fmt.Errorf("it is longer than %d bytes", rego.MaxArchiveBytes)
	}
	return raw, err
}

// directory opens the directory of a bundle.
func directory(path string) (fs.FS, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, errors.New("it is no directory: name the one that holds the bundle's .rego files")
	}
	return os.DirFS(path), nil
}

// NewCommands returns the verbs `test`, `eval` and `sign`.
func NewCommands() []*cobra.Command {
	return []*cobra.Command{newTestCommand(), newEvalCommand(), newSignCommand()}
}

// mistakeError tells the command line that the user has to mend something.
type mistakeError struct{ error }

func (mistakeError) Mistake() {}

func newTestCommand() *cobra.Command {
	var verbose bool
	cmd := &cobra.Command{
		Use:   "test DIR...",
		Short: "Run the tests of bundles, without a server",
		Long: `Run the tests of bundles: rules whose names begin with test_, in files whose names end in _test.rego. The rules are compiled as a server
does it, so what passes here can be pushed. Tests are no part of what is pushed.`,
		Example: `  paceline admission test ./labels`,
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, dirs []string) error {
			failed, total := 0, 0
			for _, dir := range dirs {
				files, err := directory(dir)
				if err != nil {
					return mistakeError{fmt.Errorf("bundle %s: %w", dir, err)}
				}
				results, err := rego.Test(cmd.Context(), files)
				if err != nil {
					return mistakeError{fmt.Errorf("bundle %s: %w", dir, err)}
				}
				for i := range results {
					total++
					if !tell(cmd.OutOrStdout(), &results[i], verbose) {
						failed++
					}
				}
			}
			if failed > 0 {
				return fmt.Errorf("%d of %d tests failed", failed, total)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%d tests passed\n", total)
			return nil
		},
	}
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "tell of tests that pass, too")
	return cmd
}

func tell(w io.Writer, r *rego.TestResult, verbose bool) bool {
	word := "PASS"
	switch {
	case r.Skipped:
		word = "SKIP"
	case !r.Passed:
		word = "FAIL"
	}
	if verbose || word != "PASS" {
		fmt.Fprintf(w, "%s  %s  %s\n", word, r.Name, r.At)
		if r.Output != "" {
			fmt.Fprintf(w, "      %s\n", strings.ReplaceAll(r.Output, "\n", "\n      "))
		}
	}
	return r.Passed || r.Skipped
}

// scene is what a job is judged in, as flags tell.
type scene struct {
	bundles                             []string
	principal, tenant, role, pool, cell string
	reservation, entitlement            map[string]int64
	usage, demand                       map[string]int64
	plan                                bool
}

func newEvalCommand() *cobra.Command {
	s := &scene{}
	cmd := &cobra.Command{
		Use:   "eval FILE...",
		Short: "Show what bundles say of the jobs of files, without a server",
		Long: `Judge every job of the files by the bundles, all of them together as on a server, and show what is said. There is no pool and no cluster
here: what rules ask of them, the flags have to tell. The exit code is 1 when a job would be refused.`,
		Example: `  paceline admission eval --bundle ./labels job.yaml
  paceline admission eval --bundle ./gpu-quota --pool /ml/vision --usage gpu_milli=6000 --tenant vision job.yaml`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, files []string) error { return s.eval(cmd, files) },
	}
	f := cmd.Flags()
	f.StringArrayVarP(&s.bundles, "bundle", "b", nil, "a bundle, as a directory or tar.gz file; may be repeated")
	f.StringVar(&s.principal, "principal", "somebody", "who submits")
	f.StringVar(&s.tenant, "tenant", "", "his tenant")
	f.StringVar(&s.role, "role", "submitter@/", "his role, as role@pool")
	f.StringVar(&s.pool, "pool", "", "pool of jobs whose file names none")
	f.StringVar(&s.cell, "cell", "default", "name of the cell")
	f.StringToInt64Var(&s.reservation, "reservation", nil, "the pool's reservation, as in cpu_milli=4000,gpu_milli=8000")
	f.StringToInt64Var(&s.entitlement, "entitlement", nil, "what the pool may use now")
	f.StringToInt64Var(&s.usage, "usage", nil, "what the pool uses")
	f.StringToInt64Var(&s.demand, "demand", nil, "what the pool's jobs use and wait for")
	f.BoolVar(&s.plan, "plan", false, "ask as job plan does, not as job run")
	if err := cmd.MarkFlagRequired("bundle"); err != nil {
		panic(err) // the flag is there
	}
	return cmd
}

func (s *scene) eval(cmd *cobra.Command, files []string) error {
	judge, err := s.judge()
	if err != nil {
		return mistakeError{err}
	}
	refused := 0
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			return mistakeError{err}
		}
		documents, err := jobfile.Parse(file, raw, func() *pacelinev1.JobSpec { return &pacelinev1.JobSpec{} })
		if err != nil {
			return err
		}
		for i := range documents {
			request, err := s.request(documents[i].Message)
			if err != nil {
				return mistakeError{fmt.Errorf("%s: %w", file, err)}
			}
			verdict, err := judge.Judge(cmd.Context(), request)
			if err != nil {
				return err
			}
			if !describe(cmd.OutOrStdout(), request, verdict) {
				refused++
			}
		}
	}
	if refused > 0 {
		return fmt.Errorf("%d jobs would be refused", refused)
	}
	return nil
}

// evalLimit is patient: whoever tries rules out wants to see what they say.
const evalLimit = 10 * time.Second

func (s *scene) judge() (*rego.Judge, error) {
	judge, err := rego.New(rego.Config{Limit: evalLimit})
	if err != nil {
		return nil, err
	}
	var bundles []admit.Bundle
	for _, path := range s.bundles {
		archive, err := Pack(path)
		if err != nil {
			return nil, fmt.Errorf("read the bundle %s: %w", path, err)
		}
		bundles = append(bundles, admit.Bundle{Name: path, Digest: sha256.Sum256(archive), Archive: archive})
	}
	return judge, judge.Load(1, bundles)
}

func (s *scene) request(in *pacelinev1.JobSpec) (*admit.Request, error) {
	names, err := resource.NewNames(nil)
	if err != nil {
		return nil, err
	}
	for name := range in.GetTask().GetResources().GetExtended() {
		if _, err := names.Intern(name); err != nil {
			return nil, err
		}
	}
	role, err := auth.ParseBinding(s.role)
	if err != nil {
		return nil, err
	}
	path := in.GetPool()
	if path == "" {
		path = s.pool
	}
	if path == "" {
		path = spec.DefaultPool
	}
	job, err := spec.ToJob(in, spec.Scope{Field: "spec", Owner: s.principal, Names: names})
	if err != nil {
		return nil, err
	}
	r := &admit.Request{
		Operation: admit.Create, Spec: in, Job: job, Names: names, Cell: s.cell, Now: time.Now().UnixNano(), State: &scheduler.CellView{},
		Principal: &auth.Principal{Name: s.principal, Tenant: s.tenant, Bindings: []auth.Binding{role}},
		Pool:      scheduler.PoolView{Path: path, Parent: spec.ParentPath(path), Pool: respool.Pool{Name: path[strings.LastIndexByte(path, '/')+1:]}},
	}
	if s.plan {
		r.Operation = admit.Plan
	}
	return r, errors.Join(
		fill(&r.Pool.Reservation, s.reservation, names), fill(&r.Pool.Entitlement, s.entitlement, names),
		fill(&r.Pool.Usage, s.usage, names), fill(&r.Pool.Demand, s.demand, names),
	)
}

func fill(v *resource.Vector, amounts map[string]int64, names *resource.Names) error {
	for name, n := range amounts {
		kind, ok := names.Lookup(name)
		if !ok {
			return fmt.Errorf("resource %q is not known: use cpu_milli, memory_mib, disk_mib, gpu_milli, or one that the job asks for", name)
		}
		v[kind] = n
	}
	return nil
}

// describe writes a verdict and reports whether the job would be accepted.
func describe(w io.Writer, r *admit.Request, v *admit.Verdict) bool {
	line := func(format string, args ...any) { fmt.Fprintf(w, format+"\n", args...) }
	job := strings.TrimSuffix(r.Pool.Path, "/") + "/" + r.Job.Name
	refused := len(v.Denials) > 0 || v.Failure != nil
	if refused {
		line("job %s would be refused", job)
	} else {
		line("job %s would be accepted", job)
	}
	for _, m := range v.Denials {
		line("  denied by %s: %s", m.Bundle, m.Text)
	}
	if f := v.Failure; f != nil {
		line("  not judged by %s: %s", f.Bundle, f.Reason)
	}
	for _, m := range v.Warnings {
		line("  warning of %s: %s", m.Bundle, m.Text)
	}
	for _, c := range v.Changes {
		before := c.Before
		if before == "" {
			before = "absent"
		}
		line("  changed by %s: %s: %s -> %s", c.Bundle, c.Field, before, c.After)
	}
	return !refused
}

func newSignCommand() *cobra.Command {
	var key, id string
	cmd := &cobra.Command{
		Use:   "sign DIR",
		Short: "Sign a bundle's directory, without a server",
		Long: `Sign a bundle: its directory gets a file .signatures.json, which is pushed with it. The key is an Ed25519 private key in PEM; servers take the
bundle whose --admission-keys has the public key as ID.pem. Any change of the rules or their data wants a new signature.`,
		Example: `  openssl genpkey -algorithm ed25519 -out ops.key
  openssl pkey -in ops.key -pubout -out keys/ops.pem
  paceline admission sign ./labels --key ops.key --id ops`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, dirs []string) error {
			raw, err := os.ReadFile(key)
			if err != nil {
				return mistakeError{fmt.Errorf("read the key: %w", err)}
			}
			files, err := directory(dirs[0])
			if err != nil {
				return mistakeError{fmt.Errorf("sign the bundle %s: %w", dirs[0], err)}
			}
			signatures, err := rego.Sign(files, raw, id)
			if err != nil {
				return mistakeError{fmt.Errorf("sign the bundle %s: %w", dirs[0], err)}
			}
			if err := os.WriteFile(filepath.Join(dirs[0], rego.SignaturesFile), signatures, 0o644); err != nil { //nolint:gosec // a signature is public
				return fmt.Errorf("write the signature: %w", err)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "bundle %s is signed by %s\n", dirs[0], id)
			return nil
		},
	}
	cmd.Flags().StringVar(&key, "key", "", "file with the private key")
	cmd.Flags().StringVar(&id, "id", "", "what servers call the key")
	for _, name := range []string{"key", "id"} {
		if err := cmd.MarkFlagRequired(name); err != nil {
			panic(err) // the flag is there
		}
	}
	return cmd
}
