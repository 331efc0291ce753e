package registry_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/rollout"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/policies/registry"
	"github.com/paceline-sched/paceline/policies/signature"
)

// A policy goes from its push to being the default, through shadow and canary, with a restart at each stage: what is in force places, and nothing else.
func TestRollOut(t *testing.T) {
	c := newCell(t)
	r := open(t, quick(c))
	restart := func() {
		t.Helper()
		r.Close()
		c.start(t)
		r = open(t, quick(c))
	}
	// First fit takes h0, which is roomy; best fit h2, the smallest.
	const first, best = host.Row(0), host.Row(2)
	where := func(kind workload.Kind, policy, pool string, want host.Row) {
		t.Helper()
		s := r.Source("c/0")
		defer s.Close()
		if rows := place(t, s, newTable(t, 6), class(kind, policy, 100), 1, pool); rows[0] != want {
			t.Fatalf("a task of policy %q in pool %q is on row %d, not %d: %s", policy, pool, rows[0], want, stages(r, "ff"))
		}
	}
	digest := push(t, r, "ff", "firstfit")
	restart()
	where(workload.Batch, "ff", "/a", best) // nothing is in force: the default serves
	change(t, r, rollout.Move{Policy: "ff", Digest: digest, To: rollout.Shadow})
	where(workload.Batch, "ff", "/a", best)
	report := r.Report()
	if fare := report.Fare("ff", digest); fare == nil || fare.Tally.Compared != 1 || fare.Tally.Elsewhere != 1 || fare.Tally.Cost <= 0 {
		t.Fatalf("in shadow: %+v", fare)
	}
	restart()
	change(t, r, rollout.Move{Policy: "ff", Digest: digest, To: rollout.Canary, Scope: rollout.Scope{Pool: "/a"}})
	restart()
	where(workload.Batch, "ff", "/a/b", first)
	where(workload.Batch, "ff", "/b", best)
	change(t, r, rollout.Move{Policy: "ff", Digest: digest, To: rollout.Active})
	restart()
	where(workload.Batch, "ff", "/b", first)
	where(workload.Batch, "", "/b", best)
	change(t, r, rollout.SetDefault{JobKind: "batch", Policy: "ff"})
	restart()
	where(workload.Batch, "", "/b", first)
	where(workload.Service, "", "/b", best)
	where(workload.Batch, "best-fit", "/b", best)
	change(t, r, rollout.SetDefault{JobKind: "service", Policy: "spread"})
	where(workload.Service, "", "/b", first) // the emptiest is the first
	change(t, r, rollout.Rollback{Policy: "ff", Why: "by hand"})
	where(workload.Batch, "", "/b", best)
	if w := r.Report().Warnings; len(w) != 1 || !strings.Contains(w[0], "is the default for batch jobs and has no active version") {
		t.Errorf("warnings: %q", w)
	}
	change(t, r, rollout.Retire{Policy: "ff"})
	if b := r.Book(); b.Default("batch") != rollout.BestFit {
		t.Errorf("a retired policy is the default for batch jobs: %q", b.Default("batch"))
	}
	restart()
	where(workload.Batch, "ff", "/b", best)
	where(workload.Batch, "nobody-knows", "/b", best)
}

// A canary of a percentage decides for some classes, the same ones in every shard.
func TestCanaryOfClasses(t *testing.T) {
	c := newCell(t)
	r := open(t, quick(c))
	digest := push(t, r, "ff", "firstfit")
	change(t, r, rollout.Move{Policy: "ff", Digest: digest, To: rollout.Canary, Scope: rollout.Scope{Percent: 30}})
	var tried [2][]int64
	for n := range tried {
		s := source(t, r, "c/0")
		for cpu := int64(100); cpu < 200; cpu++ {
			if place(t, s, newTable(t, 3), class(workload.Batch, "ff", cpu), 1, "")[0] == 0 {
				tried[n] = append(tried[n], cpu)
			}
		}
	}
	if !slices.Equal(tried[0], tried[1]) || len(tried[0]) < 15 || len(tried[0]) > 45 {
		t.Errorf("of 100 classes %v and %v are tried", tried[0], tried[1])
	}
}

