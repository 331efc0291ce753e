package kubernetes_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator/cluster"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator/wire"
)

// between stands between a driver and a server.
type between func(r *http.Request, next http.RoundTripper) (*http.Response, error)

type tripper struct {
	between
	next http.RoundTripper
}

// WrappedRoundTripper lets the driver close its connections.
func (t tripper) WrappedRoundTripper() http.RoundTripper { return t.next }

func (t tripper) RoundTrip(r *http.Request) (*http.Response, error) { return t.between(r, t.next) }

// through has a driver's requests go through something.
func through(b between) func(*kubernetes.Config) {
	return func(c *kubernetes.Config) {
		c.Page = 4
		c.API.WrapTransport = func(next http.RoundTripper) http.RoundTripper { return tripper{b, next} }
	}
}

// without is a request without some of its options.
func without(r *http.Request, options ...string) *http.Request {
	r = r.Clone(r.Context())
	q := r.URL.Query()
	for _, o := range options {
		q.Del(o)
	}
	r.URL.RawQuery = q.Encode()
	return r
}

// forgets has all that is watched told as forgotten, so that it is listed anew.
func (w *world) forgets() {
	w.forget()
	w.emulator.CutWatches()
	w.pass(time.Minute)
}

// forget has the history forgotten, which nobody notices before watches are cut.
func (w *world) forget() {
	w.emulator.Do(func(c *cluster.Cluster) {
		if _, err := c.Create(cluster.Namespaces, "", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "later-"}}, false); err != nil {
			w.t.Error(err)
		}
		c.Compact()
	})
}

// viewed holds a driver to having the whole view: two nodes, so many runs that run, and so many pods of others.
func (w *world) viewed(runs, others int) {
	w.t.Helper()
	stats := w.driver.Stats()
	if n := w.sink.count(0, runs, workload.RunRunning); n != runs || stats.Runs != runs || stats.Foreign != others || stats.Nodes != 2 {
		w.t.Fatalf("%d of %d runs run, and it knows of %+v", n, runs, stats)
	}
}

// crowded has so many pods of others on the nodes.
func (w *world) crowded(n int) {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprint("other-", i)
	}
	w.crowds(names...)
}

// crowds has pods of others of these names on a node.
func (w *world) crowds(names ...string) {
	w.emulator.Do(func(c *cluster.Cluster) {
		for _, name := range names {
			_, err := c.Create(cluster.Pods, "default", &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec:       corev1.PodSpec{NodeName: "b", Containers: []corev1.Container{{Name: "c", Image: "i", Command: []string{"sleep"}}}},
			}, false)
			if err != nil {
				w.t.Error(err)
			}
		}
	})
}

// Where a server lists by watches, nothing is listed in pages: not at the start, and not when history is lost.
func TestListsByWatches(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var mu sync.Mutex
		pages := 0
		w.crowded(600) // several parts
		w.start(through(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
			if limit := r.URL.Query().Get("limit"); limit != "" && limit != "1" {
				mu.Lock()
				pages++
				mu.Unlock()
			}
			return next.RoundTrip(r)
		}))
		w.launch(0, 10, nil)
		w.pass(time.Minute)
		w.viewed(10, 600)
		w.takeCounts()
		w.forgets()
		w.viewed(10, 600)
		if counts := w.takeCounts(); counts["LIST pods"] != 1 || counts["LIST nodes"] != 1 || pages != 0 {
			t.Errorf("after a loss of history there were these requests: %v, and %d pages in all", counts, pages)
		}
		w.forgetsWhile(func(c *cluster.Cluster) {
			if _, _, err := c.Delete(cluster.Pods, cluster.Key{Namespace: "default", Name: "other-7"}, cluster.Deletion{}); err != nil {
				t.Error(err)
			}
		})
		w.viewed(10, 599)
	})
}

// forgetsWhile is forgets with something that happens while nobody watches.
func (w *world) forgetsWhile(do func(*cluster.Cluster)) {
	w.away(true)
	w.emulator.Do(do)
	w.pass(time.Minute)
	w.away(false)
	w.forgets()
}

