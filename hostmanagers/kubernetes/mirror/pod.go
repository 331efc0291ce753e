package mirror

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/workload"
)

// MainContainer is the name of the container whose end is its run's.
const MainContainer = "main"

// Key is a pod's uid, in few bytes.
type Key [16]byte

// keyOf packs a uid. One that is no UUID is hashed: it is compared only.
func keyOf(uid string) Key {
	var k Key
	plain := strings.ReplaceAll(uid, "-", "")
	if len(plain) != hex.EncodedLen(len(k)) {
		sum := sha256.Sum256([]byte(uid))
		return Key(sum[:16])
	}
	if _, err := hex.Decode(k[:], []byte(plain)); err != nil {
		sum := sha256.Sum256([]byte(uid))
		return Key(sum[:16])
	}
	return k
}

// Pod is what counts of a pod. Of a foreign one that is what it takes.
type Pod struct {
	Key   Key
	Node  string // "": it waits for one
	Over  bool   // it has ended, and takes nothing
	Takes Demand

	// Own pods are runs of this cell; the rest is theirs alone.
	Own            bool
	Run            workload.RunID
	UID, Namespace string
	Epoch          uint64 // under which it was created; 0: that is not said
	Devices        []int
	Facts          Facts
}

// Facts are what is known of how a run's pod fares.
type Facts struct {
	Phase      corev1.PodPhase
	Reason     string
	Message    string
	Disruption string        // the reason of the condition that says that the cluster ends it
	Deleted    time.Time     // when its deletion was asked for; zero: it was not
	Grace      time.Duration // then: how long it may take to end, as was said last
	Main       Container
	Other      Container // another one that has failed, or cannot start
	OtherName  string
	Probed     bool // its kubelet ends it when its health check fails
	At         time.Time
}

// Container is where a container stands.
type Container struct {
	Waiting string // why it has not started
	Message string
	Running bool
	Ready   bool
	Ended   bool
	Code    int32
	Signal  int32
	Reason  string // of its end
	At      time.Time
}

// ReadPod takes in what counts of a pod.
func (c *Config) ReadPod(p *corev1.Pod) Pod {
	out := Pod{
		Key: keyOf(string(p.UID)), Node: p.Spec.NodeName,
		Over: p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed,
	}
	if p.Labels[LabelOwner] == c.Owner {
		if id, err := workload.ParseRunID(p.Name); err == nil {
			out.Own, out.Run = true, id
			out.Epoch, _ = strconv.ParseUint(p.Labels[LabelEpoch], 10, 64) // nonsense is none
			out.UID, out.Namespace = string(p.UID), strings.Clone(p.Namespace)
			out.Devices = readDevices(p.Annotations[AnnotationDevices])
			out.Facts = readFacts(p)
		}
	}
	if !out.Over {
		out.Takes = demandOf(&p.Spec)
	}
	return out
}

func readDevices(text string) []int {
	if text == "" {
		return nil
	}
	var out []int
	for part := range strings.SplitSeq(text, ",") {
		if d, err := strconv.Atoi(part); err == nil && d >= 0 && d < maxGPUs && len(out) < maxGPUs {
			out = append(out, d)
		}
	}
	return out
}

func readFacts(p *corev1.Pod) Facts {
	f := Facts{Phase: p.Status.Phase, Reason: p.Status.Reason, Message: cut(p.Status.Message), At: p.CreationTimestamp.Time}
	if p.DeletionTimestamp != nil {
		f.Deleted = p.DeletionTimestamp.Time
		if g := p.DeletionGracePeriodSeconds; g != nil {
			f.Grace = time.Duration(min(max(*g, 0), int64(maxGrace/time.Second))) * time.Second
			f.Deleted = f.Deleted.Add(-f.Grace)
		}
		f.At = f.Deleted
	}
	for i := range p.Status.Conditions {
		if c := &p.Status.Conditions[i]; c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue {
			f.Disruption = c.Reason
			if f.Message == "" {
				f.Message = cut(c.Message)
			}
		}
	}
	for i := range p.Spec.Containers {
		if p.Spec.Containers[i].Name == MainContainer {
			f.Probed = p.Spec.Containers[i].LivenessProbe != nil
		}
	}
	for i := range p.Status.ContainerStatuses {
		s := &p.Status.ContainerStatuses[i]
		if s.Name == MainContainer || len(p.Status.ContainerStatuses) == 1 {
			f.Main = readContainer(s)
		} else {
			f.note(s)
		}
	}
	for i := range p.Status.InitContainerStatuses {
		f.note(&p.Status.InitContainerStatuses[i])
	}
	if !f.Main.At.IsZero() {
		f.At = f.Main.At
	}
	return f
}

