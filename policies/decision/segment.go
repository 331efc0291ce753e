package decision

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
)

// Segment is one file of a log.
type Segment struct {
	Header
	Path  string
	Bytes int64
}

// errEnough ends a reading early.
var errEnough = errors.New("enough")

// Segments lists the segments of a log by shard and number. Files that are none are left out.
func Segments(dir string) ([]Segment, error) {
	files, err := list(dir)
	if err != nil {
		return nil, err
	}
	var all []Segment
	for _, f := range files {
		s := Segment{Path: f.path, Bytes: f.bytes}
		_, err := s.read(func(e Event) error {
			s.Header = *e.Header // the first record is nothing else
			return errEnough
		})
		switch {
		case errors.Is(err, errEnough):
			all = append(all, s)
		case err != nil && !errors.Is(err, ErrNoSegment) && !errors.Is(err, os.ErrNotExist):
			return nil, err
		}
	}
	slices.SortFunc(all, func(a, b Segment) int { return cmp.Or(cmp.Compare(a.Shard, b.Shard), cmp.Compare(a.Number, b.Number)) })
	return all, nil
}

func (s *Segment) read(visit func(Event) error) (Tail, error) {
	file, err := os.Open(s.Path)
	if err != nil {
		return Tail{}, fmt.Errorf("read decisions: %w", err)
	}
	defer file.Close() //nolint:errcheck // it is only read
	return Read(bufio.NewReaderSize(file, 1<<18), visit)
}

// Range says which part of a log is wanted.
type Range struct {
	Shard string // "": all
	// Since and Until are UTC nanoseconds; 0: from the beginning, to the end. Reading begins with the segment in which Since falls.
	Since, Until int64
}

// choose returns the wanted segments, those of a shard together and in order.
func (r *Range) choose(all []Segment) [][]Segment {
	var shards [][]Segment
	for i, s := range all {
		last := i+1 == len(all) || all[i+1].Shard != s.Shard
		switch {
		case r.Shard != "" && r.Shard != s.Shard, r.Until != 0 && s.Began > r.Until:
		case !last && all[i+1].Began <= r.Since: // the next one begins before
		case len(shards) > 0 && shards[len(shards)-1][0].Shard == s.Shard:
			shards[len(shards)-1] = append(shards[len(shards)-1], s)
		default:
			shards = append(shards, []Segment{s})
		}
	}
	return shards
}

// Visit reads the wanted part of a log, shard by shard. Torn says how many segments end in something that is no record: where a machine died, or where one is
// being written.
func Visit(dir string, wanted Range, visit func(Event) error) (torn int, err error) {
	all, err := Segments(dir)
	if err != nil {
		return 0, err
	}
	for _, segments := range wanted.choose(all) {
		for i := range segments {
			tail, err := segments[i].read(func(e Event) error {
				if d := e.Decision; d != nil && wanted.Until != 0 && d.At > wanted.Until {
					return errEnough
				}
				return visit(e)
			})
			if errors.Is(err, errEnough) {
				break
			}
			if err != nil {
				return torn, err
			}
			if tail.Err != nil {
				torn++
			}
		}
	}
	return torn, nil
}
