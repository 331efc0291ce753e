package mirror_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/mirror"
)

// expected is what each word must come to, said once more and by hand: WORD STATE REASON, a '?' for what may mend itself.
var expected = map[mirror.Source]string{
	mirror.FromPod: `OutOfcpu LOST LAUNCH_REFUSED|OutOfmemory LOST LAUNCH_REFUSED|OutOfephemeral-storage LOST LAUNCH_REFUSED
OutOfpods LOST LAUNCH_REFUSED|NodePorts LOST PORT_TAKEN|HostPortConflict LOST PORT_TAKEN|NodeAffinity FAILED LAUNCH_FAILED
NodeName LOST LAUNCH_REFUSED|TaintToleration LOST LAUNCH_REFUSED|UnexpectedAdmissionError LOST LAUNCH_REFUSED
InsufficientResourceError LOST LAUNCH_REFUSED|TopologyAffinityError LOST LAUNCH_REFUSED|AppArmor FAILED LAUNCH_FAILED
SysctlForbidden FAILED LAUNCH_FAILED|PodOSSelectorNodeLabelDoesNotMatch FAILED LAUNCH_FAILED|PodOSNotSupported FAILED LAUNCH_FAILED
Evicted LOST HOST_LOST|Preempting PREEMPTED PREEMPTED|NodeLost LOST HOST_LOST|NodeShutdown LOST HOST_LOST|Shutdown LOST HOST_LOST
Terminated LOST HOST_LOST|DeadlineExceeded FAILED DEADLINE`,
	mirror.FromTerminated: `OOMKilled FAILED MEMORY_EXCEEDED|Completed FAILED EXITED|Error FAILED EXITED|DeadlineExceeded FAILED DEADLINE
ContainerCannotRun FAILED LAUNCH_FAILED|StartError FAILED LAUNCH_FAILED|ContainerStatusUnknown LOST HOST_RETURNED_EMPTY`,
	mirror.FromWaiting: `ErrImagePull FAILED LAUNCH_FAILED ?|ImagePullBackOff FAILED LAUNCH_FAILED ?|ImageInspectError FAILED LAUNCH_FAILED ?
RegistryUnavailable FAILED LAUNCH_FAILED ?|SignatureValidationFailed FAILED LAUNCH_FAILED ?|CreateContainerConfigError FAILED LAUNCH_FAILED ?
CreateContainerError FAILED LAUNCH_FAILED ?|RunContainerError FAILED LAUNCH_FAILED ?|CreatePodSandboxError FAILED LAUNCH_FAILED ?
PreCreateHookError FAILED LAUNCH_FAILED ?|PreStartHookError FAILED LAUNCH_FAILED ?|PostStartHookError FAILED LAUNCH_FAILED ?
CrashLoopBackOff FAILED LAUNCH_FAILED ?|InvalidImageName FAILED LAUNCH_FAILED|ErrImageNeverPull FAILED LAUNCH_FAILED`,
	mirror.FromDisruption: `PreemptionByScheduler PREEMPTED PREEMPTED|DeletionByTaintManager LOST HOST_LOST|EvictionByEvictionAPI LOST HOST_LOST
DeletionByPodGC LOST HOST_LOST|TerminationByKubelet LOST HOST_LOST|DeletionByDeviceTaintManager LOST HOST_LOST`,
	mirror.FromRefusal: `Forbidden FAILED LAUNCH_FAILED|Invalid FAILED LAUNCH_FAILED|BadRequest FAILED LAUNCH_FAILED|NotFound FAILED LAUNCH_FAILED
RequestEntityTooLarge FAILED LAUNCH_FAILED|MethodNotAllowed FAILED LAUNCH_FAILED|NotAcceptable FAILED LAUNCH_FAILED
UnsupportedMediaType FAILED LAUNCH_FAILED|Gone FAILED LAUNCH_FAILED|AlreadyExists FAILED LAUNCH_FAILED|quota LOST LAUNCH_REFUSED
namespace_is_being_deleted FAILED LAUNCH_FAILED`,
}

