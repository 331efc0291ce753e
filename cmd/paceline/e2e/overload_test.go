package e2e_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/paceline-sched/paceline/sdk/client"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

// overloadVariable makes the overload test as large as a name in overloads says.
const overloadVariable = "PACELINE_OVERLOAD"

// overload is how much is asked of a server, and how little it may take.
type overload struct {
	heavy, light int // clients of two principals, each in a closed loop
	watchers     int
	lasts        time.Duration
	flags        []string
	memory       int // MiB of the server, at most
}

var overloads = map[string]overload{
	"":     {heavy: 38, light: 2, watchers: 200, lasts: 3 * time.Second, flags: []string{"--max-calls", "16"}, memory: 400},
	"full": {heavy: 190, light: 10, watchers: 1000, lasts: 30 * time.Second, memory: 1024},
}

const (
	overloadPools  = 20 // of the heavy principal; each has its watchers
	overloadTokens = `tokens:
  - {principal: root, token: the-secret-token-of-root, roles: [admin@/]}
  - {principal: heavy, token: the-secret-token-of-heavy, roles: [submitter@/heavy]}
  - {principal: light, token: the-secret-token-of-light, roles: [submitter@/light]}
`
)

// TestOverload asks more of a server than it can do. It refuses what is too much, in a way that says when to come back, and whom it refuses is
// who asks for too much; whatever it acknowledged is there, once, also after it was killed; those who watch miss nothing, also beside one
// who watches and reads nothing; and its memory stays within bounds.
func TestOverload(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds of all cores")
	}
	size, ok := overloads[os.Getenv(overloadVariable)]
	if !ok {
		t.Fatalf("%s=%q is unknown", overloadVariable, os.Getenv(overloadVariable))
	}
	c := newCell(t, append([]string{"--simulated-hosts", "200"}, size.flags...)...)
	if err := os.Mkdir(c.data, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, c.data, "token", "the-secret-token-of-root")
	c.flags = append(c.flags, "--token-file", write(t, c.dir, "tokens.yaml", overloadTokens))
	c.start()
	pools := "path: /light\n"
	for n := range overloadPools {
		pools += fmt.Sprintf("---\npath: /heavy/%02d\n", n)
	}
	c.must("pool", "apply", write(t, c.dir, "pools.yaml", "path: /heavy\n---\n"+pools))
	before := c.resident("VmRSS")

	stuck := c.watchAndReadNothing()
	defer stuck.Close()
	watchers := c.watchMany(size)
	c.await("all watches are open", func() error { return c.wantMetric("paceline_watchers", float64(size.watchers+1)) })
	watched := c.resident("VmRSS")

	worked := c.cpu()
	load := c.load(size, "first")
	<-time.After(size.lasts / 2)
	c.must("pool", "apply", write(t, c.dir, "late.yaml", "path: /late\n")) // all watches look at the pools at once
	<-time.After(size.lasts / 2)
	c.await("both principals have been served, and one refused", load.felt)
	load.stop(t)
	c.tellWork(t, worked)
	c.checkLoad(t, load, size)
	list := c.wantJobs(t, load)
	watchers.check(t, c, list)
	t.Logf("memory: %d MiB before, %d MiB with %d watchers, %d MiB at most", before, watched, size.watchers, c.resident("VmHWM"))
	if got := c.resident("VmHWM"); got > size.memory {
		t.Errorf("the server took %d MiB, more than %d", got, size.memory)
	}
	watchers.stop()

	last := c.load(size, "last")
	<-time.After(size.lasts / 5)
	c.kill()
	last.stop(t)
	c.start()
	last.merge(load)
	c.wantJobs(t, last)
	c.stop()
}

// loading is what the clients of a load met.
type loading struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
	began  time.Time
	lasted time.Duration

	mu     sync.Mutex
	failed error
	by     map[string]*met // by principal
}

// met is what the clients of one principal met.
type met struct {
	acknowledged map[string]string // path of a job: its id
	took         []time.Duration   // of acknowledged calls
	refused      int
}

// load starts the clients of both principals.
func (c *cell) load(size overload, name string) *loading {
	c.t.Helper()
	ctx, cancel := context.WithCancel(c.t.Context())
	l := &loading{cancel: cancel, began: time.Now(), by: map[string]*met{
		"heavy": {acknowledged: map[string]string{}}, "light": {acknowledged: map[string]string{}},
	}}
	address := c.address()
	for who, clients := range map[string]int{"heavy": size.heavy, "light": size.light} {
		for n := range clients {
			conn, err := client.New(address, client.WithToken("the-secret-token-of-"+who), client.WithAttempts(1), client.WithTimeout(patience))
			if err != nil {
				c.t.Fatal(err)
			}
			pool := "/light"
			if who == "heavy" {
				pool = fmt.Sprintf("/heavy/%02d", n%overloadPools)
			}
			l.done.Go(func() {
				defer conn.Close()
				for number := 0; ctx.Err() == nil; number++ {
					l.submit(ctx, conn, who, pool, fmt.Sprintf("%s-%d-%d", name, n, number))
				}
			})
		}
	}
	return l
}

