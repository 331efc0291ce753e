package storetest

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/paceline-sched/paceline/core/store"
)

const (
	childDir   = "PACELINE_STORETEST_DIR"
	childStart = "PACELINE_STORETEST_START"

	killRounds  = 4
	killTimeout = 2 * time.Minute
)

// Child runs the writer that the kill test kills, when this process is one: it then returns only on failure, and with true. A
// backend's TestMain calls it first; open opens Place.Dir.
func Child(open func(ctx context.Context, dir string) (store.Store, error)) (bool, error) {
	dir := os.Getenv(childDir)
	if dir == "" {
		return false, nil
	}
	return true, childWrite(open, dir)
}

// The writer's group n sets "head" to n and puts killKeys keys under "<n>/", so what is there tells which groups are whole.
const killKeys = 5

func killGroup(keys store.Keyspace, n uint64) store.Group {
	g := group(put(keys.CellRecord("kit/head"), strconv.FormatUint(n, 10)))
	for i := range killKeys {
		g.Ops = append(g.Ops, put(keys.CellRecord(fmt.Sprintf("kit/n/%012d/%d", n, i)), strings.Repeat("v", int(n*37%1500))))
	}
	return g
}

func childWrite(open func(ctx context.Context, dir string) (store.Store, error), dir string) error {
	next, err := strconv.ParseUint(os.Getenv(childStart), 10, 64)
	if err != nil {
		return err
	}
	keys, err := store.NewKeyspace(Cell)
	if err != nil {
		return err
	}
	ctx := context.Background()
	s, err := open(ctx, dir)
	if err != nil {
		return err
	}
	for { // until killed
		var groups []store.Group
		for range 1 + next%7 {
			groups = append(groups, killGroup(keys, next))
			next++
		}
		if err := s.Commit(ctx, groups); err != nil {
			return err
		}
		if _, err := fmt.Fprintln(os.Stdout, next-1); err != nil { // acknowledged
			return err
		}
	}
}

func testKill(t *testing.T, k *kit) {
	if k.Dir == "" {
		t.Skip("the store has no files that another process could open")
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	var head uint64
	for round := range killRounds {
		acknowledged := k.killWriter(head+1, 1+random.IntN(60), time.Duration(random.IntN(4000))*time.Microsecond)
		s := k.open()
		now := k.checkPrefix(s)
		if now < acknowledged {
			t.Fatalf("round %d: group %d was acknowledged, but only %d are there", round, acknowledged, now)
		}
		head = now
		k.close(s)
	}
}

// killWriter kills a writer a moment after it acknowledged so many commits and returns the last group that it acknowledged.
func (k *kit) killWriter(start uint64, commits int, moment time.Duration) uint64 {
	k.Helper()
	ctx, cancel := context.WithTimeout(k.Context(), killTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), childDir+"="+k.Dir, childStart+"="+strconv.FormatUint(start, 10))
	var complaint strings.Builder
	cmd.Stderr = &complaint
	out, err := cmd.StdoutPipe()
	if err != nil {
		k.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		k.Fatal(err)
	}
	var last uint64
	lines := bufio.NewScanner(out)
	for n := 0; lines.Scan(); n++ {
		if last, err = strconv.ParseUint(lines.Text(), 10, 64); err != nil {
			k.Fatal(err)
		}
		if n == commits {
			time.AfterFunc(moment, func() { _ = cmd.Process.Kill() }) // SIGKILL; Wait tells whether it came
		}
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != -1 {
		k.Fatalf("the writer ended by itself: %v\n%s", err, complaint.String())
	}
	return last
}

// checkPrefix fails unless exactly the groups up to some number are there, whole, and returns the number.
func (k *kit) checkPrefix(s store.Store) uint64 {
	k.Helper()
	snap := k.snapshot(s)
	defer snap.Close()
	head, err := strconv.ParseUint(string(k.get(snap, "head")), 10, 64)
	if err != nil {
		k.Fatal(err)
	}
	var records uint64
	if err := snap.Scan(k.key("n/"), nil, func(key, value []byte) (bool, error) {
		n, i := records/killKeys+1, records%killKeys
		records++
		if want := k.key(fmt.Sprintf("n/%012d/%d", n, i)); string(key) != string(want) || len(value) != int(n*37%1500) {
			return false, fmt.Errorf("found key %q with %d bytes where group %d has %q", key, len(value), n, want)
		}
		return true, nil
	}); err != nil {
		k.Fatal(err)
	}
	if records != head*killKeys {
		k.Fatalf("the head is group %d, but there are %d records", head, records)
	}
	return head
}
