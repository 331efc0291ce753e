package kubernetes_test

import (
	"maps"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator"
)

// only breaks requests of one kind.
func only(kind string, f emulator.Fault) func(*http.Request, string) emulator.Fault {
	return func(_ *http.Request, is string) emulator.Fault {
		if is == kind {
			return f
		}
		return emulator.Fault{}
	}
}

// TestRequestsThatFail: whatever the API server answers for a minute, every run starts once and ends once, and the server is not stormed.
func TestRequestsThatFail(t *testing.T) {
	t.Parallel()
	const runs = 8
	for name, c := range map[string]struct {
		fault emulator.Fault
		most  int // requests for each run within the minute of trouble
	}{
		"conflict":                       {emulator.Fault{Code: http.StatusConflict}, 60},
		"internal error":                 {emulator.Fault{Code: http.StatusInternalServerError}, 60},
		"unavailable":                    {emulator.Fault{Code: http.StatusServiceUnavailable, RetryAfter: 1}, 60},
		"gateway time-out":               {emulator.Fault{Code: http.StatusGatewayTimeout}, 60},
		"too many requests":              {emulator.Fault{Code: http.StatusTooManyRequests, RetryAfter: 5}, 12},
		"cut":                            {emulator.Fault{Drop: true}, 60},
		"done, and the answer is lost":   {emulator.Fault{Drop: true, Late: true}, 60},
		"done, and answered as an error": {emulator.Fault{Code: http.StatusInternalServerError, Late: true}, 60},
		"no answer within the time-out":  {emulator.Fault{Delay: 40 * time.Second}, 4},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.start(atOnce)
				for _, kind := range []string{"POST pods", "DELETE pods"} {
					w.takeCounts()
					w.breaks(only(kind, c.fault))
					if kind == "POST pods" {
						w.launch(0, runs, exits)
					} else {
						w.launch(runs, 2*runs, exits)
					}
					w.pass(time.Minute)
					if n := w.takeCounts()[kind]; n > c.most*runs {
						t.Errorf("%d requests %s for %d runs within a minute", n, kind, runs)
					}
					w.breaks(nil)
					w.pass(2 * time.Minute)
				}
				if n := w.sink.count(0, 2*runs, workload.RunSucceeded); n != 2*runs || len(w.pods()) != 0 {
					t.Errorf("%d of %d runs succeeded, and %d pods are left", n, 2*runs, len(w.pods()))
				}
				if list := w.sink.twice(); len(list) > 0 {
					t.Errorf("runs ended twice: %v", list)
				}
			})
		})
	}
}

// After a 429 nobody asks before it is time, and not all come at once when it is.
func TestAStormIsHeeded(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.start(nil)
		w.takeCounts()
		var times []time.Duration
		begun := time.Now()
		first := true
		w.breaks(func(_ *http.Request, kind string) emulator.Fault {
			if kind != "POST pods" {
				return emulator.Fault{}
			}
			times = append(times, time.Since(begun))
			if first {
				return emulator.Fault{Code: http.StatusTooManyRequests, RetryAfter: 20}
			}
			return emulator.Fault{}
		})
		w.launch(0, 1, nil)
		w.pass(time.Second)
		first = false
		w.launch(1, 200, nil)
		w.pass(time.Minute)
		if w.sink.count(0, 200, workload.RunRunning) != 200 || len(times) != 201 {
			t.Fatalf("%d runs run after %d requests", w.sink.count(0, 200, workload.RunRunning), len(times))
		}
		if times[1] < 20*time.Second || times[1] > 31*time.Second || times[200] > 55*time.Second {
			t.Errorf("told to come back after 20 s, requests came at %v to %v", times[1], times[200])
		}
	})
}

// TestWatchesThatFail: whatever happens to lists and watches, the view comes back, no run is lost for it, and the server is not stormed.
func TestWatchesThatFail(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		trouble func(w *world)
		lists   int // of pods that may be begun in a minute of it
	}{
		"watches are cut": {func(w *world) {
			for range 60 {
				w.emulator.CutWatches()
				w.pass(time.Second)
			}
		}, 0},
		"watches are refused": {func(w *world) {
			w.breaks(func(_ *http.Request, kind string) emulator.Fault {
				if kind == "WATCH pods" || kind == "WATCH nodes" {
					return emulator.Fault{Code: http.StatusInternalServerError}
				}
				return emulator.Fault{}
			})
			w.emulator.CutWatches()
			w.pass(time.Minute)
		}, 0},
		"watches are gone": {func(w *world) {
			w.breaks(only("WATCH pods", emulator.Fault{Code: http.StatusGone}))
			w.emulator.CutWatches()
			w.pass(time.Minute)
		}, 120},
		"lists are refused as well": {func(w *world) {
			w.breaks(func(_ *http.Request, kind string) emulator.Fault {
				switch kind {
				case "WATCH pods":
					return emulator.Fault{Code: http.StatusGone}
				case "LIST pods":
					return emulator.Fault{Code: http.StatusTooManyRequests, RetryAfter: 2}
				}
				return emulator.Fault{}
			})
			w.emulator.CutWatches()
			w.pass(time.Minute)
		}, 40},
		"lists expire between their pages": {func(w *world) {
			w.breaks(func(r *http.Request, kind string) emulator.Fault {
				switch {
				case kind == "WATCH pods":
					return emulator.Fault{Code: http.StatusGone}
				case kind == "LIST pods" && r.URL.Query().Get("continue") != "":
					return emulator.Fault{Code: http.StatusGone}
				}
				return emulator.Fault{}
			})
			w.emulator.CutWatches()
			w.pass(time.Minute)
		}, 240},
		"the server is away": {func(w *world) {
			w.away(true)
			w.pass(time.Minute)
			w.away(false)
		}, 0},
		"the server hangs": {func(w *world) {
			w.emulator.CutWatches()
			w.breaks(func(*http.Request, string) emulator.Fault { return emulator.Fault{Delay: time.Hour} })
			w.pass(10 * time.Minute)
			if d := w.driver.Describe(); d.Err == nil {
				w.t.Error("a server that hangs is told of as if it did not")
			}
		}, 0},
	} {
		for way, paged := range map[string]bool{"by watches": false, "in pages": true} {
			t.Run(name+", lists come "+way, func(t *testing.T) {
				inWorld(t, func(t *testing.T, w *world) {
					w.start(func(c *kubernetes.Config) { c.Page, c.Paged = 4, paged; atOnce(c) })
					watchesFail(t, w, c.trouble, c.lists)
				})
			})
		}
	}
}

