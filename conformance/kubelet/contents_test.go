package kubelet_test

import (
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/paceline-sched/paceline/conformance/controlplane"
	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/execution"
	"github.com/paceline-sched/paceline/core/workload"
)

// content is a story whose point is what a program finds in its container, or says.
type content struct {
	name string
	play func(s *stage)
}

// says is a run whose output is looked at.
func says(want string, change func(*driver.Launch)) func(*stage) {
	return func(s *stage) {
		run := s.launch(change)
		if end := s.end(run); end.State != workload.RunSucceeded {
			s.Errorf("it ended as %+v", end)
		}
		if got := s.output(run, false); got != want {
			s.Errorf("it wrote %q, want %q", got, want)
		}
	}
}

func contents() []content {
	user := int64(4321)
	return []content{
		{"environment", says("FROM_IMAGE=yes\nOURS=$(PATH) $$ 100%\nPACELINE_HOST=real-1\nPACELINE_PORT_WEB_1=20444\nNONE=(none)\n", func(l *driver.Launch) {
			l.Command, l.Env = does("show", "FROM_IMAGE", "OURS", "PACELINE_HOST", "PACELINE_PORT_WEB_1", "NONE"), map[string]string{"OURS": "$(PATH) $$ 100%"}
			l.Ports = []driver.AssignedPort{{Name: "web-1", Number: 20444}}
		})},
		{"words", says("$(PATH)\n\ntwo words\n", command("say", "$(PATH)", "", "two words"))},
		{"entry point", says("", func(l *driver.Launch) { // of the image, whose program wants words
			l.Command = nil
			l.Execution.Kubernetes = &execution.Kubernetes{Patch: []byte(`{"spec": {"containers": [{"name": "main", "args": ["exit", "0"]}]}}`)}
		})},
		{"root", says("user=0 group=0 dir=/\n", command("who"))},
		{"user of the image", says("user=1234 group=0 dir=/etc\n", func(l *driver.Launch) {
			l.Command, l.Execution.Main = does("who"), execution.Container{Image: controlplane.UserImage, WorkDir: "/etc"}
		})},
		{"user of the job", says("user=4321 group=0 dir=/\n", func(l *driver.Launch) {
			l.Command, l.Execution.Kubernetes = does("who"), &execution.Kubernetes{RunAsUser: &user, RunAsNonRoot: true}
		})},
		{"read-only", func(s *stage) {
			run := s.launch(func(l *driver.Launch) {
				l.Command, l.Execution.Main.ReadOnly = does("write", "/tmp/x", "y"), true
			})
			if end := s.end(run); end.State != workload.RunFailed || !strings.Contains(end.Message, "read-only file system") {
				s.Errorf("a write to a read-only root ended as %+v", end)
			}
		}},
		{"volumes", volumes},
		{"init containers", says("/data/one: first\n/data/two: second\n", func(l *driver.Launch) {
			l.Command = does("read", "/data/one", "/data/two")
			mounts := []execution.Mount{{Volume: "data", Path: "/data"}}
			image := l.Execution.Main.Image
			l.Execution.Main.Mounts = mounts
			l.Execution.Volumes = []execution.Volume{{Name: "data", Scratch: true}}
			l.Execution.Inits = []execution.Container{
				{Name: "one", Image: image, Command: does("write", "/data/one", "first"), Mounts: mounts},
				{Name: "two", Image: image, Command: does("exists", "/data/one", "then", "write", "/data/two", "second"), Mounts: mounts},
			}
		})},
		{"output", output},
		{"crowd", crowd},
		{"output of what is not there", func(s *stage) {
			if _, err := s.driver.ReadLog(s.Context(), workload.RunID{Job: workload.JobID{9}}, driver.LogRequest{}); err == nil {
				s.Error("the output of an unknown run was read")
			}
		}},
	}
}

// volumes are read in a container: what the cluster keeps, and what the node has.
func volumes(s *stage) {
	api, ctx := s.client, s.Context()
	if _, err := api.ConfigMaps(s.space).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings"}, Data: map[string]string{"color": "blue"}}, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	if _, err := api.Secrets(s.space).Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "keys"}, StringData: map[string]string{"door": "1234"}}, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	dir := s.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "host"), []byte("of the node"), 0o600); err != nil {
		s.Fatal(err)
	}
	says("/settings/color: blue\n/keys/door: 1234\n/host/host: of the node\n/scratch/mine: mine\n", func(l *driver.Launch) {
		l.Command = does("write", "/scratch/mine", "mine", "then", "read", "/settings/color", "/keys/door", "/host/host", "/scratch/mine", "then", "write", "/host/back", "from inside")
		l.Execution.Volumes = []execution.Volume{
			{Name: "settings", ConfigMap: "settings"}, {Name: "keys", Secret: "keys"}, {Name: "host", HostPath: dir}, {Name: "scratch", Scratch: true},
		}
		for _, v := range l.Execution.Volumes {
			l.Execution.Main.Mounts = append(l.Execution.Main.Mounts, execution.Mount{Volume: v.Name, Path: "/" + v.Name})
		}
	})(s)
	if back, err := os.ReadFile(filepath.Join(dir, "back")); string(back) != "from inside" {
		s.Errorf("the node got %q: %v", back, err)
	}
}

// output is read while the run writes it, from a place within, and once it is over.
func output(s *stage) {
	dir, ctx := s.TempDir(), s.Context()
	run := s.launch(func(l *driver.Launch) {
		l.Command = does("say", "begin", "then", "await", "/host/go", "then", "say", "middle", "end")
		l.Execution.Volumes = []execution.Volume{{Name: "host", HostPath: dir}}
		l.Execution.Main.Mounts = []execution.Mount{{Volume: "host", Path: "/host"}}
	})
	r, err := s.driver.ReadLog(ctx, run, driver.LogRequest{Follow: true}) // which waits for the start
	if err != nil {
		s.Fatal(err)
	}
	first := make([]byte, len("begin\n"))
	if _, err := io.ReadFull(r, first); err != nil || string(first) != "begin\n" {
		s.Fatalf("the first that is read is %q: %v", first, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		s.Fatal(err)
	}
	rest, err := io.ReadAll(r)
	if err != nil || string(rest) != "middle\nend\n" {
		s.Errorf("the rest is %q: %v", rest, err)
	}
	_ = r.Close()
	s.end(run)
	const whole = "begin\nmiddle\nend\n"
	for offset, want := range map[int64]string{0: whole, 6: whole[6:], -4: "end\n", int64(len(whole)) + 5: ""} {
		r, err := s.driver.ReadLog(ctx, run, driver.LogRequest{Offset: offset})
		if err != nil {
			s.Fatal(err)
		}
		got, err := io.ReadAll(r)
		_ = r.Close()
		if err != nil || string(got) != want {
			s.Errorf("from %d on it is %q: %v", offset, got, err)
		}
	}
}

// crowd is many runs at once, on both nodes, each of which ends once and as it should.
func crowd(s *stage) {
	const size = 30
	runs := make([]workload.RunID, size)
	for i := range runs {
		runs[i] = s.launch(func(l *driver.Launch) { l.Command, l.Host = does("exit", strconv.Itoa(i)), s.nodes[i%len(s.nodes)] })
	}
	for i, run := range runs {
		if end := s.end(run); int(end.ExitCode) != i {
			s.Errorf("run %d ended as %+v", i, end)
		}
		ends := 0
		for _, said := range s.sink.history(run) {
			if said.State.Traits().Terminal {
				ends++
			}
		}
		if ends != 1 {
			s.Errorf("run %d ended %d times", i, ends)
		}
	}
}
