package kubernetes_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator/cluster"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/mirror"
)

// write has the cluster write something that no view is about, so often.
func (w *world) write(times int) {
	w.emulator.Do(func(c *cluster.Cluster) {
		for range times {
			if _, err := c.Create(cluster.Namespaces, "", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "written-"}}, false); err != nil {
				w.t.Error(err)
			}
		}
	})
}

// label changes a pod of somebody else.
func (w *world) label(name, value string) {
	w.emulator.Do(func(c *cluster.Cluster) {
		_, err := c.Update(cluster.Pods, cluster.Key{Namespace: "default", Name: name}, "", func(o cluster.Object) (cluster.Object, error) {
			o.SetLabels(map[string]string{"test": value})
			return o, nil
		}, false)
		if err != nil {
			w.t.Error(err)
		}
	})
}

// vanishes has a pod gone without a grace.
func (w *world) vanishes(name string) {
	w.emulator.Do(func(c *cluster.Cluster) {
		at := int64(0)
		if _, _, err := c.Delete(cluster.Pods, cluster.Key{Namespace: "default", Name: name}, cluster.Deletion{GraceSeconds: &at}); err != nil {
			w.t.Error(err)
		}
	})
}

func (w *world) revision() (r int64) {
	w.emulator.Do(func(c *cluster.Cluster) { r = c.Revision() })
	return r
}

// written are the changes of pods after a revision, each by the pod and its version.
func (w *world) written(after int64) map[string]bool {
	out := map[string]bool{}
	w.emulator.Do(func(c *cluster.Cluster) {
		changes, err := c.Changes(cluster.Pods, after, 1<<20)
		if err != nil {
			w.t.Error(err)
		}
		for _, change := range changes {
			out[string(change.Object.GetUID())+" "+change.Object.GetResourceVersion()] = true
		}
	})
	return out
}

// restored takes the API server away, sets it back to a revision, and has it back once it has come further than it was. It reports whether by chance a pod got the
// same version in both histories.
func (w *world) restored(revision int64, meanwhile func()) (chance bool) {
	w.t.Helper()
	was, old := w.revision(), w.written(revision)
	w.away(true)
	w.pass(time.Second)
	w.emulator.Do(func(c *cluster.Cluster) {
		if err := c.Restore(revision); err != nil {
			w.t.Error(err)
		}
	})
	if meanwhile != nil {
		meanwhile()
	}
	w.pass(10 * time.Second)
	w.write(int(max(0, was-w.revision())) + 10)
	w.takeCounts()
	w.away(false)
	w.pass(time.Minute)
	for change := range w.written(revision) {
		chance = chance || old[change]
	}
	return chance
}

// A server that comes back from a backup, and is looked at only when it has come further than it was, is listed anew: what it does not have is lost, and what it has is
// known, whatever it was that was heard of it last. If the backup has all that was heard, the watch goes on, and hears what has another history.
func TestAServerThatWasSetBackAndWentOn(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		before, after func(w *world) // the backup
		meanwhile     func(w *world) // before the server is back
		runs, others  int
		lists         int
	}{
		"pods came": {
			after: func(w *world) { w.launch(3, 5, nil); w.crowds("came") },
			runs:  3, others: 4, lists: 1,
		},
		"a pod changed": {
			after: func(w *world) { w.crowds("came"); w.pass(time.Second); w.label("other-1", "changed") },
			runs:  3, others: 4, lists: 1,
		},
		"a pod changed, and is changed again": {
			after:     func(w *world) { w.crowds("came"); w.pass(time.Second); w.label("other-1", "changed") },
			meanwhile: func(w *world) { w.write(30); w.label("other-1", "again") },
			runs:      3, others: 4, lists: 1,
		},
		"a pod changed, and is deleted": {
			after:     func(w *world) { w.crowds("came"); w.pass(time.Second); w.label("other-1", "changed") },
			meanwhile: func(w *world) { w.vanishes("other-1") },
			runs:      3, others: 3, lists: 1,
		},
		"a pod went": {
			after: func(w *world) { w.vanishes("other-1") },
			runs:  3, others: 4, lists: 1,
		},
		"pods went": {
			after: func(w *world) { w.crowds("came"); w.pass(time.Second); w.vanishes("other-1"); w.vanishes("came") },
			runs:  3, others: 4, lists: 1,
		},
		"nothing happened since": {
			after:     func(w *world) { w.write(50) },
			meanwhile: func(w *world) { w.crowds("came", "stays"); w.vanishes("other-2"); w.label("other-1", "changed") },
			runs:      3, others: 5, lists: 0,
		},
		"pods went, and the last of them goes again": {
			after:     func(w *world) { w.vanishes("other-1"); w.vanishes("other-2") },
			meanwhile: func(w *world) { w.write(30); w.vanishes("other-2") },
			runs:      3, others: 3, lists: 1,
		},
		"so many went that it does not look for them": {
			before: func(w *world) {
				for i := range 12 {
					w.crowds(fmt.Sprint("many-", i))
				}
				w.pass(time.Minute)
			},
			after: func(w *world) {
				for i := range 12 {
					w.vanishes(fmt.Sprint("many-", i))
				}
			},
			runs: 3, others: 16, lists: 1,
		},
		"only a list was heard": {
			before: func(w *world) { w.write(1); w.forgets(); w.write(1) },
			after:  func(w *world) { w.write(50) },
			runs:   3, others: 4, lists: 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.crowded(4)
				w.start(nil)
				w.launch(0, 3, nil)
				w.pass(time.Minute)
				if test.before != nil {
					test.before(w)
				}
				backup := w.revision()
				test.after(w)
				w.pass(2 * time.Minute) // there are bookmarks
				w.restored(backup, func() {
					if test.meanwhile != nil {
						test.meanwhile(w)
					}
				})
				w.viewed(test.runs, test.others)
				if counts := w.takeCounts(); counts["LIST pods"] != test.lists {
					t.Errorf("pods were listed %d times, want %d: %v", counts["LIST pods"], test.lists, counts)
				}
				for i := 3; i < 5; i++ {
					if s := w.sink.status(id(i)); s.State != workload.RunNone && s.State != workload.RunLost {
						t.Errorf("run %d, of which the backup does not know, is %s", i, s.State)
					}
				}
				w.launch(5, 7, nil) // it goes on
				w.pass(time.Minute)
				w.expect(6, workload.RunRunning, 0)
			})
		})
	}
}