// A server that knows nothing of lists by watches refuses the first one, and is not asked again.
func TestAnOlderServer(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var mu sync.Mutex
		asked := map[string]int{}
		w.crowded(10)
		w.start(through(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
			if r.URL.Query().Has("sendInitialEvents") {
				mu.Lock()
				asked[r.URL.Path]++
				mu.Unlock()
				r = without(r, "sendInitialEvents") // which leaves what such a server sees, and refuses
			}
			return next.RoundTrip(r)
		}))
		if inventories, lost := w.sink.told(); inventories != 1 || lost != 0 {
			t.Errorf("%d inventories were told, and %d losses of contact", inventories, lost)
		}
		w.launch(0, 10, nil)
		w.pass(time.Minute)
		w.viewed(10, 10)
		w.takeCounts()
		w.forgets()
		w.viewed(10, 10)
		if n := w.takeCounts()["LIST pods"]; n != 5 {
			t.Errorf("20 pods came in %d pages of 4", n)
		}
		mu.Lock()
		defer mu.Unlock()
		if asked["/api/v1/pods"] != 1 || asked["/api/v1/nodes"] != 1 {
			t.Errorf("it was asked for lists by watches so often: %v", asked)
		}
		if d := w.driver.Describe(); d.Err != nil {
			t.Errorf("it is described as %v", d.Err)
		}
	})
}

// A server that skips options which it does not know never says where a list ends. It is not waited for longer than a minute.
func TestAServerThatSkipsOptions(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.crowded(10)
		begun := time.Now()
		w.start(through(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
			return next.RoundTrip(without(r, "sendInitialEvents", "resourceVersionMatch"))
		}))
		if took := time.Since(begun); took > 2*time.Minute {
			t.Errorf("its view took %s", took)
		}
		w.launch(0, 10, nil)
		w.pass(time.Minute)
		w.viewed(10, 10)
		w.forgets()
		w.viewed(10, 10)
	})
}

// A server whose list by a watch never ends, though something comes of it again and again, is given five minutes for it in all. Then it is asked for pages, and for nothing else.
func TestAListThatTrickles(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var mu sync.Mutex
		var trickles sync.WaitGroup
		byWatch, pages := 0, 0
		w.crowded(10)
		w.pass(time.Minute)
		var all [][]byte
		for _, p := range w.pods() {
			raw, err := framed([]event{{watch.Added, p.DeepCopy()}})
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, raw)
		}
		begun := time.Now()
		w.start(through(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
			if r.URL.Path != "/api/v1/pods" {
				return next.RoundTrip(r)
			}
			mu.Lock()
			defer mu.Unlock()
			switch q := r.URL.Query(); {
			case q.Has("sendInitialEvents"):
				byWatch++
				response, err := frames(nil)
				if err != nil {
					return nil, err
				}
				body, to := io.Pipe()
				response.Body = body
				trickles.Go(func() { trickle(r, to, all) })
				return response, nil
			case q.Get("limit") == "4":
				pages++
			}
			return next.RoundTrip(r)
		}))
		if took := time.Since(begun); took < 5*time.Minute || took > 6*time.Minute {
			t.Errorf("its view took %s", took)
		}
		trickles.Wait() // nobody reads it any more
		w.launch(0, 10, nil)
		w.pass(time.Minute)
		w.viewed(10, 10)
		w.forgets()
		w.viewed(10, 10)
		mu.Lock()
		defer mu.Unlock()
		if byWatch != 1 || pages != 3+5 {
			t.Errorf("pods were listed by %d watches and in %d pages of 4", byWatch, pages)
		}
	})
}

// trickle says something every twenty seconds, over and over, until nobody listens.
func trickle(r *http.Request, to *io.PipeWriter, all [][]byte) {
	stop := context.AfterFunc(r.Context(), func() { _ = to.CloseWithError(r.Context().Err()) })
	defer stop()
	for {
		for _, one := range all {
			if _, err := to.Write(one); err != nil {
				return
			}
			<-time.After(20 * time.Second)
		}
	}
}

// A list by a watch that fails before its end, in whatever way, is followed by one in pages. The next one comes by a watch again.
func TestAListThatDoesNotEnd(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(r *http.Request, next http.RoundTripper) (*http.Response, error){
		"cut": func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
			response, err := next.RoundTrip(r)
			if err == nil {
				response.Body = &short{response.Body, 700}
			}
			return response, err
		},
		"ended": func(*http.Request, http.RoundTripper) (*http.Response, error) { return frames(nil) },
		"an error in it": func(_ *http.Request, _ http.RoundTripper) (*http.Response, error) {
			return frames([]event{{watch.Error, &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError}}})
		},
		"history that is gone": func(_ *http.Request, _ http.RoundTripper) (*http.Response, error) {
			return frames([]event{{watch.Error, &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusGone, Reason: metav1.StatusReasonExpired}}})
		},
		"no connection": func(*http.Request, http.RoundTripper) (*http.Response, error) { return nil, io.ErrUnexpectedEOF },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				var mu sync.Mutex
				byWatch, pages, failing := 0, 0, true
				w.crowded(10)
				w.start(through(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
					if r.URL.Path != "/api/v1/pods" {
						return next.RoundTrip(r)
					}
					mu.Lock()
					bad := failing
					if r.URL.Query().Get("limit") == "4" {
						pages++
					}
					if r.URL.Query().Has("sendInitialEvents") {
						byWatch++
					} else {
						bad = false
					}
					mu.Unlock()
					if bad {
						return fail(r, next)
					}
					return next.RoundTrip(r)
				}))
				w.launch(0, 10, nil)
				w.pass(time.Minute)
				w.viewed(10, 10)
				mu.Lock()
				if byWatch != 1 || pages != 3 {
					t.Errorf("10 pods came by %d watches and %d pages of 4", byWatch, pages)
				}
				failing = false
				mu.Unlock()
				w.forgets()
				w.viewed(10, 10)
				mu.Lock()
				defer mu.Unlock()
				if byWatch != 2 || pages != 3 {
					t.Errorf("afterwards pods came by %d watches and %d pages", byWatch, pages)
				}
			})
		})
	}
}

