package preemption

import (
	"fmt"

	"github.com/paceline-sched/paceline/core/host"
)

// ServeApart is Serve with every host looked at for every request: there is no crowd, and no offers that one request leaves to the next.
func (s *Search) ServeApart(b Board, requests []Request) []Result {
	s.begin(b)
	s.apart = true
	results := make([]Result, 0, len(requests))
	var dry []*query
	for i := range requests {
		var found []Result
		found, dry = s.serveNext(requests[i:i+1], dry)
		results = append(results, found...)
	}
	undoAll(dry)
	s.end()
	s.apart = false
	return results
}

// CheckLooks compares what look makes of every host with what evaluate does. It reports how many hosts look judged for itself.
func (s *Search) CheckLooks(b Board, r *Request) (judged int, err error) {
	s.begin(b)
	defer s.end()
	q := s.query(r)
	for row := range host.Row(b.Table.Rows()) {
		if !q.rows.Eligible(row) {
			continue
		}
		least, some := q.leastFor(row)
		bound, may := q.look(row)
		offer, fits := q.evaluate(row)
		exact := bound.round == s.round
		switch {
		case fits && !may:
			return judged, fmt.Errorf("row %d offers %+v and looks hopeless", row, offer)
		case fits && offer.tier >= 0 && (!some || offer.before(&least)):
			return judged, fmt.Errorf("row %d offers %+v, and to anybody %+v, %v, at most", row, offer, least, some)
		case fits && offer.before(&bound):
			return judged, fmt.Errorf("row %d offers %+v, more than its bound %+v", row, offer, bound)
		case exact && (fits != may || fits && offer != bound):
			return judged, fmt.Errorf("row %d offers %+v, %v, and is taken to offer %+v, %v", row, offer, fits, bound, may)
		}
		if exact {
			judged++
		}
	}
	return judged, nil
}
