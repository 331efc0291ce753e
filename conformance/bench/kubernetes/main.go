// Command kubernetes measures Paceline on a real Kubernetes API server beside kube-scheduler on the same machine, in one run: the same pods on the
// same nodes, with kubelets that kwok plays and without, and the rate at which the API server takes pods that are bound already. It prints tables in
// Markdown, the bars last.
//
// It owns which runs are made, what of them is measured and what is asked of it. Every run has a control plane of its own, so that none
// inherits what another wrote. It fails when a bar is missed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"strconv"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "kubernetes:", err)
		os.Exit(1) //nolint:forbidigo // main ends the process
	}
}

// settings are what is measured.
type settings struct {
	binary string
	nodes  []int
	pods   int
	view   int
	rounds int
	only   *regexp.Regexp
	out    io.Writer
}

// viewPods is the default number of pods of the run that measures memory and restarts.
const viewPods = 50_000

func run(ctx context.Context, args []string, out io.Writer) error {
	fs := flag.NewFlagSet("kubernetes", flag.ContinueOnError)
	binary := fs.String("paceline", "bin/paceline", "the `program` that is measured")
	nodes := fs.String("nodes", "1000,5000", "numbers of nodes")
	pods := fs.Int("pods", 10_000, "number of pods")
	view := fs.Int("view", viewPods, "number of pods, on the highest number of nodes, of the run that measures memory and restarts; 0: no such run")
	rounds := fs.Int("rounds", 3, "number of times that each run is made, in turn with the others; medians are compared")
	only := fs.String("only", ".", "make the runs that match this `regexp`: limit, scheduler-after, scheduler-while, paceline, each with /1000 or /5000, and /kwok; view, lists")
	driver := fs.String("driver", "", "only connect a driver to the cluster of this kubeconfig, and say what that takes; the run that measures memory calls itself so")
	way := fs.String("list", watched, "with -driver: how it lists: watches, pages")
	owner := fs.String("owner", "", "with -driver: whose pods are its runs")
	if err := fs.Parse(args); err != nil {
		return err //nolint:wrapcheck // the flag package says what is wrong with which flag
	}
	if *way != watched && *way != paged {
		return fmt.Errorf("-list: use %s or %s, not %q", watched, paged, *way)
	}
	if *driver != "" {
		return connectDriver(ctx, *driver, *owner, *way, out)
	}
	s := settings{binary: *binary, pods: *pods, view: *view, rounds: *rounds, out: out}
	var err error
	if s.only, err = regexp.Compile(*only); err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	for word := range strings.SplitSeq(*nodes, ",") {
		n, err := strconv.Atoi(word)
		if err != nil || n < 1 {
			return fmt.Errorf("-nodes: %q is no number of nodes", word)
		}
		s.nodes = append(s.nodes, n)
	}
	if s.pods < 1 || s.view < 0 || s.rounds < 1 {
		return errors.New("-pods and -rounds must be at least 1, and -view not negative")
	}
	return s.measure(ctx)
}

func (s *settings) measure(ctx context.Context) error {
	var all []*figures
	for _, played := range []bool{false, true} {
		for _, nodes := range s.nodes {
			batch, err := s.sideBySide(ctx, nodes, played)
			if err != nil {
				return err
			}
			if len(batch) > 0 {
				s.table(batch)
			}
			all = append(all, batch...)
		}
	}
	if s.view > 0 && s.only.MatchString("view") {
		if err := s.fullView(ctx); err != nil {
			return fmt.Errorf("view: %w", err)
		}
	}
	if s.view > 0 && s.only.MatchString("lists") {
		if err := s.lists(ctx); err != nil {
			return fmt.Errorf("lists: %w", err)
		}
	}
	return s.judge(all)
}

// sideBySide makes all runs on so many nodes. They take turns, so that what the machine does meanwhile meets all of them.
func (s *settings) sideBySide(ctx context.Context, nodes int, played bool) ([]*figures, error) {
	made := make([][]*figures, len(ways))
	for round := range s.rounds {
		for n, way := range ways {
			f := &figures{way: way.name, what: way.what, nodes: nodes, played: played, pods: s.pods}
			if !s.only.MatchString(f.name()) {
				continue
			}
			fmt.Fprintf(os.Stderr, "%s, %d of %d\n", f.name(), round+1, s.rounds)
			f.machine = pace()
			if err := s.once(ctx, f, way.do); err != nil {
				return nil, fmt.Errorf("%s: %w", f.name(), err)
			}
			fmt.Fprintf(os.Stderr, "  %.0f pods/s, the machine's pace before was %.0f\n", f.rate, f.machine)
			made[n] = append(made[n], f)
		}
	}
	var all []*figures
	for _, rounds := range made {
		if len(rounds) > 0 {
			all = append(all, median(rounds))
		}
	}
	return all, nil
}
