package kubelet

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/paceline-sched/paceline/core/driver"
)

// What of a message differs from one machine or moment to the next.
var (
	numbers = regexp.MustCompile(`\b\d+\b`)
	ids     = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{64}`)
	runs    = regexp.MustCompile(`\b[a-z0-9]{26}-\d+-\d+-\d+\b`)
	nodes   = regexp.MustCompile(`\breal-\d+\b`)
)

// Account is what became of a run, as text: what was told of it, and the last that was seen of its pod (nil: nothing was).
func Account(told []driver.Status, pod *corev1.Pod) string {
	var out strings.Builder
	for i := range told {
		s := &told[i]
		words := []string{"told", s.State.String()}
		if s.Reason.String() != "" {
			words = append(words, s.Reason.String())
		}
		if s.Healthy {
			words = append(words, "healthy")
		}
		if s.State.Traits().Terminal {
			words = append(words, fmt.Sprintf("exit %d signal %d", s.ExitCode, s.Signal))
		}
		line(&out, words, s.Message)
	}
	if pod == nil {
		line(&out, []string{"no pod"}, "")
		return out.String()
	}
	line(&out, []string{"pod", string(pod.Status.Phase), pod.Status.Reason}, pod.Status.Message)
	if pod.DeletionTimestamp != nil {
		line(&out, []string{"being deleted"}, "")
	}
	conditions := slices.Clone(pod.Status.Conditions)
	slices.SortFunc(conditions, func(a, b corev1.PodCondition) int { return strings.Compare(string(a.Type), string(b.Type)) })
	for i := range conditions {
		c := &conditions[i]
		line(&out, []string{"condition", string(c.Type), string(c.Status), c.Reason}, c.Message)
	}
	for i := range pod.Status.InitContainerStatuses {
		container(&out, "init container", &pod.Status.InitContainerStatuses[i])
	}
	for i := range pod.Status.ContainerStatuses {
		container(&out, "container", &pod.Status.ContainerStatuses[i])
	}
	return out.String()
}

func container(out *strings.Builder, kind string, c *corev1.ContainerStatus) {
	words, message := []string{kind, c.Name}, ""
	switch s := &c.State; {
	case s.Waiting != nil:
		words, message = append(words, "waiting", s.Waiting.Reason), s.Waiting.Message
	case s.Running != nil:
		words = append(words, "running")
	case s.Terminated != nil:
		words = append(words, "terminated", s.Terminated.Reason, fmt.Sprintf("exit %d signal %d", s.Terminated.ExitCode, s.Terminated.Signal))
		message = s.Terminated.Message
	}
	words = append(words, fmt.Sprintf("ready %t started %t restarts %d", c.Ready, c.Started != nil && *c.Started, c.RestartCount))
	line(out, words, message)
}

// line writes one line. Within a message numbers, ids and ends of lines are not told.
func line(out *strings.Builder, words []string, message string) {
	text := strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == "" }), " ")
	if message != "" {
		message = runs.ReplaceAllString(ids.ReplaceAllString(message, "ID"), "RUN")
		message = numbers.ReplaceAllString(nodes.ReplaceAllString(message, "NODE"), "N")
		text += ": " + strings.ReplaceAll(strings.TrimSpace(message), "\n", " / ")
	}
	out.WriteString(text + "\n")
}
