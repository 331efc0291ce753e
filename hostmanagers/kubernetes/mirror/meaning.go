package mirror

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/paceline-sched/paceline/core/workload"
)

// Meaning is what a word of Kubernetes means for a run.
type Meaning struct {
	State  workload.RunState
	Reason workload.Reason
	// Doubtful words may mend themselves: they count only once they have stood for Config.StartGrace.
	Doubtful bool
}

// Source is where a word of Kubernetes stands.
type Source string

// The sources.
const (
	FromPod        Source = "pod"        // status.reason of a pod that failed
	FromTerminated Source = "terminated" // the reason of a container that ended
	FromWaiting    Source = "waiting"    // the reason of a container that has not started
	FromDisruption Source = "disruption" // the reason of the condition DisruptionTarget
	FromRefusal    Source = "refusal"    // the API server's reason to refuse a pod
)

// Word is one word that Kubernetes uses, where it uses it.
type Word struct {
	Source Source
	Text   string
}

var (
	launchFailed  = Meaning{State: workload.RunFailed, Reason: workload.ReasonLaunchFailed}
	maybeFailed   = Meaning{State: workload.RunFailed, Reason: workload.ReasonLaunchFailed, Doubtful: true}
	refused       = Meaning{State: workload.RunLost, Reason: workload.ReasonLaunchRefused}
	hostLost      = Meaning{State: workload.RunLost, Reason: workload.ReasonHostLost}
	emptied       = Meaning{State: workload.RunLost, Reason: workload.ReasonHostReturnedEmpty}
	preempted     = Meaning{State: workload.RunPreempted, Reason: workload.ReasonPreempted}
	deadline      = Meaning{State: workload.RunFailed, Reason: workload.ReasonDeadline}
	memory        = Meaning{State: workload.RunFailed, Reason: workload.ReasonMemoryExceeded}
	exited        = Meaning{State: workload.RunFailed, Reason: workload.ReasonExited}
	deletedByThem = Meaning{State: workload.RunLost, Reason: workload.ReasonNotFound}
)

// words is the one table from the words of Kubernetes to a run's state and reason. What a task did itself has failed and uses up a retry; what
// the cluster did to it is lost and does not.
var words = map[Word]Meaning{
	// A kubelet admits no pod that its node has no room for, whatever the API server let through.
	{FromPod, "OutOfcpu"}:                           refused,
	{FromPod, "OutOfmemory"}:                        refused,
	{FromPod, "OutOfephemeral-storage"}:             refused,
	{FromPod, "OutOfpods"}:                          refused,
	{FromPod, "NodePorts"}:                          {State: workload.RunLost, Reason: workload.ReasonPortTaken},
	{FromPod, "HostPortConflict"}:                   {State: workload.RunLost, Reason: workload.ReasonPortTaken},
	{FromPod, "NodeAffinity"}:                       launchFailed,
	{FromPod, "NodeName"}:                           refused,
	{FromPod, "TaintToleration"}:                    refused,
	{FromPod, "UnexpectedAdmissionError"}:           refused,
	{FromPod, "InsufficientResourceError"}:          refused,
	{FromPod, "TopologyAffinityError"}:              refused,
	{FromPod, "AppArmor"}:                           launchFailed,
	{FromPod, "SysctlForbidden"}:                    launchFailed,
	{FromPod, "PodOSSelectorNodeLabelDoesNotMatch"}: launchFailed,
	{FromPod, "PodOSNotSupported"}:                  launchFailed,
	{FromPod, "Evicted"}:                            hostLost,
	{FromPod, "Preempting"}:                         preempted,
	{FromPod, "NodeLost"}:                           hostLost,
	{FromPod, "NodeShutdown"}:                       hostLost,
	{FromPod, "Shutdown"}:                           hostLost,
	{FromPod, "Terminated"}:                         hostLost, // a node that shut down gracefully
	{FromPod, "DeadlineExceeded"}:                   deadline,

	{FromTerminated, "OOMKilled"}:              memory,
	{FromTerminated, "Completed"}:              exited, // with a code other than 0
	{FromTerminated, "Error"}:                  exited,
	{FromTerminated, "DeadlineExceeded"}:       deadline,
	{FromTerminated, "ContainerCannotRun"}:     launchFailed,
	{FromTerminated, "StartError"}:             launchFailed,
	{FromTerminated, "ContainerStatusUnknown"}: emptied, // its kubelet came back without it

	{FromWaiting, "ErrImagePull"}:               maybeFailed,
	{FromWaiting, "ImagePullBackOff"}:           maybeFailed,
	{FromWaiting, "ImageInspectError"}:          maybeFailed,
	{FromWaiting, "RegistryUnavailable"}:        maybeFailed,
	{FromWaiting, "SignatureValidationFailed"}:  maybeFailed,
	{FromWaiting, "CreateContainerConfigError"}: maybeFailed,
	{FromWaiting, "CreateContainerError"}:       maybeFailed,
	{FromWaiting, "RunContainerError"}:          maybeFailed,
	{FromWaiting, "CreatePodSandboxError"}:      maybeFailed,
	{FromWaiting, "PreCreateHookError"}:         maybeFailed,
	{FromWaiting, "PreStartHookError"}:          maybeFailed,
	{FromWaiting, "PostStartHookError"}:         maybeFailed,
	{FromWaiting, "CrashLoopBackOff"}:           maybeFailed, // of a sidecar; nothing else is started again
	{FromWaiting, "InvalidImageName"}:           launchFailed,
	{FromWaiting, "ErrImageNeverPull"}:          launchFailed,

	{FromDisruption, "PreemptionByScheduler"}:        preempted,
	{FromDisruption, "DeletionByTaintManager"}:       hostLost,
	{FromDisruption, "EvictionByEvictionAPI"}:        hostLost, // its host is drained
	{FromDisruption, "DeletionByPodGC"}:              hostLost,
	{FromDisruption, "TerminationByKubelet"}:         hostLost,
	{FromDisruption, "DeletionByDeviceTaintManager"}: hostLost,

	{FromRefusal, string(metav1.StatusReasonForbidden)}:             launchFailed,
	{FromRefusal, string(metav1.StatusReasonInvalid)}:               launchFailed,
	{FromRefusal, string(metav1.StatusReasonBadRequest)}:            launchFailed,
	{FromRefusal, string(metav1.StatusReasonNotFound)}:              launchFailed, // there is no such namespace
	{FromRefusal, string(metav1.StatusReasonRequestEntityTooLarge)}: launchFailed,
	{FromRefusal, string(metav1.StatusReasonMethodNotAllowed)}:      launchFailed,
	{FromRefusal, string(metav1.StatusReasonNotAcceptable)}:         launchFailed,
	{FromRefusal, string(metav1.StatusReasonUnsupportedMediaType)}:  launchFailed,
	{FromRefusal, string(metav1.StatusReasonGone)}:                  launchFailed,
	{FromRefusal, string(metav1.StatusReasonAlreadyExists)}:         launchFailed, // and it is a stranger's
	{FromRefusal, RefusedByQuota}:                                   refused,
	{FromRefusal, RefusedNamespaceEnds}:                             launchFailed,
}

// The refusals that the API server has one reason for, StatusReasonForbidden, and that are not the same.
const (
	RefusedByQuota       = "quota"
	RefusedNamespaceEnds = "namespace is being deleted"
)

// Look finds what a word means. A word that is not in the table means nothing.
func Look(source Source, text string) (Meaning, bool) {
	m, ok := words[Word{source, text}]
	if !ok && source == FromPod && len(text) > 5 && text[:5] == "OutOf" { // of an extended resource
		return refused, true
	}
	return m, ok
}