// What changes while a list comes may be told between its objects: the later word counts, and how a pod ended that goes meanwhile is not lost.
func TestChangesWithinAList(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var mu sync.Mutex
		var told []event
		w.crowded(2)
		w.start(through(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
			mu.Lock()
			defer mu.Unlock()
			if told != nil && r.URL.Path == "/api/v1/pods" && r.URL.Query().Has("sendInitialEvents") {
				return frames(told)
			}
			return next.RoundTrip(r)
		}))
		w.launch(0, 2, nil)
		w.pass(time.Minute)
		w.viewed(2, 2)
		w.forget()
		w.crowds("later")
		w.pass(time.Minute)

		pods := w.pods()
		lives, ends := pods["default/"+id(0).String()], pods["default/"+id(1).String()].DeepCopy()
		ends.Status.Phase = corev1.PodSucceeded
		ends.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.Now()}}
		moved := pods["default/other-0"].DeepCopy()
		moved.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("3")}
		version := ""
		w.emulator.Do(func(c *cluster.Cluster) { version = strconv.FormatInt(c.Revision(), 10) })
		mu.Lock()
		told = []event{
			{watch.Added, pods["default/other-0"]},
			{watch.Added, pods["default/other-1"]},
			{watch.Added, pods["default/"+id(1).String()]},
			{watch.Modified, moved},
			{watch.Bookmark, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "1"}}}, // not the end
			{watch.Deleted, pods["default/other-1"]},
			{watch.Deleted, ends},
			{watch.Added, lives},
			{watch.Bookmark, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
				ResourceVersion: version, Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"},
			}}},
			{watch.Added, pods["default/later"]}, // the watch is to go on from here
		}
		mu.Unlock()
		w.emulator.CutWatches()
		w.pass(time.Minute)
		w.expect(0, workload.RunRunning, 0)
		w.expect(1, workload.RunSucceeded, workload.ReasonExited)
		if stats := w.driver.Stats(); stats.Foreign != 2 {
			t.Errorf("%d pods of others are known, want two", stats.Foreign)
		}
		if n := w.takeCounts()["WATCH pods"]; n == 0 {
			t.Error("the watch did not go on from what came after the list")
		}
		w.launch(2, 3, nil)
		w.pass(time.Second)
		w.expect(2, workload.RunRunning, 0)
	})
}

// short ends before its time, as a connection that is cut.
type short struct {
	io.ReadCloser
	left int
}

func (s *short) Read(p []byte) (int, error) {
	if s.left == 0 {
		return 0, io.ErrUnexpectedEOF
	}
	n, err := s.ReadCloser.Read(p[:min(len(p), s.left)])
	s.left -= n
	return n, err //nolint:wrapcheck // it stands for the one inside
}

// event is one event of a watch.
type event struct {
	kind   watch.EventType
	object runtime.Object
}

// frames answers with a watch that says so much, and ends.
func frames(events []event) (*http.Response, error) {
	body, err := framed(events)
	if err != nil {
		return nil, err
	}
	return &http.Response{
		StatusCode: http.StatusOK, Status: "200 OK", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {wire.Protobuf + ";stream=watch"}}, Body: io.NopCloser(bytes.NewReader(body)),
	}, nil
}

// framed is how a watch says so much.
func framed(events []event) ([]byte, error) {
	var body bytes.Buffer
	for _, e := range events {
		raw, err := wire.Encode(wire.Protobuf, corev1.SchemeGroupVersion, e.object)
		if err == nil {
			raw, err = wire.Frame(wire.Protobuf, string(e.kind), raw)
		}
		if err != nil {
			return nil, err
		}
		body.Write(raw)
	}
	return body.Bytes(), nil
}
