package host

import (
	"encoding/binary"
	"iter"
	"maps"
	"slices"
)

// LabelSet is an immutable set of labels in canonical form. It may be shared by any number of readers. A nil set is empty.
type LabelSet struct {
	pairs map[string]string
	key   string // canonical form: equal exactly for equal sets
}

// NewLabelSet returns the canonical form of labels, or nil when there are none.
func NewLabelSet(labels map[string]string) *LabelSet {
	if len(labels) == 0 {
		return nil
	}
	keys := make([]string, 0, len(labels))
	for k := range labels {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	pairs := make(map[string]string, len(labels))
	var b []byte
	for _, k := range keys {
		pairs[k] = labels[k]
		b = appendString(appendString(b, k), labels[k])
	}
	return &LabelSet{pairs: pairs, key: string(b)}
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// Covers reports whether every pair of selector is in the set. An empty selector is covered by every set.
func (l *LabelSet) Covers(selector *LabelSet) bool {
	if selector == nil {
		return true
	}
	if l == nil {
		return false
	}
	for k, v := range selector.pairs {
		if have, ok := l.pairs[k]; !ok || have != v {
			return false
		}
	}
	return true
}

// All yields the labels in the order of their keys.
func (l *LabelSet) All() iter.Seq2[string, string] {
	return func(yield func(key, value string) bool) {
		if l == nil {
			return
		}
		for _, k := range slices.Sorted(maps.Keys(l.pairs)) {
			if !yield(k, l.pairs[k]) {
				return
			}
		}
	}
}

// Canonical is a string that equal sets have alike, and others have not.
func (l *LabelSet) Canonical() string {
	if l == nil {
		return ""
	}
	return l.key
}
