package kubefaults_test

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator"
)

var tasks = flag.Int("tasks", 40, "`number` of tasks")

const (
	// long is the number of tasks from which faults come at the pace of real ones.
	long = 2000
	// patience bounds the wait for what must come once all trouble has ended.
	patience = 2 * time.Minute
	// longest bounds a whole run.
	longest = 30 * time.Minute
	// ownCode is what a task fails with by itself.
	ownCode = 7
)

// hardship is a cluster in trouble with a cell on it, which is killed and started again until its work is done.
type hardship struct {
	*testing.T
	witness *witness
	orders  orders
	kill    time.Duration // the life of the first cells; later ones live longer, or a slow machine would never get anywhere
	must    string        // the trouble without which, and without a kill, a run has shown nothing

	suffering context.Context
	relieve   context.CancelFunc
	work      sync.WaitGroup
	mu        sync.Mutex
	kills     int
	creations int            // requests for a pod, before that
	struck    map[string]int // how often what was done
	away      map[string]bool
}

func newHardship(t *testing.T, kill time.Duration, must string) *hardship {
	t.Helper()
	h := &hardship{T: t, witness: newWitness(), kill: kill, must: must, struck: map[string]int{}, away: map[string]bool{}}
	h.orders = orders{Dir: t.TempDir(), Tasks: uint32(*tasks), Keep: 2 * time.Second, KeepPods: max(*tasks/20, 5)} //nolint:gosec // not so many
	h.suffering, h.relieve = context.WithCancel(t.Context())
	t.Cleanup(h.work.Wait)
	t.Cleanup(h.relieve)
	return h
}

func (h *hardship) strike(what string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.struck[what]++
}

// tooEarly says whether a request would have the work done before the cell was killed and the trouble has come that there must be.
func (h *hardship) tooEarly(r *http.Request) bool {
	if r.Method != http.MethodPost || !strings.HasSuffix(r.URL.Path, "/pods") {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.kills > 0 && h.struck[h.must] > 0 {
		return false
	}
	h.creations++
	return h.creations > *tasks/2
}

// every does something again and again, until the trouble ends. A period of 0 is never. Between the end of one and the beginning of the next is half a period at
// least: an API server that takes as long to come back as it is allowed to live would never be there.
func (h *hardship) every(period time.Duration, what string, do func()) {
	if period == 0 {
		return
	}
	h.work.Go(func() {
		next := time.NewTimer(period)
		defer next.Stop()
		for {
			select {
			case <-next.C:
				began := time.Now()
				do()
				h.strike(what)
				next.Reset(max(period-time.Since(began), period/2))
			case <-h.suffering.Done():
				return
			}
		}
	})
}

// takeAway picks one of the nodes that are well, and counts it among those that are not until back is called.
func (h *hardship) takeAway(nodes []string) (name string, back func(), ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	name, ok = some(slices.DeleteFunc(slices.Clone(nodes), func(name string) bool { return h.away[name] }))
	if ok {
		h.away[name] = true
	}
	return name, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.away, name)
	}, ok
}

// wait lets trouble last, or ends with all of it.
func (h *hardship) wait(d time.Duration) {
	select {
	case <-time.After(d):
	case <-h.suffering.Done():
	}
}

// weather is what goes wrong with requests.
type weather struct {
	*hardship
	slowFor     time.Duration // a request, at most
	storm, slow atomic.Bool
}

// change has storms and slow times come and go.
func (w *weather) change(o *troubles) {
	during := func(flag *atomic.Bool, d time.Duration) func() {
		return func() {
			flag.Store(true)
			w.wait(d)
			flag.Store(false)
		}
	}
	w.every(o.storm, "storm", during(&w.storm, o.stormFor))
	w.every(o.slow, "slow", during(&w.slow, o.slowFor))
}

