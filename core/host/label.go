package host

// LabelSet is an immutable set of labels in canonical form. It may be shared by any number of readers.
type LabelSet struct {
	pairs []string // key, value, ... sorted by key
	key   string   // canonical form: equal exactly for equal sets
}

// NewLabelSet returns the canonical form of labels, or nil when there are none.
func NewLabelSet(labels map[string]string) *LabelSet { return nil }