// note keeps the first container beside the main one that has failed or cannot start.
func (f *Facts) note(s *corev1.ContainerStatus) {
	c := readContainer(s)
	_, stuck := Look(FromWaiting, c.Waiting)
	if f.OtherName == "" && (stuck || c.Ended && c.Code != 0) {
		f.Other, f.OtherName = c, s.Name
	}
}

func readContainer(s *corev1.ContainerStatus) Container {
	c := Container{Ready: s.Ready}
	switch {
	case s.State.Terminated != nil:
		t := s.State.Terminated
		c.Ended, c.Code, c.Signal, c.Reason, c.Message, c.At = true, t.ExitCode, t.Signal, t.Reason, cut(t.Message), t.FinishedAt.Time
	case s.State.Running != nil:
		c.Running, c.At = true, s.State.Running.StartedAt.Time
	case s.State.Waiting != nil:
		c.Waiting, c.Message = s.State.Waiting.Reason, cut(s.State.Waiting.Message)
	}
	return c
}

// cut bounds a message.
func cut(s string) string {
	if len(s) <= driver.MaxMessage {
		return strings.Clone(s)
	}
	s = s[:driver.MaxMessage]
	for len(s) > 0 && !utf8.ValidString(s) {
		s = s[:len(s)-1]
	}
	return strings.Clone(s)
}

// Verdict is what facts mean for a run.
type Verdict struct {
	Meaning
	Healthy  bool
	ExitCode int32
	Signal   int32
	Message  string
	At       time.Time
}

// The signals that exit codes stand for: a container runtime tells of signal n as 128 + n.
const (
	signalBase = 128
	lastSignal = 31
	sigKill    = 9
	sigTerm    = 15
)

// Judge says what the facts mean. killed: Paceline asked for the pod's deletion. gone: the pod is no more, and these are the last facts.
func (f *Facts) Judge(killed, gone bool) Verdict {
	over := f.Phase == corev1.PodSucceeded || f.Phase == corev1.PodFailed
	if !over && !gone {
		return f.living()
	}
	v := f.ended(over)
	v.At = f.At
	// What ended before its deletion was asked for was not killed. The clocks of pods have seconds.
	before := over && f.Main.Ended && (f.Deleted.IsZero() || f.Main.At.Before(f.Deleted))
	if killed && !before {
		v.Meaning = Meaning{State: workload.RunKilled}
		v.Signal = signalOf(&f.Main)
		if v.Signal != 0 {
			v.ExitCode = 0
		}
		v.Message = ""
	}
	return v
}

// living judges a pod that has not ended.
func (f *Facts) living() Verdict {
	v := Verdict{At: f.At}
	switch {
	case !f.Deleted.IsZero():
		v.State = workload.RunKilling
	case f.Main.Running:
		v.State, v.Healthy = workload.RunRunning, f.Main.Ready
	case f.Main.Ended:
		v.State = workload.RunRunning // its sidecars are being ended
	default:
		v.State = workload.RunStarting
		for _, c := range []*Container{&f.Main, &f.Other} {
			if m, ok := Look(FromWaiting, c.Waiting); ok {
				v.Meaning, v.Message = m, say(c.Waiting, c.Message)
				if c == &f.Other {
					v.Message = cut(fmt.Sprintf("container %q: %s", f.OtherName, v.Message))
				}
				break
			}
		}
	}
	return v
}