// Each bad policy passes the trial, does its harm once it is at work, and is rolled back for the right reason; all tasks are placed nevertheless.
func TestBadPoliciesAreRolledBack(t *testing.T) {
	for name, why := range map[string]string{
		"trap": "unreachable", "loop": "paceline_place", "bomb": "paceline_place", "rows": "no host at row", "lazy": "without a host", "start": "_initialize",
	} {
		t.Run(name, func(t *testing.T) {
			c := newCell(t)
			r := open(t, quick(c))
			good := push(t, r, "p", "firstfit")
			change(t, r, rollout.Move{Policy: "p", Digest: good, To: rollout.Active})
			bad := push(t, r, "p", name)
			change(t, r, rollout.Move{Policy: "p", Digest: bad, To: rollout.Active})
			ctx, stop := context.WithCancel(t.Context())
			var running sync.WaitGroup
			running.Go(func() { r.Run(ctx) })
			defer running.Wait()
			defer stop()
			s := source(t, r, "c/0")
			table := newTable(t, 64)
			work := class(workload.Batch, "p", 10)
			for deadline := time.Now().Add(2 * time.Minute); stages(r, "p") != good.Short()[:4]+"=active "+bad.Short()[:4]+"=rolled-back "; {
				if time.Now().After(deadline) {
					t.Fatalf("it is in force still: %s, %+v", stages(r, "p"), r.Report().Fares)
				}
				p, _ := s.Placer("p")
				got := p.Place(table, []placement.Request{{Class: work, Count: 4}})
				if name != "lazy" && got[0].Refused > 0 {
					t.Fatalf("refused: %+v", got)
				}
				for _, a := range got[0].Assignments {
					if err := table.Release(a.Row, work.Occupant(a.Devices, a.Ports)); err != nil {
						t.Fatal(err)
					}
				}
			}
			book := r.Book()
			if v := book.Find("p").Version(bad); !strings.Contains(v.Why, why) || v.By != "" {
				t.Errorf("rolled back by %q because %q, want %q", v.By, v.Why, why)
			}
			if w := strings.Join(r.Report().Warnings, "\n"); !strings.Contains(w, why) {
				t.Errorf("warnings: %s", w)
			}
			wait(t, "the version before is at work again", func() bool { return place(t, s, newTable(t, 3), work, 1, "")[0] == 0 })
			c.start(t)
			if again := open(t, quick(c)); stages(again, "p") != stages(r, "p") {
				t.Errorf("after a start: %s", stages(again, "p"))
			}
		})
	}
}

// What is bad by itself does not get as far as the store.
func TestPushRefuses(t *testing.T) {
	c := newCell(t)
	r := open(t, quick(c))
	for name, p := range map[string]struct {
		policy, kind string
		module       []byte
		want         string
	}{
		"no module":      {"p", "", []byte("hello"), "module is refused"},
		"another kind":   {"p", "quota", guest(t, "firstfit"), "of kind place, not quota"},
		"a built-in":     {"pack", "", guest(t, "firstfit"), "built in"},
		"no good name":   {"Two Words", "", guest(t, "firstfit"), "no name"},
		"cut off":        {"p", "", guest(t, "firstfit")[:400], "module is refused"},
		"nothing at all": {"p", "", nil, "module is refused"},
	} {
		if _, err := r.Push(t.Context(), "ann", rollout.Upload{Policy: p.policy, Kind: p.kind, Module: p.module}); err == nil || !strings.Contains(err.Error(), p.want) {
			t.Errorf("%s: %v, want %q", name, err, p.want)
		}
	}
	if len(r.Book().Policies) > 0 || len(c.archives) > 0 {
		t.Error("something was kept")
	}
}