func (l *loading) stop(t *testing.T) {
	t.Helper()
	l.lasted = time.Since(l.began)
	l.cancel()
	l.done.Wait()
	if l.failed != nil {
		t.Error(l.failed)
	}
}

// leastServed is how many calls of each principal make a comparison of the two, however slow the server is.
const leastServed = 20

// felt claims that there was enough of the load to judge by.
func (l *loading) felt() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	light, heavy := len(l.by["light"].took), len(l.by["heavy"].took)
	if light < leastServed || heavy < leastServed || l.by["heavy"].refused == 0 {
		return fmt.Errorf("accepted were %d calls of light and %d of heavy, of which %d were refused", light, heavy, l.by["heavy"].refused)
	}
	return nil
}

func (l *loading) merge(other *loading) {
	for who, m := range other.by {
		for path, id := range m.acknowledged {
			l.by[who].acknowledged[path] = id
		}
	}
}

// submit makes one job, however often it is refused.
func (l *loading) submit(ctx context.Context, conn *client.Client, who, pool, name string) {
	request := &pacelinev1.CreateJobRequest{IdempotencyKey: name, Spec: &pacelinev1.JobSpec{
		Name: name, Pool: pool, Kind: &pacelinev1.JobSpec_Batch{Batch: &pacelinev1.BatchSpec{}},
		Task: &pacelinev1.TaskSpec{Simulation: &pacelinev1.Simulation{Duration: durationpb.New(10 * time.Millisecond)}},
	}}
	for {
		began := time.Now()
		answer, err := conn.Jobs.CreateJob(ctx, connect.NewRequest(request))
		l.mu.Lock()
		m := l.by[who]
		switch {
		case err == nil:
			m.acknowledged[pool+"/"+name] = answer.Msg.GetJob().GetId()
			m.took = append(m.took, time.Since(began))
		case connect.CodeOf(err) == connect.CodeResourceExhausted:
			m.refused++
			if header := retryHeader(err); client.RetryAfter(err) <= 0 || header == "" {
				l.failed = errors.Join(l.failed, fmt.Errorf("%s is refused without a time: %w, header %q", who, err, header))
			}
		case ctx.Err() == nil && (!isOutage(err) || connect.CodeOf(err) == connect.CodeDeadlineExceeded): // whoever waits that long is starved
			l.failed = errors.Join(l.failed, fmt.Errorf("submit %s: %w", name, err))
		}
		l.mu.Unlock()
		if err == nil {
			return
		}
		asked := max(client.RetryAfter(err), pause)
		select {
		case <-ctx.Done():
			return
		case <-time.After(asked + rand.N(asked/2)):
		}
	}
}

func retryHeader(err error) string {
	var failure *connect.Error
	if errors.As(err, &failure) {
		return failure.Meta().Get("Retry-After")
	}
	return ""
}

// checkLoad wants the promise kept: who asks for less than a share is never refused, and is served at least as well as who asks for more.
func (c *cell) checkLoad(t *testing.T, l *loading, size overload) {
	t.Helper()
	each := map[string]float64{}
	for who, clients := range map[string]int{"heavy": size.heavy, "light": size.light} {
		m := l.by[who]
		each[who] = float64(len(m.took)) / float64(clients)
		if len(m.took) == 0 {
			t.Fatalf("%s got nothing", who)
		}
		slices.Sort(m.took)
		t.Logf("%s: %d clients, %.0f calls/s accepted, %.0f refused, p50 %v, p99 %v", who, clients, float64(len(m.took))/l.lasted.Seconds(),
			float64(m.refused)/l.lasted.Seconds(), m.took[len(m.took)/2], m.took[len(m.took)*99/100])
	}
	if l.by["light"].refused > 0 || l.by["heavy"].refused == 0 {
		t.Errorf("refused were %d calls of light and %d of heavy; only heavy asks for too much", l.by["light"].refused, l.by["heavy"].refused)
	}
	if each["light"] < each["heavy"]/2 {
		t.Errorf("a client of light made %.0f jobs and one of heavy %.0f", each["light"], each["heavy"])
	}
}

