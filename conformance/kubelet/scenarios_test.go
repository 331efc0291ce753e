package kubelet_test

import (
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/execution"
	"github.com/paceline-sched/paceline/core/workload"
)

// scenario is a story of one run.
type scenario struct {
	name, about string
	play        func(s *stage) workload.RunID // and then an account is given of the run
	lives       bool                          // it works for a while, so that all that is told of it is the same each time
	alone       bool                          // it disturbs its node, and plays on the second one
	masked      []string                      // lines that begin so have a message that differs each time
	differs     string                        // why emulated kubelets do otherwise
}

// ends is the story of a run that ends by itself.
func ends(change func(*driver.Launch)) func(*stage) workload.RunID {
	return func(s *stage) workload.RunID {
		run := s.launch(change)
		s.end(run)
		return run
	}
}

// works is the story of a run that works, and of what happens then.
func works(change func(*driver.Launch), then func(s *stage, run workload.RunID)) func(*stage) workload.RunID {
	return func(s *stage) workload.RunID {
		run := s.launch(change)
		s.healthy(run)
		then(s, run)
		s.end(run)
		return run
	}
}

func command(words ...string) func(*driver.Launch) {
	return func(l *driver.Launch) { l.Command = does(words...) }
}

func patched(patch string, words ...string) func(*driver.Launch) {
	return func(l *driver.Launch) {
		l.Command = does(words...)
		l.Execution.Kubernetes = &execution.Kubernetes{Patch: []byte(patch)}
	}
}

// checked is a run with a health check that is asked every second.
func checked(check workload.HealthCheck, words ...string) func(*driver.Launch) {
	return func(l *driver.Launch) {
		check.Interval, check.Timeout, check.FailureThreshold = time.Second, 5*time.Second, 2
		l.Command, l.Health = does(words...), &check
		if at := slices.Index(words, "serve"); at >= 0 {
			port, _ := strconv.ParseUint(words[at+1], 10, 16)
			l.Ports = []driver.AssignedPort{{Name: "web", Number: uint16(port)}}
		}
	}
}

var asked = workload.HealthCheck{HTTP: &workload.HTTPCheck{Port: "web", Path: "/"}}

func killed(grace time.Duration) func(*stage, workload.RunID) {
	return func(s *stage, run workload.RunID) { s.kill(run, grace) }
}

func nothing(*stage, workload.RunID) {}

const amply = 20 * time.Second

func scenarios() []scenario {
	return append(endings(), lives()...)
}

