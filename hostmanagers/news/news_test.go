package news_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/news"
)

// ear writes down what it hears, and ends its context with the word it waits for.
type ear struct {
	heard []string
	sizes []int // of each call with statuses
	until string
	end   context.CancelFunc
}

func (e *ear) hear(words ...string) {
	e.heard = append(e.heard, words...)
	if slices.Contains(words, e.until) {
		e.end()
	}
}

func (e *ear) Inventory(i driver.Inventory) { e.hear("inventory " + i.Hosts[0].Name) }

func (e *ear) HostsChanged(changed []driver.Host, removed []string) {
	e.hear("changed " + changed[0].Name + " removed " + removed[0])
}

func (e *ear) Disconnected(reason error) { e.hear("disconnected " + reason.Error()) }

func (e *ear) Statuses(statuses []driver.Status) {
	e.sizes = append(e.sizes, len(statuses))
	var words []string
	for i := range statuses {
		words = append(words, statuses[i].Message)
	}
	e.hear(words...)
}

func listen(t *testing.T, q *news.Queue, until string) *ear {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	e := &ear{until: until, end: cancel}
	q.Deliver(ctx, e)
	return e
}

func statuses(messages ...string) news.Item {
	var n news.Item
	for _, m := range messages {
		n.Statuses = append(n.Statuses, driver.Status{Run: workload.RunID{}, Message: m})
	}
	return n
}

// What is told stays in order, across calls of Add; statuses are joined with those right before them only.
func TestOrder(t *testing.T) {
	t.Parallel()
	q := news.NewQueue()
	items := []news.Item{statuses("a"), statuses("b", "c"), {Disconnected: errors.New("gone")}, {Inventory: &driver.Inventory{Hosts: []driver.Host{{Name: "h"}}}}}
	q.Add(items)
	clear(items) // the slice is the caller's again
	q.Add(nil)
	q.Add([]news.Item{statuses("d"), {Changed: []driver.Host{{Name: "i"}}, Removed: []string{"h"}}})
	q.Add([]news.Item{statuses("e"), statuses("f")})
	e := listen(t, q, "f")
	want := []string{"a", "b", "c", "disconnected gone", "inventory h", "d", "changed i removed h", "e", "f"}
	if !slices.Equal(e.heard, want) || !slices.Equal(e.sizes, []int{3, 1, 2}) {
		t.Errorf("heard %q in calls of %d statuses, want %q in calls of 3, 1 and 2", e.heard, e.sizes, want)
	}
}

// A call of the sink stops growing, however many statuses wait.
func TestBatch(t *testing.T) {
	t.Parallel()
	q := news.NewQueue()
	for range 4096 {
		q.Add([]news.Item{statuses("x", "x")})
	}
	q.Add([]news.Item{statuses("last")})
	if e := listen(t, q, "last"); !slices.Equal(e.sizes, []int{4096, 4096, 1}) || strings.Count(strings.Join(e.heard, ""), "x") != 8192 {
		t.Errorf("calls of %d statuses, %d in all; want 4096, 4096 and 1", e.sizes, len(e.heard))
	}
}

// Begun waits for the first inventory, and nothing is told once the context has ended.
func TestBegun(t *testing.T) {
	t.Parallel()
	begun := func(q *news.Queue) bool {
		select {
		case <-q.Begun():
			return true
		default:
			return false
		}
	}
	q := news.NewQueue()
	inventory := news.Item{Inventory: &driver.Inventory{Hosts: []driver.Host{{Name: "h"}}}}
	q.Add([]news.Item{statuses("a"), inventory})
	if e := listen(t, q, "a"); begun(q) || len(e.heard) != 1 {
		t.Errorf("begun %t after %q, want only the status to be told", begun(q), e.heard)
	}
	q = news.NewQueue()
	q.Add([]news.Item{inventory, {Disconnected: errors.New("gone")}, inventory, statuses("b")})
	if e := listen(t, q, "b"); !begun(q) || len(e.heard) != 4 {
		t.Errorf("begun %t after %q, want all four told", begun(q), e.heard)
	}
}