// wantJobs wants every acknowledged job to be there, and returns the paths of all jobs by their pools.
func (c *cell) wantJobs(t *testing.T, l *loading) map[string]map[string]bool {
	t.Helper()
	list := map[string]map[string]bool{}
	ids := map[string]string{}
	request := &pacelinev1.ListJobsRequest{PageSize: 1000}
	for more := true; more; more = request.PageToken != "" {
		answer, err := c.client().Jobs.ListJobs(t.Context(), connect.NewRequest(request))
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range answer.Msg.GetJobs() {
			path := j.GetPool() + "/" + j.GetName()
			if ids[path] != "" {
				t.Errorf("job %s is there twice", path)
			}
			ids[path] = j.GetId()
			if list[j.GetPool()] == nil {
				list[j.GetPool()] = map[string]bool{}
			}
			list[j.GetPool()][j.GetName()] = true
		}
		request.PageToken = answer.Msg.GetNextPageToken()
	}
	acknowledged := 0
	for _, m := range l.by {
		for path, id := range m.acknowledged {
			acknowledged++
			if ids[path] != id {
				t.Errorf("job %s was acknowledged as %s and is %q", path, id, ids[path])
			}
		}
	}
	t.Logf("%d jobs, %d acknowledged", len(ids), acknowledged)
	return list
}

// watching are many watchers, each of its own connection.
type watching struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
	all    []*watcher
}

// watcher follows the jobs of one pool, or all, and keeps what was made.
type watcher struct {
	pool string
	conn *client.Client

	mu       sync.Mutex
	made     map[string]int // by pool and name
	revision uint64
	failed   error
}

// watchMany opens the watches. All but a few follow the jobs of one pool, as people and programs do who wait for theirs.
func (c *cell) watchMany(size overload) *watching {
	c.t.Helper()
	ctx, cancel := context.WithCancel(c.t.Context())
	w := &watching{cancel: cancel}
	for n := range size.watchers {
		one := &watcher{pool: fmt.Sprintf("/heavy/%02d", n%overloadPools), made: map[string]int{}}
		request := &pacelinev1.WatchEventsRequest{Kinds: []pacelinev1.EventKind{pacelinev1.EventKind_EVENT_KIND_JOB}}
		switch {
		case n < 3:
			one.pool, request.Kinds = "", nil
		case n%overloadPools == 0:
			one.pool = "/light"
		}
		request.Pool = one.pool
		conn, err := client.New(c.address(), client.WithTokenFile(filepath.Join(c.data, "token")))
		if err != nil {
			c.t.Fatal(err)
		}
		one.conn = conn
		w.all = append(w.all, one)
		w.done.Go(func() {
			defer conn.Close()
			if err := conn.Watch(ctx, request, one.see); ctx.Err() == nil {
				one.fail(fmt.Errorf("the watch ended: %w", err))
			}
		})
	}
	c.t.Cleanup(w.stop)
	return w
}

func (w *watching) stop() {
	w.cancel()
	w.done.Wait()
}

func (w *watcher) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failed = errors.Join(w.failed, err)
}

// see takes a response. A job is made by the one event of it that a principal asked for.
func (w *watcher) see(r *pacelinev1.WatchEventsResponse) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range r.GetEvents() {
		if e.GetRevision() < w.revision {
			w.failed = errors.Join(w.failed, fmt.Errorf("revision %d came after %d", e.GetRevision(), w.revision))
		}
		w.revision = e.GetRevision()
		job := e.GetJob()
		if w.pool != "" && (job == nil || job.GetPool() != w.pool) {
			w.failed = errors.Join(w.failed, fmt.Errorf("a watch of %s got %v", w.pool, e))
		}
		if job != nil && e.GetPrincipal() != "" {
			w.made[job.GetPool()+"/"+job.GetJobName()]++
		}
	}
	return nil
}

// check waits until every watcher has seen every job of its pool being made, and wants it to have seen it once.
func (w *watching) check(t *testing.T, c *cell, list map[string]map[string]bool) {
	t.Helper()
	total := 0
	for _, names := range list {
		total += len(names)
	}
	for _, one := range w.all {
		wanted := len(list[one.pool])
		if one.pool == "" {
			wanted = total
		}
		c.await(fmt.Sprintf("a watcher of %q has seen %d jobs", one.pool, wanted), func() error {
			one.mu.Lock()
			defer one.mu.Unlock()
			if one.failed != nil {
				t.Fatal(one.failed)
			}
			if len(one.made) < wanted {
				return fmt.Errorf("it has seen %d", len(one.made))
			}
			return nil
		})
		one.mu.Lock()
		for path, times := range one.made {
			if pool, name, _ := cutLast(path); times != 1 || !list[pool][name] {
				t.Errorf("a watcher of %q saw job %s made %d times", one.pool, path, times)
			}
		}
		one.mu.Unlock()
	}
}

func cutLast(path string) (pool, name string, ok bool) {
	at := strings.LastIndexByte(path, '/')
	return path[:max(at, 0)], path[at+1:], at >= 0
}