// A change that cannot be made durable is none; a rollback by a gate is, and is written down later.
func TestStoreFails(t *testing.T) {
	c := newCell(t)
	r := open(t, quick(c))
	digest := push(t, r, "p", "trap")
	c.fail = errors.New("the disk is full")
	if _, err := r.Change(t.Context(), "ann", rollout.Move{Policy: "p", Digest: digest, To: rollout.Active}); err == nil {
		t.Fatal("acknowledged")
	}
	if got := stages(r, "p"); !strings.Contains(got, "uploaded") {
		t.Fatalf("it is %s", got)
	}
	c.fail = nil
	change(t, r, rollout.Move{Policy: "p", Digest: digest, To: rollout.Active})
	c.fail = errors.New("the disk is full")
	s := source(t, r, "c/0")
	for range 3 {
		place(t, s, newTable(t, 3), class(workload.Batch, "p", 10), 1, "")
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { r.Run(ctx) })
	defer running.Wait()
	defer stop()
	wait(t, "it is out of force", func() bool { return strings.Contains(stages(r, "p"), "rolled-back") })
	c.mu.Lock()
	c.fail = nil
	c.mu.Unlock()
	wait(t, "the store knows", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return strings.Contains(string(c.image.Policies.State), "rolled-back")
	})
}

func wait(t *testing.T, what string, is func() bool) {
	t.Helper()
	look, deadline := time.NewTicker(time.Millisecond), time.After(2*time.Minute)
	defer look.Stop()
	for !is() {
		select {
		case <-look.C:
		case <-deadline:
			t.Fatalf("never: %s", what)
		}
	}
}

// With keys, a module must be signed by one of them, at the push and at every start.
func TestSignatures(t *testing.T) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	module := guest(t, "firstfit")
	text, err := signature.Sign(module, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), "ann")
	if err != nil {
		t.Fatal(err)
	}
	c := newCell(t)
	config := quick(c)
	config.Keys = signature.Keys{"ann": public}
	r := open(t, config)
	if _, err := r.Push(t.Context(), "ann", rollout.Upload{Policy: "p", Module: module}); err == nil || !strings.Contains(err.Error(), "not signed") {
		t.Fatalf("without a signature: %v", err)
	}
	if _, err := r.Push(t.Context(), "ann", rollout.Upload{Policy: "p", Module: guest(t, "trap"), Signature: text}); err == nil || !strings.Contains(err.Error(), "not of this module") {
		t.Fatalf("with another's signature: %v", err)
	}
	digest, err := r.Push(t.Context(), "ann", rollout.Upload{Policy: "p", Module: module, Signature: text})
	if err != nil {
		t.Fatal(err)
	}
	change(t, r, rollout.Move{Policy: "p", Digest: digest, To: rollout.Active})
	r.Close()
	c.start(t)
	if r = open(t, config); !strings.Contains(stages(r, "p"), "active") {
		t.Fatalf("after a start: %s", stages(r, "p"))
	}
	r.Close()
	c.start(t)
	other, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	config.Keys = signature.Keys{"bob": other}
	r = open(t, config)
	if v := r.Book(); v.Policies[0].Versions[0].Stage != rollout.RolledBack || !strings.Contains(v.Policies[0].Versions[0].Why, "does not trust") {
		t.Errorf("under other keys: %+v", v.Policies[0].Versions[0])
	}
}

// The members of a gang stay together, whoever decides for each of them alone.
func TestUnitsStayTogether(t *testing.T) {
	c := newCell(t)
	r := open(t, quick(c))
	digest := push(t, r, "ff", "firstfit")
	change(t, r, rollout.Move{Policy: "ff", Digest: digest, To: rollout.Canary, Scope: rollout.Scope{Percent: 50}})
	s := source(t, r, "c/0")
	table := newTable(t, 6)
	var requests []placement.Request
	for cpu := int64(1); cpu <= 8; cpu++ {
		requests = append(requests, placement.Request{Class: class(workload.Batch, "ff", cpu*100), Count: 1, Gang: true, Unit: 1})
	}
	requests[7].Class = class(workload.Batch, "ff", 1<<40)
	p, _ := s.Placer("ff")
	for i, got := range p.Place(table, requests) {
		if len(got.Assignments) > 0 {
			t.Errorf("member %d was placed, though one of them has no room anywhere", i)
		}
	}
}

var _ placement.PlacerSource = (*registry.Source)(nil)