// endings are stories of runs that end, or never begin.
func endings() []scenario {
	return []scenario{
		{name: "exit-0", about: "a task that ends with 0", play: ends(command("exit", "0"))},
		{name: "exit-7", about: "a task that ends with 7", play: ends(command("exit", "7"))},
		{name: "last-words", about: "a task that says why it fails", play: ends(command("complain", "no disk", "no hope", "then", "exit", "3"))},
		{
			name: "signal", about: "a task that ends by signal 9; in a pod of one process space, where it is not the shielded first process",
			play: ends(patched(`{"spec": {"shareProcessNamespace": true}}`, "die", "9")),
		},
		{name: "memory", about: "a task that takes more memory than it asked for", play: ends(command("eat", "128"))},
		{
			name: "never-pulled", about: "an image that is not there and must not be pulled",
			play: ends(func(l *driver.Launch) {
				l.Execution.Main = execution.Container{Image: "paceline.test/missing:1", Pull: execution.PullNever}
			}),
		},
		{
			name: "not-pulled", about: "an image that cannot be pulled, and is waited for in vain", masked: []string{"told", "container"},
			play: ends(func(l *driver.Launch) {
				l.Execution.Main = execution.Container{Image: "paceline.invalid/missing:1"}
			}),
		},
		{
			name: "no-program", about: "an image without the command's program", play: ends(func(l *driver.Launch) { l.Command = []string{"/nothing"} }),
			differs: "commands are not looked up in images, which are not emulated",
		},
		{
			name: "not-root", about: "a task that must not be root, of an image that is", masked: []string{"told", "container"},
			play:    ends(patchedUser(&execution.Kubernetes{RunAsNonRoot: true})),
			differs: "users are not emulated, nor are those of images",
		},
		{
			name: "deadline", about: "a pod that is given ten seconds", play: ends(patched(`{"spec": {"activeDeadlineSeconds": 10}}`, "sleep")),
		},
		{
			name: "wrong-node", about: "a pod that its node's labels do not suit", play: ends(patched(`{"spec": {"nodeSelector": {"color": "blue"}}}`, "sleep")),
		},
		{
			name: "init-fails", about: "an init container that ends with 3", play: ends(func(l *driver.Launch) {
				l.Command = does("sleep")
				l.Execution.Inits = []execution.Container{{Name: "setup", Image: l.Execution.Main.Image, Command: does("complain", "no setup", "then", "exit", "3")}}
			}),
		},
		{
			name: "sidecar", about: "a sidecar that is ended when the task has ended", play: ends(func(l *driver.Launch) {
				l.Command = does("exit", "0")
				l.Execution.Sidecars = []execution.Container{{Name: "helper", Image: l.Execution.Main.Image, Command: does("polite")}}
			}),
		},
		{
			name: "out-of-cpu", about: "a node that somebody else has filled", alone: true, play: func(s *stage) workload.RunID {
				n, err := s.client.Nodes().Get(s.Context(), s.node, metav1.GetOptions{})
				if err != nil {
					s.Fatal(err)
				}
				most := n.Status.Allocatable[corev1.ResourceCPU]
				s.foreign("big", resource.NewMilliQuantity(most.MilliValue()-100, resource.DecimalSI).String())
				return ends(func(l *driver.Launch) {
					l.Command, l.Needs["cpu_milli"] = does("sleep"), 200
				})(s)
			},
		},
		{
			name: "port-taken", about: "a port of the node that another pod has", play: func(s *stage) workload.RunID {
				port := func(l *driver.Launch) {
					l.Command, l.Ports = does("sleep"), []driver.AssignedPort{{Name: "p", Number: 20333}}
				}
				s.healthy(s.launch(port))
				return ends(port)(s)
			},
		},
	}
}

func patchedUser(k *execution.Kubernetes) func(*driver.Launch) {
	return func(l *driver.Launch) { l.Command, l.Execution.Kubernetes = does("sleep"), k }
}