func watchesFail(t *testing.T, w *world, trouble func(*world), lists int) {
	w.launch(0, 10, nil) // more than a page
	w.pass(time.Minute)
	w.takeCounts()
	trouble(w)
	counts := w.takeCounts()
	if n := counts["LIST pods"]; n > lists {
		t.Errorf("pods were listed %d times", n)
	}
	if n := counts["WATCH pods"] + counts["WATCH nodes"]; n > 250 {
		t.Errorf("watches were begun %d times", n)
	}
	w.breaks(nil)
	w.pass(time.Minute)
	if n := w.sink.count(0, 10, workload.RunRunning); n != 10 {
		t.Errorf("afterwards %d of 10 runs run", n)
	}
	if d := w.driver.Describe(); d.Err != nil {
		t.Errorf("afterwards it is described as %v", d.Err)
	}
	w.launch(10, 20, exits)
	w.pass(time.Minute)
	if n := w.sink.count(10, 20, workload.RunSucceeded); n != 10 || len(w.pods()) != 10 {
		t.Errorf("%d of 10 later runs succeeded, and there are %d pods", n, len(w.pods()))
	}
	inventories, lost := w.sink.told()
	if inventories != lost+1 {
		t.Errorf("%d inventories were told, and %d losses of contact", inventories, lost)
	}
}

// A server whose lists expire before their last page is asked for everything at once, from the first list on, and that is told.
func TestListsThatAlwaysExpire(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.start(nil)
		w.launch(0, 10, nil)
		w.pass(time.Second)
		w.end()
		w.takeCounts()
		w.breaks(func(r *http.Request, kind string) emulator.Fault {
			if kind == "LIST pods" && r.URL.Query().Get("continue") != "" {
				return emulator.Fault{Code: http.StatusGone}
			}
			return emulator.Fault{}
		})
		inventory := w.start(func(c *kubernetes.Config) { c.Page, c.Paged, c.Pods.Epoch = 4, true, 2 })
		if len(inventory.Runs) != 10 || len(inventory.Hosts) != 2 {
			t.Errorf("the inventory has %d runs and %d hosts", len(inventory.Runs), len(inventory.Hosts))
		}
		if n := w.takeCounts()["LIST pods"]; n != 7 {
			t.Errorf("there were %d lists of pods, and not three in two pages and one whole", n)
		}
		d := w.driver.Describe()
		if d.Err != nil || !slices.Contains(slices.Collect(maps.Values(d.Details)), "pods") {
			t.Errorf("it is described as %+v", d)
		}
		w.breaks(func(_ *http.Request, kind string) emulator.Fault { // not even that
			if kind == "LIST pods" || kind == "WATCH pods" {
				return emulator.Fault{Code: http.StatusGone}
			}
			return emulator.Fault{}
		})
		w.emulator.CutWatches()
		w.pass(time.Minute)
		if d := w.driver.Describe(); d.Err == nil {
			t.Error("a server without any list is described as if it had one")
		}
		w.breaks(nil)
		w.pass(time.Minute)
		w.expect(9, workload.RunRunning, 0)
	})
}

// A server that restarts keeps its objects; what ended while nobody looked is told afterwards, once.
func TestARestartOfTheServer(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.start(func(c *kubernetes.Config) { c.LongestWait = time.Second })
		w.launch(0, 20, nil)
		w.pass(time.Second)
		w.away(true)
		w.pass(30 * time.Second)
		if d := w.driver.Describe(); d.Err == nil || d.Attempts < 10 {
			t.Errorf("without a server it is described as %+v", d)
		}
		w.launch(20, 40, exits) // is kept until the server is back
		w.pass(30 * time.Second)
		w.away(false)
		w.pass(time.Minute)
		if run, done := w.sink.count(0, 20, workload.RunRunning), w.sink.count(20, 40, workload.RunSucceeded); run != 20 || done != 20 {
			t.Errorf("%d of 20 run, and %d of 20 succeeded", run, done)
		}
		if list := w.sink.twice(); len(list) > 0 {
			t.Errorf("runs ended twice: %v", list)
		}
	})
}
