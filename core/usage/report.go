package usage

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// Query asks for a report.
type Query struct {
	Since, Until int64  // UTC nanoseconds
	Root         string // pools at this path and below it; "/" is all
	// Step is the length of one Point; 0: no series. It is at least Period.
	Step time.Duration
}

// From is the time of the first readings that Compute wants to see: before Since, so that there is one to start from.
func (q *Query) From() int64 { return q.Since - int64(time.Hour) - int64(Period) }

// MaxPoints bounds the points of one report. Those that would come after are left out, and Report.Cut says so.
const MaxPoints = 20_000

// Amounts are resource-seconds of a span of time.
type Amounts struct {
	Held, Entitled, Demanded, Deficit, Overage resource.Vector
}

func (a *Amounts) add(o *Amounts) {
	a.Held, a.Entitled, a.Demanded = a.Held.Add(o.Held), a.Entitled.Add(o.Entitled), a.Demanded.Add(o.Demanded)
	a.Deficit, a.Overage = a.Deficit.Add(o.Deficit), a.Overage.Add(o.Overage)
}

// Row is a pool over the whole span. From and Until are the readings that it was computed from.
type Row struct {
	Path        string
	Leaf        bool
	From, Until int64
	Amounts
}

// OwnerRow is an owner's work in a pool over the whole span.
type OwnerRow struct {
	Path, Owner string
	Held        resource.Vector
}

// Point is a pool over one step, which ends at At.
type Point struct {
	At   int64
	Path string
	Amounts
}

// Report is what happened in a span of time: rows by path, owners by path and name, points by time and path. Pools that were moved
// count where they were at the time.
type Report struct {
	Rows   []Row
	Owners []OwnerRow
	Points []Point
	Cut    bool // there are more points than MaxPoints
}

// Compute works a report out of samples, which come in order of time from Query.From on. It costs one look at each.
func Compute(q Query, samples func(yield func(*Sample) bool)) Report {
	c := computation{
		query: q, last: map[workload.PoolID]*Sample{}, owned: map[workload.PoolID]*Sample{}, rows: map[string]*Row{},
		owners: map[[2]string]*OwnerRow{}, points: map[pointKey]*Point{},
	}
	for s := range samples {
		if s.At > q.Until {
			break
		}
		c.see(s)
	}
	return c.report()
}

type pointKey struct {
	at   int64
	path string
}

type computation struct {
	query  Query
	last   map[workload.PoolID]*Sample // the reading before
	owned  map[workload.PoolID]*Sample // the one before that has owners
	rows   map[string]*Row
	owners map[[2]string]*OwnerRow
	points map[pointKey]*Point
	cut    bool
}

func (c *computation) see(s *Sample) {
	before := c.last[s.Pool]
	c.last[s.Pool] = s
	base := c.base(before, s)
	if base != nil && s.At > c.query.Since {
		delta := difference(s, base)
		balance := Amounts{Entitled: delta.Entitled, Demanded: delta.Demanded, Deficit: delta.Deficit, Overage: delta.Overage}
		c.credit(s, base, s.Path, &balance)
		if s.Leaf {
			held := Amounts{Held: delta.Held}
			for path := s.Path; path != ""; path = parent(path) {
				c.credit(s, base, path, &held)
			}
		}
	}
	if s.At%int64(OwnerPeriod) == 0 || len(s.Owners) > 0 {
		if base := c.base(c.owned[s.Pool], s); base != nil && s.At > c.query.Since {
			c.seeOwners(s, base)
		}
		c.owned[s.Pool] = s
	}
}

// base is the reading from which s is counted. A pool whose counters began inside the span is counted from nothing; one of which the readings
// before the span are gone, from its first in the span.
func (c *computation) base(before, s *Sample) *Sample {
	if before == nil && s.First >= c.query.Since {
		return &Sample{At: s.First, Pool: s.Pool}
	}
	return before
}

func difference(s, base *Sample) Amounts {
	return Amounts{
		Held: s.Held.Sub(base.Held), Entitled: s.Entitled.Sub(base.Entitled), Demanded: s.Demanded.Sub(base.Demanded),
		Deficit: s.Deficit.Sub(base.Deficit), Overage: s.Overage.Sub(base.Overage),
	}
}

