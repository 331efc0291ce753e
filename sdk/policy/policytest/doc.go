// Package policytest tries policies under go test, without a scheduler and without WebAssembly.
//
//	func TestTight(t *testing.T) {
//		p := policytest.New(t, info, &Tight{Reserve: 500})
//		got := p.Place([]policytest.Host{
//			{Name: "a", Total: policytest.Amounts{CPU: 4000, Memory: 8192}},
//			{Name: "b", Total: policytest.Amounts{CPU: 4000, Memory: 8192}, Used: policytest.Amounts{CPU: 2000}},
//		}, policytest.Request{CPU: 1000, Memory: 512, Count: 2})
//		if policytest.Names(got) != "b a" {
//			t.Error(got)
//		}
//	}
//
// Whatever it is asked, it asks twice, of two copies of the policy, and fails the test when they differ; it checks that every task fits where it was put, by books of
// its own; and it fails on errors and refusals that the test does not ask for.
//
// It is for tests: everything ends in t.Fatal. A Policy belongs to one goroutine.
package policytest
