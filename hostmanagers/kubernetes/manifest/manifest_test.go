package manifest_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/execution"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/manifest"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/mirror"
)

var config = manifest.Config{Owner: "us", Epoch: 7, Namespace: "space", DefaultImage: "base", Tolerated: []string{"dedicated"}}

func launch() *driver.Launch {
	user := int64(12)
	return &driver.Launch{
		Run: workload.RunID{Job: workload.JobID{1}, Instance: 2, Generation: 1, Run: 3}, Host: "n1", Command: []string{"serve", "$(X)"},
		Env:     map[string]string{"A": "$(B)", "PACELINE_RUN_ID": "mine"},
		Needs:   map[string]int64{"cpu_milli": 1500, "memory_mib": 512, "gpu_milli": 2000, "example.com/widget": 1},
		Devices: []int{0, 3}, Ports: []driver.AssignedPort{{Name: "web-1", Number: 20001}}, KillGrace: 1500 * time.Millisecond,
		Health: &workload.HealthCheck{HTTP: &workload.HTTPCheck{Port: "web-1", Path: "/ok"}},
		Labels: map[string]string{"team": "a", "note": "two words", mirror.LabelOwner: "them"},
		Execution: &execution.Spec{
			Main:     execution.Container{Image: "web", Pull: execution.PullAlways, Mounts: []execution.Mount{{Volume: "data", Path: "/data"}}, ReadOnly: true},
			Inits:    []execution.Container{{Name: "setup", Image: "s", Command: []string{"x"}}},
			Sidecars: []execution.Container{{Name: "log", Image: "l", Needs: map[string]int64{"cpu_milli": 500}, Env: map[string]string{"A": "own"}}},
			Volumes:  []execution.Volume{{Name: "data", Claim: "disk"}, {Name: "tmp", Scratch: true}},
			Kubernetes: &execution.Kubernetes{
				ServiceAccount: "robot", PullSecrets: []string{"key"}, RunAsUser: &user, RunAsNonRoot: true,
				Patch: []byte(`{"spec": {"priorityClassName": "high", "containers": [{"name": "main", "stdin": true}]}}`),
			},
		},
	}
}

// TestPod looks at all that a launch may ask for.
func TestPod(t *testing.T) {
	t.Parallel()
	p, err := config.Pod(launch(), "nvidia.com/gpu")
	if err != nil {
		t.Fatal(err)
	}
	s, main := &p.Spec, &p.Spec.Containers[0]
	env := map[string]string{}
	for _, v := range main.Env {
		env[v.Name] = v.Value
	}
	for what, ok := range map[string]bool{
		"name":        p.Name == launch().Run.String() && p.Namespace == "space" && s.NodeName == "n1",
		"owner":       p.Labels[mirror.LabelOwner] == "us" && p.Labels[mirror.LabelEpoch] == "7" && p.Labels["team"] == "a" && p.Annotations["note"] == "two words",
		"devices":     p.Annotations[mirror.AnnotationDevices] == "0,3",
		"restarts":    s.RestartPolicy == corev1.RestartPolicyNever && *s.TerminationGracePeriodSeconds == 2,
		"main":        main.Name == mirror.MainContainer && main.Image == "web" && main.ImagePullPolicy == corev1.PullAlways && main.Command[1] == "$$(X)",
		"rest":        main.Resources.Requests.Cpu().MilliValue() == 1000 && main.Resources.Limits.Memory().Value() == 512<<20,
		"gpus":        main.Resources.Limits["nvidia.com/gpu"] == main.Resources.Requests["nvidia.com/gpu"] && main.Resources.Limits.Name("nvidia.com/gpu", "").Value() == 2,
		"environment": env["A"] == "$$(B)" && env["PACELINE_PORT_WEB_1"] == "20001" && env["PACELINE_RUN_ID"] == p.Name && env["PACELINE_HOST"] == "n1",
		"port":        main.Ports[0].HostPort == 20001,
		"probe":       main.LivenessProbe.HTTPGet.Port.IntVal == 20001 && main.ReadinessProbe.FailureThreshold == 3 && main.LivenessProbe.PeriodSeconds == 10,
		"read-only":   *main.SecurityContext.ReadOnlyRootFilesystem && main.SecurityContext.Privileged == nil,
		"init":        s.InitContainers[0].Name == "setup" && s.InitContainers[0].RestartPolicy == nil,
		"sidecar":     *s.InitContainers[1].RestartPolicy == corev1.ContainerRestartPolicyAlways && s.InitContainers[1].Resources.Requests.Cpu().MilliValue() == 500,
		"volumes":     s.Volumes[0].PersistentVolumeClaim.ClaimName == "disk" && s.Volumes[1].EmptyDir != nil && main.VolumeMounts[0].MountPath == "/data",
		"account":     s.ServiceAccountName == "robot" && s.ImagePullSecrets[0].Name == "key" && *s.SecurityContext.RunAsUser == 12 && *s.SecurityContext.RunAsNonRoot,
		"patch":       s.PriorityClassName == "high" && main.Stdin && len(s.Containers) == 1,
		"tolerations": len(s.Tolerations) == 3 && s.Tolerations[2].Key == "dedicated",
	} {
		if !ok {
			t.Errorf("%s: the pod is %+v", what, p)
		}
	}
	l := launch()
	l.Revocable = true
	if p, err = config.Pod(l, "nvidia.com/gpu"); err != nil {
		t.Fatal(err)
	}
	if r := p.Spec.Containers[0].Resources; !r.Requests.Cpu().IsZero() || r.Limits.Cpu().MilliValue() != 1000 {
		t.Errorf("what is revocable requests %v of %v", r.Requests, r.Limits)
	}
}