// overDisk reports whether a pod was evicted because it wrote more than its own limits allow, which is its own doing. An eviction for the sake of the node
// has the same words everywhere but in its message.
func (f *Facts) overDisk() bool {
	if f.Phase != corev1.PodFailed || f.Reason != "Evicted" {
		return false
	}
	for _, words := range []string{"exceeded its local ephemeral storage limit", "local storage usage exceeds the total limit", "Usage of EmptyDir volume"} {
		if strings.Contains(f.Message, words) {
			return true
		}
	}
	return false
}

// ended judges a pod that has ended, or is gone, by its own word.
func (f *Facts) ended(over bool) Verdict {
	if over && f.overDisk() {
		return Verdict{Meaning: exited, ExitCode: f.Main.Code, Message: say(f.Reason, f.Message)}
	}
	if f.Disruption != "" && (!over || !f.Main.Ended || f.Main.Code != 0) {
		if m, ok := Look(FromDisruption, f.Disruption); ok {
			return Verdict{Meaning: m, ExitCode: f.Main.Code, Message: say(f.Disruption, f.Message)}
		}
	}
	if m, ok := Look(FromPod, f.Reason); ok && f.Phase == corev1.PodFailed {
		return Verdict{Meaning: m, Message: say(f.Reason, f.Message)}
	}
	switch {
	case f.Main.Ended && (over || f.Deleted.IsZero()):
		return f.exited()
	case f.Phase == corev1.PodSucceeded:
		return Verdict{Meaning: Meaning{State: workload.RunSucceeded, Reason: workload.ReasonExited}}
	case over && f.Other.Ended:
		return Verdict{
			Meaning: exited, ExitCode: f.Other.Code,
			Message: cut(fmt.Sprintf("container %q ended with exit code %d: %s", f.OtherName, f.Other.Code, say(f.Other.Reason, f.Other.Message))),
		}
	case over:
		return Verdict{Meaning: launchFailed, Message: say(f.Reason, f.Message)}
	}
	return Verdict{Meaning: deletedByThem, ExitCode: f.Main.Code, Message: deletedMessage}
}

const deletedMessage = "its pod was deleted by somebody else"

// exited judges the end of the main container.
func (f *Facts) exited() Verdict {
	c := &f.Main
	v := Verdict{ExitCode: c.Code, Message: cut(c.Message)}
	m, ok := Look(FromTerminated, c.Reason)
	signal := signalOf(c)
	deleted := !f.Deleted.IsZero() && !c.At.Before(f.Deleted)
	switch {
	case deleted && ok && m == launchFailed: // what is deleted while it starts may be told as what cannot
		v.Meaning, v.Message = deletedByThem, deletedMessage
	case ok && m != exited:
		v.Meaning, v.Message = m, say(c.Reason, c.Message)
	case c.Code == 0 && c.Signal == 0:
		v.Meaning = Meaning{State: workload.RunSucceeded, Reason: workload.ReasonExited}
	case f.Probed && f.Deleted.IsZero() && (signal == sigKill || signal == sigTerm):
		v.Meaning, v.Signal = Meaning{State: workload.RunFailed, Reason: workload.ReasonUnhealthy}, signal
		v.Message = fmt.Sprintf("ended by signal %d, as its kubelet does when the health check fails too often", signal)
	case deleted && signal != 0:
		v.Meaning, v.Signal, v.Message = deletedByThem, signal, deletedMessage
	case signal != 0:
		v.Meaning, v.Signal = Meaning{State: workload.RunFailed, Reason: workload.ReasonSignalled}, signal
	default:
		v.Meaning = exited
	}
	return v
}

func signalOf(c *Container) int32 {
	switch {
	case c.Signal != 0:
		return c.Signal
	case c.Code > signalBase && c.Code <= signalBase+lastSignal:
		return c.Code - signalBase
	}
	return 0
}

func say(reason, message string) string {
	switch {
	case message == "":
		return cut(reason)
	case reason == "" || strings.Contains(message, reason):
		return cut(message)
	}
	return cut(reason + ": " + message)
}
