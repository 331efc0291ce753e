package placement

import (
	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/workload"
)

// maxClasses bounds the classes that a Native remembers; the least recently asked one makes room.
const maxClasses = 512

// Native is the built-in Placer. The zero value is ready for use. It caches what it learnt of one table; given another one it
// starts afresh.
type Native struct {
	table   *host.Table
	classes map[ClassID]*knowledge
	asked   uint64
	heap    []candidate // scratch
}

var _ Placer = (*Native)(nil)

// NewNative returns a placer with empty caches.
func NewNative() *Native { return &Native{} }

// Place implements Placer.
func (n *Native) Place(t *host.Table, requests []Request) []Result {
	results := make([]Result, len(requests))
	for from := 0; from < len(requests); {
		to := from + 1
		for ; to < len(requests) && requests[from].Unit != 0 && requests[to].Unit == requests[from].Unit; to++ {
		}
		if isUnit(requests[from:to]) {
			copy(results[from:], n.placeUnit(t, requests[from:to]))
		} else {
			for i := from; i < to; i++ {
				results[i] = n.place(t, &requests[i])
			}
		}
		for i := from; i < to; i++ {
			if requests[i].Gang && results[i].Refused > 0 {
				results[i].Reasons.GangSize = requests[i].Count
			}
		}
		from = to
	}
	return results
}

// isUnit reports whether requests are a gang of several classes, or one that has to look for a domain.
func isUnit(requests []Request) bool {
	for i := range requests {
		if !requests[i].Gang || requests[i].Class == nil || requests[i].Count <= 0 {
			return false
		}
	}
	return len(requests) > 1 || (requests[0].Within.Key != "" && requests[0].Within.Domain == "")
}

// Plan answers as Place would and leaves the table as it was. Of a gang that would start it tells as well who would join at once: up to Want
// assignments, and reasons when there are fewer.
func (n *Native) Plan(t *host.Table, requests []Request) []Result {
	results := n.Place(t, requests)
	joined := make([][]Assignment, len(requests))
	domain := ""
	for i := range requests {
		r := &requests[i]
		if !r.Gang || results[i].Refused > 0 || len(results[i].Assignments) == 0 {
			continue
		}
		if i == 0 || r.Unit == 0 || r.Unit != requests[i-1].Unit { // the gang is where its first member is
			domains := t.Domains(r.Within.Key)
			domain = domains.Name(domains.Of(results[i].Assignments[0].Row))
		}
		joined[i] = n.join(t, r, domain, &results[i])
	}
	for i := len(results) - 1; i >= 0; i-- {
		undo(t, requests[i].Class, joined[i])
	}
	for i := len(results) - 1; i >= 0; i-- {
		undo(t, requests[i].Class, results[i].Assignments)
		results[i].Assignments = append(results[i].Assignments, joined[i]...)
	}
	return results
}

// join places those who join a gang that has just started.
func (n *Native) join(t *host.Table, r *Request, domain string, start *Result) []Assignment {
	more := Request{Class: r.Class, Count: r.Want - r.Count, Seed: r.Seed}
	if more.Count <= 0 {
		return nil
	}
	if domain != "" {
		more.Within = Within{Key: r.Within.Key, Domain: domain, Required: r.Within.Required}
	}
	found := n.place(t, &more)
	start.Reasons = found.Reasons
	return found.Assignments
}

// Explain counts, host by host, why a task of the class would be refused now. A host that would take it is counted in Hosts only.
func (n *Native) Explain(t *host.Table, class *Class) Reasons {
	s := n.search(t, class, 1)
	return s.explain()
}

// place serves one request:
//  1. a named host is tried alone;
//  2. a class that was refused before is refused again if no host that changed since has room now;
//  3. a gang is counted before anything is taken, where counting is exact;
//  4. the tasks are placed one by one on the cheapest host;
//  5. a gang that turned out too large gives everything back and may try another domain;
//  6. what is left over is explained.
func (n *Native) place(t *host.Table, r *Request) Result {
	if r.Class == nil || r.Count <= 0 {
		return Result{}
	}
	s := n.search(t, r.Class, r.Count)
	if (r.Host != workload.HostID{}) {
		return s.placeOn(r)
	}
	switch {
	case r.Within.Domain != "":
		return s.placeInDomain(r)
	case r.Within.Key != "" && !r.Gang:
		return n.placePart(t, r)
	}
	if s.refusedAgain() {
		return Result{Refused: r.Count, Reasons: s.know.refusal.reasons()}
	}
	if r.Gang && s.countable() {
		if room := s.roomFor(r.Count); room < r.Count {
			return s.refuseGang(r, room, "")
		}
	}
	placed := s.placeAll(r)
	if len(placed) == r.Count {
		return Result{Assignments: placed}
	}
	if r.Gang {
		return s.refuseGang(r, len(placed), "")
	}
	return Result{Assignments: placed, Refused: r.Count - len(placed), Reasons: s.explain()}
}