// lives are stories of runs that work until something happens.
func lives() []scenario {
	return []scenario{
		{name: "polite-kill", about: "a task that heeds the polite kill", lives: true, play: works(command("polite"), killed(amply))},
		{name: "signalled-kill", about: "a task that the polite kill ends", lives: true, play: works(command("sleep"), killed(amply))},
		{name: "forced-kill", about: "a task that ignores the polite kill", lives: true, play: works(command("deaf"), killed(time.Second))},
		{
			name: "shorter-grace", about: "a second kill with a shorter grace, which a kubelet need not heed any more", lives: true,
			play: works(command("deaf"), func(s *stage, run workload.RunID) {
				first := 5 * time.Second
				if s.clock != nil {
					first = ever // the second kill must come before its end
				}
				s.kill(run, first)
				s.await("the first kill", func() bool { return s.seen.last(run.String()).DeletionTimestamp != nil })
				s.kill(run, time.Second)
			}),
		},
		{name: "healthy", about: "a service that is well until it is killed", lives: true, play: works(checked(asked, "serve", "20080"), killed(amply))},
		{
			name: "exec-check", about: "a task whose health is asked by a command", lives: true,
			play: works(checked(workload.HealthCheck{Exec: does("exists", "/tmp/well")}, "write", "/tmp/well", "", "then", "polite"), killed(amply)),
		},
		{name: "sick", about: "a service that falls sick, and is deaf to its kubelet", play: works(func(l *driver.Launch) {
			checked(asked, "deafen", "then", "serve", "20081", "6000")(l)
			l.KillGrace = time.Second
		}, nothing)},
		{
			name: "sick-polite", about: "a service that falls sick, and ends with 0 when its kubelet asks it to",
			play: works(checked(asked, "serve", "20082", "6000"), nothing),
		},
		{name: "evicted", about: "a pod that is evicted through the API", lives: true, play: works(command("sleep"), func(s *stage, run workload.RunID) {
			err := s.client.Pods(s.space).EvictV1(s.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: run.String()}})
			if err != nil {
				s.Fatal(err)
			}
		})},
		{name: "deleted", about: "a pod that somebody else deletes", lives: true, play: works(command("sleep"), func(s *stage, run workload.RunID) {
			if err := s.client.Pods(s.space).Delete(s.Context(), run.String(), metav1.DeleteOptions{}); err != nil {
				s.Fatal(err)
			}
		})},
		{name: "driver-restarted", about: "a run that a new driver finds, and kills", play: works(command("sleep"), func(s *stage, run workload.RunID) {
			s.disconnect()
			s.connect()
			s.healthy(run)
			s.kill(run, amply)
		})},
		{name: "ended-while-away", about: "a run that ends while no driver is there", play: works(command("sleep"), func(s *stage, run workload.RunID) {
			s.disconnect()
			if err := s.client.Pods(s.space).Delete(s.Context(), run.String(), metav1.DeleteOptions{}); err != nil {
				s.Fatal(err)
			}
			s.await("its deletion", func() bool {
				_, err := s.client.Pods(s.space).Get(s.Context(), run.String(), metav1.GetOptions{})
				return err != nil
			})
			s.connect()
			if err := s.driver.Reconcile(s.Context(), []workload.RunID{run}); err != nil {
				s.Fatal(err)
			}
		})},
		{
			name: "kubelet-restarted", about: "a run that goes on while its kubelet is restarted, and is killed then", alone: true,
			play: works(command("sleep"), func(s *stage, run workload.RunID) {
				before := s.seen.last(run.String()).Status.ContainerStatuses[0].ContainerID
				s.down(s, s.node)
				s.up(s, s.node)
				other := s.launch(command("exit", "0")) // the kubelet works again
				s.end(other)
				if after := s.seen.last(run.String()).Status.ContainerStatuses[0].ContainerID; after != before {
					s.Errorf("container %s is %s now", before, after)
				}
				s.kill(run, amply)
			}),
		},
		{
			name: "killed-without-kubelet", about: "a kill that waits for the kubelet", alone: true,
			play: works(command("sleep"), func(s *stage, run workload.RunID) {
				s.down(s, s.node)
				s.kill(run, amply)
				s.await("the kill", func() bool { return s.seen.last(run.String()).DeletionTimestamp != nil })
				s.up(s, s.node)
			}),
		},
		{
			name: "node-deleted", about: "a node that is deleted, with a run on it, and comes back", alone: true,
			differs: "a node that was deleted is not registered again by its kubelet",
			play: works(command("sleep", "until", "the", "node", "is", "back"), func(s *stage, run workload.RunID) {
				if err := s.client.Nodes().Delete(s.Context(), s.node, metav1.DeleteOptions{}); err != nil {
					s.Fatal(err)
				}
				s.end(run)
				s.down(s, s.node)
				s.up(s, s.node) // a kubelet registers its node when it starts
				s.await("a host that takes work", func() bool { h, _ := s.sink.host(s.node); return h.Ready })
			}),
		},
		{
			name: "cordoned", about: "a run on a node that is cordoned, which goes on, and then is drained", alone: true,
			play: works(command("sleep"), func(s *stage, run workload.RunID) {
				s.cordon(true)
				s.await("a host that takes nothing", func() bool { h, _ := s.sink.host(s.node); return !h.Ready })
				if last := s.sink.last(run); last.State != workload.RunRunning {
					s.Errorf("the run is %+v", last)
				}
				if err := s.client.Pods(s.space).EvictV1(s.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: run.String()}}); err != nil {
					s.Fatal(err)
				}
				s.end(run)
				s.cordon(false)
				s.await("a host that takes work", func() bool { h, _ := s.sink.host(s.node); return h.Ready })
			}),
		},
	}
}
