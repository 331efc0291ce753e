package wasm

import "testing"

func TestLinearMemory(t *testing.T) {
	var l linear
	m := l.Allocate(1, 1<<20)
	first := m.Reallocate(1 << 16)
	first[7] = 9
	grown := m.Reallocate(1 << 20)
	if len(grown) != 1<<20 || &grown[0] != &first[0] || grown[7] != 9 || grown[1<<20-1] != 0 {
		t.Fatal("growing must leave the memory where it is, with zeros behind it")
	}
	if m.Reallocate(1<<20+1) != nil {
		t.Fatal("it grew beyond what it may ever be")
	}
	m.Free()
	m.Free()
	if l.b != nil {
		t.Fatal("it holds on to memory that it gave back")
	}
	if again := l.Allocate(1, 1<<16).Reallocate(1 << 16); again[7] != 0 {
		t.Fatal("another instance finds what was left behind")
	}
	l.Free()
}

func TestGenerosity(t *testing.T) {
	b := budget{}
	b.used(1000, 4000)
	b.seal()
	const work, limit = 1 << 20, 1 << 40
	for _, c := range []struct {
		memory int
		want   int64
	}{{0, 20}, {16 << 20, 20}, {32 << 20, 10}, {64 << 20, 5}, {1 << 30, 5}} {
		if got := b.fuel(work, c.memory, limit); got != c.want*4*work {
			t.Errorf("with %d MiB a call may use %d times the trial's fuel, not %d", c.memory>>20, got/4/work, c.want)
		}
	}
	if got := b.fuel(1<<60, 0, limit); got != limit {
		t.Errorf("the limit does not hold: %d", got)
	}
}