// fault is what goes wrong with a request.
func (w *weather) fault(r *http.Request) emulator.Fault {
	if w.suffering.Err() != nil {
		return emulator.Fault{}
	}
	if w.tooEarly(r) {
		return emulator.Fault{Code: http.StatusServiceUnavailable}
	}
	var f emulator.Fault
	if w.slow.Load() {
		f.Delay = time.Duration(rand.Int64N(int64(w.slowFor)))
	}
	watches := isWatch(r)
	switch draw := rand.Float64(); {
	case w.storm.Load() && draw < 0.9:
		w.strike("429")
		f.Code, f.RetryAfter = http.StatusTooManyRequests, 1
	case draw < 0.01 && !watches:
		w.strike("done, and not said")
		f.Late, f.Drop = true, true
	case draw < 0.02 && !watches:
		w.strike("done, and denied")
		f.Late, f.Code = true, http.StatusGatewayTimeout
	case draw < 0.03:
		f.Drop = true
	case draw < 0.04:
		f.Code = http.StatusInternalServerError
	case draw < 0.05:
		f.Code = http.StatusServiceUnavailable
	case draw < 0.10 && (watches || r.URL.Query().Get("continue") != ""):
		w.strike("410")
		f.Code = http.StatusGone
	}
	return f
}

// run lets cells do the work, and returns what the last one says.
func (h *hardship) run() *testament {
	h.Helper()
	ctx, cancel := context.WithTimeout(h.Context(), longest)
	defer cancel()
	for {
		h.orders.Life++
		h.mu.Lock()
		kills := h.kills
		h.mu.Unlock()
		said := h.life(ctx, h.kill<<min(kills/2, 6))
		if ctx.Err() != nil {
			h.Fatal("the work does not end")
		}
		if said != nil {
			return said
		}
		h.mu.Lock()
		h.kills++
		h.mu.Unlock()
	}
}

// life is one process of the cell, which is killed after a while unless its work is over before. Then all trouble ends.
func (h *hardship) life(ctx context.Context, limit time.Duration) *testament {
	h.Helper()
	self, err := os.Executable()
	if err != nil {
		h.Fatal(err)
	}
	told, err := json.Marshal(&h.orders)
	if err != nil {
		h.Fatal(err)
	}
	command := exec.CommandContext(ctx, self)
	command.Env = append(os.Environ(), asCell+"="+string(told))
	command.Stderr = os.Stderr
	stdin, err := command.StdinPipe()
	if err != nil {
		h.Fatal(err)
	}
	stdout, err := command.StdoutPipe()
	if err != nil {
		h.Fatal(err)
	}
	if err := command.Start(); err != nil {
		h.Fatal(err)
	}
	killer := time.AfterFunc(limit, func() { _ = command.Process.Kill() }) // it may have ended
	said, err := h.listen(bufio.NewReader(stdout), stdin, killer)
	_ = stdin.Close() // asks it to end
	waited := command.Wait()
	if said == nil && err == nil {
		return nil
	}
	if err != nil || waited != nil {
		h.Fatalf("the cell ended by itself: %v, %v", waited, err)
	}
	return said
}

// listen hears the cell out. Nothing and no error: it was killed.
func (h *hardship) listen(stdout *bufio.Reader, stdin io.Writer, killer *time.Timer) (*testament, error) {
	_, err := stdout.ReadString('\n')
	if !killer.Stop() {
		return nil, nil //nolint:nilnil // as the comment says
	}
	if err != nil {
		return nil, err
	}
	h.relieve()
	h.work.Wait()
	if _, err := io.WriteString(stdin, "\n"); err != nil {
		return nil, err
	}
	said := &testament{}
	return said, json.NewDecoder(stdout).Decode(said)
}

// report says what was seen.
func (h *hardship) report(said *testament, began time.Time) {
	h.Helper()
	v := h.witness.judge(h.T, said, *tasks)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.kills == 0 || h.struck[h.must] == 0 {
		h.Errorf("the cell was killed %d times, and there was trouble %v: that shows nothing", h.kills, h.struck)
	}
	h.Logf("%d tasks in %v, the cell was killed %d times; %d pods, %d instances had more than one, %d runs never had a pod; ends %v; trouble %v",
		*tasks, time.Since(began).Round(time.Second), h.kills, v.pods, v.again, v.podless, v.ends, h.struck)
}

func (h *hardship) file(name string, content []byte) string {
	h.Helper()
	path := filepath.Join(h.orders.Dir, name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		h.Fatal(err)
	}
	return path
}

// some picks one at random, or nothing.
func some[T any](list []T) (one T, ok bool) {
	if len(list) == 0 {
		return one, false
	}
	return list[rand.IntN(len(list))], true
}

func label(name string, n int) string { return fmt.Sprintf("%s-%d", name, n) }