// say makes a cluster say a word of a run. What keeps a pod from starting is told once the pod is gone.
func say(t *testing.T, word mirror.Word) (w *world, doubtful bool) {
	t.Helper()
	w = newWorld(t)
	if word.Source == mirror.FromRefusal {
		w.launch(1)
		w.answer(w.take(), mirror.Answer{Refused: word.Text, Message: "because"})
		return w, false
	}
	p := w.started(1)
	switch word.Source {
	case mirror.FromPod:
		p.Status.Phase, p.Status.Reason, p.Status.Message = corev1.PodFailed, word.Text, "because"
	case mirror.FromTerminated:
		p.Status.Phase = corev1.PodFailed
		p.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: word.Text, ExitCode: 1, Message: "because"}}
	case mirror.FromWaiting:
		p.Status.Phase = corev1.PodPending
		p.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: word.Text, Message: "because"}}
		w.changed(p)
		if doubtful = len(w.calls) == 0; doubtful {
			w.pass(mirrorConfig.StartGrace)
		}
		if w.last(1).State != workload.RunStarting {
			t.Errorf("%v is told before the pod is gone", word)
		}
		if c := w.take(); c.Launch != nil || c.Grace != 1 {
			t.Errorf("%v is followed by %+v", word, c)
		}
		w.gone(p)
		return w, doubtful
	case mirror.FromDisruption:
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: word.Text, Message: "because"}}
		w.gone(p)
		return w, false
	case mirror.FromRefusal: // said above
	}
	w.changed(p)
	return w, false
}

// TestEveryWord goes through the table entry by entry, each as a cluster would say it.
func TestEveryWord(t *testing.T) {
	t.Parallel()
	seen := 0
	for source, text := range expected {
		for _, entry := range strings.FieldsFunc(text, func(r rune) bool { return r == '|' || r == '\n' }) {
			fields := strings.Fields(entry)
			word := mirror.Word{Source: source, Text: strings.ReplaceAll(fields[0], "_", " ")}
			if _, ok := mirror.Words()[word]; !ok {
				t.Errorf("the table does not have %v", word)
				continue
			}
			seen++
			w, doubtful := say(t, word)
			if doubtful != (len(fields) > 3) {
				t.Errorf("%v is doubtful: %v", word, doubtful)
			}
			s := w.last(1)
			if s.State.String() != fields[1] || s.Reason.String() != fields[2] {
				t.Errorf("%v comes to %s %s, want %s %s", word, s.State, s.Reason, fields[1], fields[2])
			}
			if !strings.Contains(s.Message, "because") {
				t.Errorf("of %v people are told %q", word, s.Message)
			}
		}
	}
	if n := len(mirror.Words()); n != seen {
		t.Errorf("the table has %d words, of which %d were tried", n, seen)
	}
	if m, ok := mirror.Look(mirror.FromPod, "OutOfexample.com/widget"); !ok || m.Reason != workload.ReasonLaunchRefused {
		t.Errorf("an extended resource that is out comes to %v", m)
	}
}

// A pod that is evicted because it wrote more than it may has failed by itself: tried again elsewhere without end, it would fill one node after the other.
func TestAnEvictionByItsOwnFault(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]workload.RunState{
		`Container main exceeded its local ephemeral storage limit "1Gi". `:                  workload.RunFailed,
		"Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. ":      workload.RunFailed,
		`Usage of EmptyDir volume "tmp" exceeds the limit "1Gi". `:                           workload.RunFailed,
		"The node was low on resource: memory. Container main was using 2Gi, request is 1Gi": workload.RunLost,
	} {
		f := mirror.Facts{Phase: corev1.PodFailed, Reason: "Evicted", Message: message, Disruption: "TerminationByKubelet", Main: mirror.Container{Ended: true, Code: 137}}
		if v := f.Judge(false, false); v.State != want || v.Message == "" {
			t.Errorf("%q comes to %s: %q", message, v.State, v.Message)
		}
	}
}