// watchAndReadNothing opens a watch of everything on a connection of its own, as a program that hangs would leave it.
func (c *cell) watchAndReadNothing() net.Conn {
	c.t.Helper()
	host := strings.TrimPrefix(c.address(), "http://")
	conn, err := new(net.Dialer).DialContext(c.t.Context(), "tcp", host)
	if err != nil {
		c.t.Fatal(err)
	}
	if err := conn.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil { //nolint:forcetypeassert // it was dialled as one
		c.t.Fatal(err)
	}
	_, err = fmt.Fprintf(conn, "POST /paceline.v1.EventService/WatchEvents HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer the-secret-token-of-root\r\n"+
		"Content-Type: application/connect+json\r\nConnect-Protocol-Version: 1\r\nContent-Length: 7\r\n\r\n\x00\x00\x00\x00\x02{}", host)
	if err != nil {
		c.t.Fatal(err)
	}
	return conn
}

// resident reads a figure of the server's memory, in MiB.
func (c *cell) resident(figure string) int {
	c.t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.cmd.Process.Pid))
	if err != nil {
		c.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(raw), figure+":")
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		c.t.Fatal(err)
	}
	return kib >> 10
}

// cpu is how long the server's threads have worked. The kernel counts in hundredths of a second.
func (c *cell) cpu() time.Duration {
	c.t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.cmd.Process.Pid))
	if err != nil {
		c.t.Fatal(err)
	}
	fields := strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+1:])) // from the third on
	user, errUser := strconv.Atoi(fields[11])
	system, errSystem := strconv.Atoi(fields[12])
	if err := errors.Join(errUser, errSystem); err != nil {
		c.t.Fatal(err)
	}
	return time.Duration(user+system) * 10 * time.Millisecond
}

// TestConnectionLimits opens more connections than a server may have, and more than it has file descriptors for. It says so, and goes on when
// they are gone.
func TestConnectionLimits(t *testing.T) {
	t.Parallel()
	const files, most = 256, 400
	for _, limits := range []struct {
		name  string
		flags []string
		says  string
	}{
		{"connections", nil, `msg="connections are refused: as many are open as may be (--max-connections)" component=api count=1 limit=128`},
		{"files", []string{"--max-connections", "1000"}, "connections wait: no file descriptors are left; raise the limit (ulimit -n) or lower --max-connections"},
	} {
		t.Run(limits.name, func(t *testing.T) {
			t.Parallel()
			c := newCell(t, append(limits.flags, simulates...)...)
			c.files = files
			c.start()
			var open []net.Conn
			for range most {
				conn, err := (&net.Dialer{Timeout: patience}).DialContext(t.Context(), "tcp", strings.TrimPrefix(c.address(), "http://"))
				if err != nil {
					t.Fatal(err)
				}
				open = append(open, conn)
			}
			c.await("the server says what is wrong", func() error {
				if log := c.log(); !strings.Contains(log, limits.says) {
					return fmt.Errorf("it says %q", log)
				}
				return nil
			})
			for _, conn := range open {
				_ = conn.Close()
			}
			c.await("the server takes calls again", func() error {
				if r := c.paceline("job", "run", write(t, c.dir, "late.yaml", "name: late\nbatch: {}\ntask: {simulation: {duration: 0.01s}}\n")); r.code != 0 {
					return errors.New(r.String())
				}
				return nil
			})
			c.stop()
		})
	}
}

// wantMetric compares one of the server's metrics.
func (c *cell) wantMetric(name string, want float64) error {
	got, err := c.metric(name)
	if err == nil && got != want {
		err = fmt.Errorf("%s is %v, not %v", name, got, want)
	}
	return err
}

// metric reads one of the server's metrics.
func (c *cell) metric(name string) (float64, error) {
	request, err := http.NewRequestWithContext(c.t.Context(), http.MethodGet, c.address()+"/metrics", http.NoBody)
	if err != nil {
		return 0, err
	}
	request.Header.Set("Authorization", "Bearer the-secret-token-of-root")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			return strconv.ParseFloat(value, 64)
		}
	}
	return 0, fmt.Errorf("there is no metric %s", name)
}

// tellWork says what the server did since it was asked last, as far as it bounds its speed.
func (c *cell) tellWork(t *testing.T, since time.Duration) {
	t.Helper()
	seconds, errSeconds := c.metric(`paceline_commit_seconds_sum{result="ok"}`)
	commits, errCommits := c.metric(`paceline_commit_seconds_count{result="ok"}`)
	steps, errSteps := c.metric("paceline_step_seconds_sum")
	if err := errors.Join(errSeconds, errCommits, errSteps); err != nil {
		t.Error(err)
	}
	t.Logf("the server's threads worked for %v; since its start %.0f commits of %.1f ms on average, and steps of %.2f s altogether",
		c.cpu()-since, commits, 1e3*seconds/commits, steps)
}
