package host

// changeLogLen bounds what a reader may have missed before it has to look at every row again. Beyond it a full look costs no more
// than the list would.
const changeLogLen = 1 << 13

// changeLog remembers the rows that changed last, in order.
type changeLog struct {
	ring []Row
	next uint64 // position of the next change; positions start at 0 and never repeat
}

func (l *changeLog) add(row Row) {
	if l.ring == nil {
		l.ring = make([]Row, changeLogLen)
	}
	l.ring[l.next%changeLogLen] = row
	l.next++
}

// since returns the rows changed from position from on, as the two halves of the ring, or false when some are forgotten.
func (l *changeLog) since(from uint64) (older, newer []Row, ok bool) {
	n := l.next - from
	if from > l.next || n > changeLogLen {
		return nil, nil, false
	}
	if n == 0 {
		return nil, nil, true
	}
	first, end := from%changeLogLen, l.next%changeLogLen
	if first < end {
		return l.ring[first:end], nil, true
	}
	return l.ring[first:], l.ring[:end], true
}
