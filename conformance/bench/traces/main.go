// Command traces replays public traces of clusters through whole cells, with paceline sim run, and sets what comes out beside what is asked: it prints
// the tables of docs/performance.md and docs/sim-run.md, each as soon as its runs have ended.
//
// It owns which runs are made and what is asked of them. What a run does is paceline's. It fails when a run fails, not when a bar is
// missed: the tables say so.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// section is one table or more, and the runs that they take.
type section struct {
	name string
	make func(r *runner) error
}

var sections = []section{{"swf", swf}, {"pack", pack}, {"google", google}, {"philly", philly}}

func main() {
	if err := run(context.Background(), os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "traces:", err)
		os.Exit(1) //nolint:forbidigo // main ends the process
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	fs := flag.NewFlagSet("traces", flag.ContinueOnError)
	binary := fs.String("paceline", "bin/paceline", "the `program` that runs the traces")
	folder := fs.String("traces", "", "`folder` with hpc/, inventory/ and tasks/")
	only := fs.String("only", ".", "run the sections that match this `regexp`: swf, pack, google, philly")
	if err := fs.Parse(args); err != nil {
		return err //nolint:wrapcheck // the flag package says what is wrong with which flag
	}
	wanted, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	if *folder == "" {
		return errors.New("-traces names no folder: give the one with hpc/, inventory/ and tasks/")
	}
	r := &runner{folder: *folder, out: out, call: func(args ...string) ([]byte, error) {
		cmd := exec.CommandContext(ctx, *binary, args...)
		cmd.Stderr = os.Stderr
		return cmd.Output()
	}}
	for _, s := range sections {
		if !wanted.MatchString(s.name) {
			continue
		}
		if err := s.make(r); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

// runner makes runs and writes tables.
type runner struct {
	folder string
	out    io.Writer
	call   func(args ...string) ([]byte, error) // paceline
}

// file is one of the folder's.
func (r *runner) file(name string) string { return filepath.Join(r.folder, filepath.FromSlash(name)) }

// into runs paceline sim and reads its report.
func (r *runner) into(report any, args ...string) error {
	args = append(append([]string{"sim"}, args...), "-o", "json")
	began := time.Now()
	fmt.Fprintln(os.Stderr, "paceline", strings.Join(args, " "))
	data, err := r.call(args...)
	if err != nil {
		return fmt.Errorf("paceline %s: %w", strings.Join(args, " "), err)
	}
	if err := json.Unmarshal(data, report); err != nil {
		return fmt.Errorf("the report of paceline %s: %w", strings.Join(args, " "), err)
	}
	fmt.Fprintf(os.Stderr, "  took %.0f s\n", time.Since(began).Seconds())
	return nil
}

// table writes rows as Markdown; the first is the head.
func (r *runner) table(rows [][]string) error {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for n, cell := range row {
			widths[n] = max(widths[n], len(cell))
		}
	}
	var b strings.Builder
	for n, row := range rows {
		for c, cell := range row {
			fmt.Fprintf(&b, "| %-*s ", widths[c], cell)
		}
		b.WriteString("|\n")
		if n == 0 {
			for range row {
				b.WriteString("| --- ")
			}
			b.WriteString("|\n")
		}
	}
	_, err := fmt.Fprintln(r.out, b.String())
	return err
}

var barHead = []string{"what", "measured", "bar", ""}

// bar is one row of a table with barHead.
func bar(what string, measured float64, digits int, asked string, met bool) []string {
	mark := "met"
	if !met {
		mark = "MISSED"
	}
	return []string{what, number(measured, digits), asked, mark}
}

// number writes so many digits behind the point, and the thousands apart.
func number(v float64, digits int) string {
	text := fmt.Sprintf("%.*f", digits, v)
	whole, rest, _ := strings.Cut(text, ".")
	for at := len(whole) - 3; at > 0 && whole[at-1] != '-'; at -= 3 {
		whole = whole[:at] + "," + whole[at:]
	}
	if rest == "" {
		return whole
	}
	return whole + "." + rest
}
