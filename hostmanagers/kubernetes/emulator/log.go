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

// maxTail bounds the lines that are held back to find the last ones.
const maxTail = 100_000

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
	follow, _ := strconv.ParseBool(r.query.Get("follow")) // anything else is no
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	in, err := e.processes.Log(ctx, process, follow)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	defer func() { _ = in.Close() }() // it was read
	if err := r.pour(w, in); err != nil && !errors.Is(err, context.Canceled) {
		panic(http.ErrAbortHandler) // net/http's way to cut a connection
	}
	return nil
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

// pour copies output as a request wants it.
func (r *request) pour(w http.ResponseWriter, in io.Reader) error {
	out := io.Writer(flusher{w, http.NewResponseController(w)})
	if limit, err := strconv.ParseInt(r.query.Get("limitBytes"), 10, 64); err == nil && limit > 0 {
		in = io.LimitReader(in, limit)
	}
	tail, err := strconv.Atoi(r.query.Get("tailLines"))
	if err != nil || tail < 0 {
		_, err := io.Copy(out, in)
		return err
	}
	follow, _ := strconv.ParseBool(r.query.Get("follow")) // anything else is no
	if follow {
		_, err := io.Copy(out, in) // what has been is not told from what comes
		return err
	}
	var lines []string
	reader := bufio.NewReader(in)
	for {
		line, err := reader.ReadString('\n')
		if line != "" {
			lines = append(lines, line)
			if len(lines) > min(tail, maxTail) {
				lines = lines[1:]
			}
		}
		if err != nil {
			break
		}
	}
	_, err = io.WriteString(out, strings.Join(lines, ""))
	return err
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