// One module with other values is another version, which a restart finds as it was.
func TestConfiguredVersions(t *testing.T) {
	c := newCell(t)
	r := open(t, quick(c))
	module := guest(t, "tunable")
	bring := func(order string) (rollout.Digest, error) {
		return r.Push(t.Context(), "ann", rollout.Upload{Policy: "p", Module: module, Config: map[string]string{"order": order}})
	}
	plain := push(t, r, "p", "tunable")
	if same, err := bring("1"); err != nil || same != plain {
		t.Fatalf("its own defaults make version %s of %s: %v", same.Short(), plain.Short(), err)
	}
	seven, err := bring("7")
	if err != nil || seven == plain {
		t.Fatal(seven, err)
	}
	for order, want := range map[string]string{"13": "configuration", "many": "is no int"} {
		if _, err := bring(order); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("order %s: %v", order, err)
		}
	}
	change(t, r, rollout.Move{Policy: "p", Digest: seven, To: rollout.Active})
	r.Close()
	c.start(t)
	r = open(t, quick(c))
	if v := r.Slot("preempt", "p").Current(); v == nil || rollout.Digest(v.Digest()) != seven || rollout.Digest(v.Module().Digest) != plain {
		t.Fatalf("in force is %v: %s", v, stages(r, "p"))
	}
	book := r.Book()
	if v := book.Find("p").Version(seven); v.Config["order"] != "7" || v.ModuleDigest() != plain || book.Find("p").Version(plain).Config != nil {
		t.Fatalf("%+v", v)
	}
}

// An edit that was made against another state of the policy is refused.
func TestExpectedVersion(t *testing.T) {
	r := open(t, quick(newCell(t)))
	digest := push(t, r, "p", "firstfit")
	book := r.Book()
	seen := book.Find("p").Edits
	change(t, r, rollout.Move{Policy: "p", Digest: digest, To: rollout.Active, Expected: seen})
	for _, event := range []rollout.Event{
		rollout.Move{Policy: "p", Digest: digest, To: rollout.Shadow, Expected: seen}, rollout.Rollback{Policy: "p", Expected: seen}, rollout.Retire{Policy: "p", Expected: seen},
	} {
		var refused *scheduler.Error
		if _, err := r.Change(t.Context(), "ann", event); !errors.As(err, &refused) || refused.Kind != scheduler.Aborted {
			t.Errorf("%+v: %v", event, err)
		}
	}
	if _, err := r.Push(t.Context(), "ann", rollout.Upload{Policy: "p", Module: guest(t, "trap"), Expected: seen}); err == nil {
		t.Error("a push is taken")
	}
	if got := stages(r, "p"); !strings.Contains(got, "active") || strings.Contains(got, "uploaded") {
		t.Fatal(got)
	}
	change(t, r, rollout.Retire{Policy: "p", Expected: seen + 1})
}

// An edit whose answer was lost became durable all the same: the next one finds out, and what the registry says is what a restart finds.
func TestAnswerIsLost(t *testing.T) {
	c := newCell(t)
	r := open(t, quick(c))
	first, second := push(t, r, "p", "firstfit"), push(t, r, "p", "bestfit")
	c.lose = errors.New("nobody waits any more")
	if _, err := r.Change(t.Context(), "ann", rollout.Move{Policy: "p", Digest: first, To: rollout.Active}); err == nil {
		t.Fatal("acknowledged")
	}
	c.lose = nil
	change(t, r, rollout.Move{Policy: "p", Digest: second, To: rollout.Shadow})
	before := stages(r, "p")
	r.Close()
	c.start(t)
	if r = open(t, quick(c)); stages(r, "p") != before || !strings.Contains(before, "shadow") || strings.Contains(before, "active") {
		t.Fatalf("it was %s and is %s", before, stages(r, "p"))
	}
}

// A shard lets go of a version that was retired as soon as it places anything, under whatever name.
func TestRetiredIsLetGo(t *testing.T) {
	r := open(t, quick(newCell(t)))
	digest := push(t, r, "p", "firstfit")
	change(t, r, rollout.Move{Policy: "p", Digest: digest, To: rollout.Active})
	s := source(t, r, "c/0")
	table := newTable(t, 3)
	place(t, s, table, class(workload.Batch, "p", 10), 1, "")
	version := r.Slot(rollout.Place, "p").Current()
	change(t, r, rollout.Retire{Policy: "p"})
	place(t, s, table, class(workload.Batch, "best-fit", 10), 1, "")
	select {
	case <-version.Closed():
	default:
		t.Fatal("the module is kept")
	}
}
