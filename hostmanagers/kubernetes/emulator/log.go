package emulator

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator/cluster"
)

// log answers with a container's output.
func (e *Emulator) log(w http.ResponseWriter, r *request) error {
	var object cluster.Object
	var err error
	e.Do(func(c *cluster.Cluster) { object, err = c.Get(r.resource, r.key()) })
	if err != nil {
		return err
	}
	p, ok := object.(*corev1.Pod)
	if !ok {
		return apierrors.NewBadRequest("only pods have output")
	}
	container, err := r.container(p)
	if err != nil {
		return err
	}
	previous, _ := strconv.ParseBool(r.query.Get("previous")) // anything else is no
	process := e.process(p.UID, p, container, previous)
	if process == "" {
		return noOutput(p, container, previous)
	}
	w.Header().Set("Content-Type", "text/plain")
	if e.processes == nil {
		return nil // there is no process, and it printed nothing
	}
	for _, unknown := range []string{"timestamps", "sinceSeconds", "sinceTime"} {
		if v := r.query.Get(unknown); v != "" && v != "false" {
			w.Header().Add("Warning", fmt.Sprintf(`299 - "the emulator does not know when a line was written: %s has no effect"`, unknown))
		}
	}
	if err := e.pour(w, r, process); err != nil && !errors.Is(err, context.Canceled) {
		return apierrors.NewInternalError(err)
	}
	return nil
}

// pour sends a process' output as a request wants it. An error comes before the first byte.
func (e *Emulator) pour(w http.ResponseWriter, r *request, process string) error {
	follow, _ := strconv.ParseBool(r.query.Get("follow")) // anything else is no
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	tail, err := strconv.Atoi(r.query.Get("tailLines"))
	if err != nil || tail < 0 {
		tail = -1
	}
	skip := 0
	if tail >= 0 {
		lines, err := e.lines(ctx, process)
		if err != nil {
			return err
		}
		skip = max(0, lines-tail)
	}
	in, err := e.processes.Log(ctx, process, follow)
	if err != nil {
		return err
	}
	defer func() {
		cancel()
		_ = in.Close() // it was read
	}()
	from := bufio.NewReader(in)
	for range skip {
		if err := skipLine(from); err != nil {
			return nil // the output is shorter by now, or nobody waits for it
		}
	}
	var limited io.Reader = from
	if limit, err := strconv.ParseInt(r.query.Get("limitBytes"), 10, 64); err == nil && limit > 0 {
		limited = io.LimitReader(from, limit)
	}
	if _, err := io.Copy(flusher{w, http.NewResponseController(w)}, limited); err != nil && !errors.Is(err, context.Canceled) {
		panic(http.ErrAbortHandler) // net/http's way to cut a connection
	}
	return nil
}

// lines counts the lines that a process has written; the last one may be unfinished.
func (e *Emulator) lines(ctx context.Context, process string) (n int, err error) {
	in, err := e.processes.Log(ctx, process, false)
	if err != nil {
		return 0, err
	}
	defer func() { _ = in.Close() }() // it was read
	for from := bufio.NewReader(in); ; n++ {
		switch _, err := from.Peek(1); {
		case errors.Is(err, io.EOF):
			return n, nil
		case err != nil:
			return 0, err
		}
		if err := skipLine(from); err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
	}
}

// skipLine reads to the end of a line of any length, or of all.
func skipLine(from *bufio.Reader) error {
	for {
		if _, err := from.ReadSlice('\n'); !errors.Is(err, bufio.ErrBufferFull) {
			return err
		}
	}
}

// container is whose output is asked for.
func (r *request) container(p *corev1.Pod) (string, error) {
	var names, inits []string
	for _, c := range p.Spec.Containers {
		names = append(names, c.Name)
	}
	for _, c := range p.Spec.InitContainers {
		inits = append(inits, c.Name)
	}
	name := r.query.Get("container")
	switch {
	case name == "" && len(names) == 1:
		return names[0], nil
	case name == "" && len(inits) > 0:
		return "", apierrors.NewBadRequest(fmt.Sprintf("a container name must be specified for pod %s, choose one of: [%s] or one of the init containers: [%s]", p.Name, strings.Join(names, " "), strings.Join(inits, " ")))
	case name == "":
		return "", apierrors.NewBadRequest(fmt.Sprintf("a container name must be specified for pod %s, choose one of: [%s]", p.Name, strings.Join(names, " ")))
	case !slices.Contains(names, name) && !slices.Contains(inits, name):
		return "", apierrors.NewBadRequest(fmt.Sprintf("container %s is not valid for pod %s", name, p.Name))
	}
	return name, nil
}

// noOutput says why a container has no output.
func noOutput(p *corev1.Pod, container string, previous bool) error {
	if previous {
		return apierrors.NewBadRequest(fmt.Sprintf("previous terminated container %q in pod %q not found", container, p.Name))
	}
	why := "ContainerCreating"
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if s.Name == container && s.State.Waiting != nil && s.State.Waiting.Reason != "" {
			why = s.State.Waiting.Reason
		}
	}
	return apierrors.NewBadRequest(fmt.Sprintf("container %q in pod %q is waiting to start: %s", container, p.Name, why))
}

// flusher sends what it gets at once.
type flusher struct {
	w io.Writer
	c *http.ResponseController
}

func (f flusher) Write(p []byte) (int, error) {
	n, err := f.w.Write(p)
	_ = f.c.Flush() // an answer that nobody gets cannot be flushed
	return n, err
}