func undo(t *host.Table, class *Class, placed []Assignment) {
	for i := len(placed) - 1; i >= 0; i-- {
		a := &placed[i]
		if err := t.Release(a.Row, class.Occupant(a.Devices, a.Ports)); err != nil {
			panic("placement: room taken a moment ago is not in the books: " + err.Error())
		}
	}
}

// placeOn places on the one host that the request names.
func (s *search) placeOn(r *Request) Result {
	row, known := s.table.Lookup(r.Host)
	if !known {
		return Result{Refused: r.Count, Reasons: Reasons{NeverFits: true}}
	}
	var placed []Assignment
	for len(placed) < r.Count && s.mask(int(row)/64)>>(uint(row)%64)&1 != 0 && s.fits(row) && s.joinable(row) {
		placed = append(placed, s.take(row))
	}
	if len(placed) == r.Count {
		return Result{Assignments: placed}
	}
	largest := len(placed)
	if r.Gang {
		undo(s.table, s.class, placed)
		placed = nil
	}
	reasons := Reasons{Hosts: 1}
	v := s.judge(row)
	reasons.NeverFits = !v.everFits()
	if v.feasible() {
		reasons.Counts[ReasonGang] = 1
	} else {
		reasons.Counts[v.reason()] = 1
	}
	if r.Gang {
		reasons.GangLargest, reasons.GangSize = largest, r.Count
	}
	return Result{Assignments: placed, Refused: r.Count - len(placed), Reasons: reasons}
}

func (s *search) refuseGang(r *Request, largest int, domain string) Result {
	reasons := s.explain()
	feasible := reasons.Hosts
	for _, c := range reasons.Counts {
		feasible -= c
	}
	reasons.Counts[ReasonGang] = feasible
	reasons.GangLargest, reasons.GangDomain = largest, domain
	return Result{Refused: r.Count, Reasons: reasons}
}

// knowledge is what a Native remembers of one class. It is a cache: everything in it follows from the class and the table.
type knowledge struct {
	class    *Class
	asked    uint64
	eligible host.Bitmap // hosts that Class.Matches
	bonus    []int64     // what preferences take off the cost, by row; nil when there are none
	seen     host.Position
	rows     int
	refusal  *refusal // nil until the class is refused
}

// learn returns what is known of a class, brought up to date.
func (n *Native) learn(t *host.Table, class *Class) *knowledge {
	if n.table != t || n.classes == nil {
		n.table, n.classes = t, map[ClassID]*knowledge{}
	}
	n.asked++
	k := n.classes[class.ID]
	if k == nil || k.class.digest != class.digest {
		n.makeRoom()
		k = &knowledge{class: class}
		n.classes[class.ID] = k
	}
	k.asked = n.asked
	k.refresh(t)
	return k
}

func (n *Native) makeRoom() {
	if len(n.classes) < maxClasses {
		return
	}
	oldest := n.asked
	var id ClassID
	for i, k := range n.classes {
		if k.asked < oldest { // distinct, so map order does not show
			oldest, id = k.asked, i
		}
	}
	delete(n.classes, id)
}

// refresh judges the conditions on hosts again: of those that changed shape, or of all when nothing or too little is known.
func (k *knowledge) refresh(t *host.Table) {
	now := t.Now()
	if k.eligible != nil && k.rows == t.Rows() && t.Reshaped(k.seen, func(row host.Row) { k.refreshRow(t, row) }) {
		k.seen = now
		return
	}
	k.rebuild(t)
	k.seen = now
}

func (k *knowledge) refreshRow(t *host.Table, row host.Row) {
	k.eligible.Set(row, k.class.Matches(t, row))
	if k.bonus != nil {
		k.bonus[row] = 0
		if t.Has(row) {
			for i := range k.class.Placement.Preferences {
				if p := &k.class.Placement.Preferences[i]; t.Meets(row, &p.Constraint) {
					k.bonus[row] += int64(p.Weight) * point
				}
			}
		}
	}
}

func (k *knowledge) rebuild(t *host.Table) {
	c := k.class
	k.rows = t.Rows()
	k.eligible = host.NewBitmap(k.rows)
	byHost := c.Placement.HostPool != "" || len(c.GPUModels) > 0
	for row := range host.Row(k.rows) {
		k.eligible.Set(row, t.Has(row) && (!byHost || c.inPool(t, row) && c.modelsFit(t, row)))
	}
	for i := range c.Placement.Constraints {
		t.Require(k.eligible, &c.Placement.Constraints[i])
	}
	if c.mere {
		t.Require(k.eligible, &runsCommands)
	}
	k.bonus = nil
	for i := range c.Placement.Preferences {
		p := &c.Placement.Preferences[i]
		if k.bonus == nil {
			k.bonus = make([]int64, k.rows)
		}
		meets := host.NewBitmap(k.rows)
		copy(meets, k.eligible)
		t.Require(meets, &p.Constraint)
		meets.Rows(func(row host.Row) bool {
			k.bonus[row] += int64(p.Weight) * point
			return true
		})
	}
}