// A watch that was cut goes on without a list, whatever has become meanwhile of what was heard last.
func TestAWatchThatGoesOn(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		before, meanwhile func(w *world)
		others            int
	}{
		"nothing":           {others: 5},
		"it changed":        {meanwhile: func(w *world) { w.label("last", "changed") }, others: 5},
		"it went":           {meanwhile: func(w *world) { w.vanishes("last") }, others: 4},
		"another came":      {meanwhile: func(w *world) { w.crowds("newer") }, others: 6},
		"a deletion":        {before: func(w *world) { w.vanishes("other-1") }, others: 4},
		"a life anew":       {before: func(w *world) { w.vanishes("other-1") }, meanwhile: func(w *world) { w.crowds("other-1") }, others: 5},
		"all went":          {before: func(w *world) { w.vanishes("last"); w.vanishes("other-1") }, others: 3},
		"long, and nothing": {before: func(w *world) { w.pass(time.Hour); w.write(1) }, others: 5},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.crowded(4)
				w.start(nil)
				w.launch(0, 3, nil)
				w.crowds("last")
				w.pass(time.Minute)
				if test.before != nil {
					test.before(w)
					w.pass(time.Minute)
				}
				w.away(true)
				if test.meanwhile != nil {
					test.meanwhile(w)
				}
				w.pass(time.Minute)
				w.takeCounts()
				w.away(false)
				w.pass(time.Minute)
				w.viewed(3, test.others)
				if counts := w.takeCounts(); counts["LIST pods"] != 0 || counts["WATCH pods"] != 1 || counts["LOOK pods"] > 3 {
					t.Errorf("to go on it asked %v", counts)
				}
				if twice := w.sink.twice(); len(twice) > 0 {
					t.Error(twice)
				}
			})
		})
	}
}

// Whatever happens before and after a backup, in the end the driver knows of the pods that there are and of no others.
func TestAnyHistoryThatIsSetBack(t *testing.T) {
	t.Parallel()
	for seed := range uint64(40) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				chance := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // repeatable on purpose
				made := 0
				happens := func() {
					for range chance.IntN(6) {
						var names []string
						for name, p := range w.pods() {
							if p.Labels[mirror.LabelOwner] == "" {
								names = append(names, strings.TrimPrefix(name, "default/"))
							}
						}
						slices.Sort(names)
						switch some := len(names) > 0; chance.IntN(4) {
						case 0:
							made++
							w.crowds(fmt.Sprint("made-", made))
						case 1:
							if some {
								w.label(names[chance.IntN(len(names))], fmt.Sprintf("%d-%d", made, len(names)))
							}
						case 2:
							if some {
								w.vanishes(names[chance.IntN(len(names))])
							}
						case 3:
							w.write(chance.IntN(3))
						}
					}
					w.pass(time.Second)
				}
				w.crowded(3)
				w.start(nil)
				w.launch(0, 2, nil)
				w.pass(time.Minute)
				for range 4 {
					happens()
					backup := w.revision()
					happens()
					if chance.IntN(3) == 0 {
						w.emulator.CutWatches()
						w.pass(time.Second)
						happens()
					}
					if w.restored(backup, happens) {
						return // nobody could tell them apart; where many things write, it does not happen
					}
					for name, p := range w.pods() {
						if p.Status.Phase != corev1.PodRunning {
							t.Fatalf("%s is %s", name, p.Status.Phase)
						}
					}
					w.viewed(2, len(w.pods())-2)
				}
			})
		})
	}
}
