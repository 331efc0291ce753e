package host

import "math/bits"

// Bitmap is a set of rows: bit r%64 of word r/64.
type Bitmap []uint64

const wordBits = 64

// NewBitmap returns an empty set for rows below n.
func NewBitmap(n int) Bitmap { return make(Bitmap, (n+wordBits-1)/wordBits) }

// Has reports whether row is in the set. Rows beyond its size are not.
func (b Bitmap) Has(row Row) bool {
	w := int(row) / wordBits
	return w < len(b) && b[w]>>(uint(row)%wordBits)&1 != 0
}

// Set puts row into the set or takes it out. row must be within its size.
func (b Bitmap) Set(row Row, in bool) {
	bit := uint64(1) << (uint(row) % wordBits)
	if in {
		b[int(row)/wordBits] |= bit
		return
	}
	b[int(row)/wordBits] &^= bit
}

// Count returns the number of rows in the set.
func (b Bitmap) Count() int {
	n := 0
	for _, w := range b {
		n += bits.OnesCount64(w)
	}
	return n
}

// Rows calls visit for every row of the set in ascending order until it returns false.
func (b Bitmap) Rows(visit func(Row) bool) {
	for i, w := range b {
		for ; w != 0; w &= w - 1 {
			if !visit(Row(i*wordBits + bits.TrailingZeros64(w))) {
				return
			}
		}
	}
}