// credit adds amounts to the pool at a path, if the report is about it.
func (c *computation) credit(s, base *Sample, path string, amounts *Amounts) {
	if !Below(path, c.query.Root) {
		return
	}
	r := c.rows[path]
	if r == nil {
		r = &Row{Path: path, From: base.At}
		c.rows[path] = r
	}
	r.From, r.Until = min(r.From, base.At), max(r.Until, s.At)
	r.Leaf = r.Leaf || (s.Leaf && path == s.Path)
	r.add(amounts)
	if c.query.Step <= 0 {
		return
	}
	key := pointKey{at: c.stepOf(s.At), path: path}
	p := c.points[key]
	if p == nil {
		if len(c.points) >= MaxPoints {
			c.cut = true
			return
		}
		p = &Point{At: key.at, Path: path}
		c.points[key] = p
	}
	p.add(amounts)
}

// stepOf is the end of the step that a time falls into.
func (c *computation) stepOf(at int64) int64 {
	step := int64(c.query.Step)
	return c.query.Since + (at-c.query.Since+step-1)/step*step
}

func (c *computation) seeOwners(s, base *Sample) {
	if !Below(s.Path, c.query.Root) {
		return
	}
	for _, o := range s.Owners {
		held := o.Held
		if n, found := slices.BinarySearchFunc(base.Owners, o.Owner, func(r OwnerReading, name string) int { return strings.Compare(r.Owner, name) }); found {
			held = held.Sub(base.Owners[n].Held)
		}
		if held.IsZero() {
			continue
		}
		key := [2]string{s.Path, o.Owner}
		r := c.owners[key]
		if r == nil {
			r = &OwnerRow{Path: s.Path, Owner: o.Owner}
			c.owners[key] = r
		}
		r.Held = r.Held.Add(held)
	}
}

func (c *computation) report() Report {
	r := Report{Cut: c.cut}
	for _, row := range c.rows {
		r.Rows = append(r.Rows, *row)
	}
	for _, o := range c.owners {
		r.Owners = append(r.Owners, *o)
	}
	for _, p := range c.points {
		r.Points = append(r.Points, *p)
	}
	slices.SortFunc(r.Rows, func(a, b Row) int { return strings.Compare(a.Path, b.Path) })
	slices.SortFunc(r.Owners, func(a, b OwnerRow) int {
		return cmp.Or(strings.Compare(a.Path, b.Path), strings.Compare(a.Owner, b.Owner))
	})
	slices.SortFunc(r.Points, func(a, b Point) int { return cmp.Or(cmp.Compare(a.At, b.At), strings.Compare(a.Path, b.Path)) })
	return r
}

// Below reports whether a path is that of root or of a pool below it.
func Below(path, root string) bool {
	return root == "/" || path == root || strings.HasPrefix(path, root+"/")
}

// parent is the path above; "" above the root.
func parent(path string) string {
	if path == "/" {
		return ""
	}
	if i := strings.LastIndexByte(path, '/'); i > 0 {
		return path[:i]
	}
	return "/"
}

// JainIndex is how evenly the pools of a report fared, from 1/n (one has all) to 1 (all fared alike), by what part each got of what it was
// entitled to and demanded in the kind. Pools that wanted nothing do not count; without any it is 1. Source: Jain, Chiu and Hawe, DEC-TR-301.
func JainIndex(rows []Row, kind resource.Kind) float64 {
	sum, squares, n := 0.0, 0.0, 0
	for i := range rows {
		r := &rows[i]
		if !r.Leaf || r.Demanded[kind] == 0 {
			continue
		}
		due := min(r.Entitled[kind], r.Demanded[kind])
		x := 1.0
		if due > 0 {
			x = max(0, 1-float64(r.Deficit[kind])/float64(due))
		}
		sum, squares, n = sum+x, squares+x*x, n+1
	}
	if n == 0 || squares == 0 {
		return 1
	}
	return sum * sum / (float64(n) * squares)
}