// TestWhatNoPodCanHave goes through what is refused, with the words for the user.
func TestWhatNoPodCanHave(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*driver.Launch){
		"whole GPUs":        func(l *driver.Launch) { l.Needs = map[string]int64{"gpu_milli": 500} },
		"no artifacts":      func(l *driver.Launch) { l.Execution.Artifacts = []execution.Artifact{{}} },
		"run_as_user":       func(l *driver.Launch) { l.Execution.User = "me" },
		"privileged":        func(l *driver.Launch) { l.Execution.Main.Privileged = true },
		"path of the host":  func(l *driver.Launch) { l.Execution.Volumes[1] = execution.Volume{Name: "tmp", HostPath: "/"} },
		"volume \"nix\"":    func(l *driver.Launch) { l.Execution.Main.Mounts[0].Volume = "nix" },
		"names the port":    func(l *driver.Launch) { l.Ports = nil },
		"two containers":    func(l *driver.Launch) { l.Execution.Inits[0].Name = "log" },
		"needs a command":   func(l *driver.Launch) { l.Command, l.Execution.Main.Image = nil, "" },
		"only Mesos":        func(l *driver.Launch) { l.Execution.Kubernetes, l.Execution.Mesos = nil, &execution.Mesos{} },
		"apply the job's":   func(l *driver.Launch) { l.Execution.Kubernetes.Patch = []byte("{") },
		"leave these alone": func(l *driver.Launch) { l.Execution.Kubernetes.Patch = []byte(`{"spec": {"nodeName": "other"}}`) },
		"makes a container": func(l *driver.Launch) { l.Execution.Kubernetes.Patch = []byte(`{"spec": {"hostNetwork": true}}`) },
		"patch mounts": func(l *driver.Launch) {
			l.Execution.Kubernetes.Patch = []byte(`{"spec": {"volumes": [{"name": "x", "hostPath": {"path": "/"}}]}}`)
		},
	} {
		l := launch()
		change(l)
		if _, err := config.Pod(l, "nvidia.com/gpu"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	bare := config
	bare.DefaultImage = ""
	if _, err := bare.Pod(&driver.Launch{Command: []string{"x"}}, ""); err == nil {
		t.Error("a command without an image is taken where there is none for it")
	}
}
