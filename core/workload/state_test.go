package workload

import "testing"

// TestRunTraits holds what must be true of the table as a whole, row by row.
func TestRunTraits(t *testing.T) {
	names := map[string]RunState{}
	for s := range numRunStates {
		tr := s.Traits()
		if other, twice := names[tr.Name]; twice || tr.Name == "" {
			t.Errorf("state %d is named %q, as is %d", s, tr.Name, other)
		}
		names[tr.Name] = s
		if tr.Holds != tr.Charges {
			t.Errorf("%s: what holds room must be paid for, and nothing else", s)
		}
		if tr.Terminal && tr.Holds {
			t.Errorf("%s has ended and holds room", s)
		}
		if s != RunNone && !tr.Terminal && !tr.Holds {
			t.Errorf("%s is alive and holds nothing", s)
		}
		if (s == RunRunning) == tr.Unavailable {
			t.Errorf("%s: an instance is available when its run is RUNNING, and only then", s)
		}
		if s.Live() != tr.Holds {
			t.Errorf("%s: live %v, holds %v", s, s.Live(), tr.Holds)
		}
	}
	if RunState(200).Traits() != RunNone.Traits() {
		t.Error("a state outside the enum must have the traits of NONE")
	}
}

func TestNamesOfStates(t *testing.T) {
	seen := map[string]bool{}
	for s := range numInstanceStates {
		if seen[s.String()] || s.String() == "" {
			t.Errorf("instance state %d is named %q", s, s)
		}
		seen[s.String()] = true
		if want := s == InstanceDone || s == InstanceFailed || s == InstanceStopped; s.Terminal() != want {
			t.Errorf("%s: terminal %v", s, s.Terminal())
		}
	}
	for s := range numJobStates {
		if want := s == JobSucceeded || s == JobFailed || s == JobStopped; s.Terminal() != want || s.String() == "" {
			t.Errorf("job state %d %q: terminal %v", s, s, s.Terminal())
		}
	}
	for r := Reason(1); r < numReasons; r++ {
		if r.String() == "" || r.String() == "UNKNOWN" || seen[r.String()] {
			t.Errorf("reason %d is named %q", r, r)
		}
		seen[r.String()] = true
	}
	for _, name := range []string{InstanceState(99).String(), JobState(99).String(), Reason(250).String()} {
		if name != "UNKNOWN" {
			t.Errorf("a value outside its enum is named %q", name)
		}
	}
}
