// Package sim runs a whole cell from a seed: the real decision core, shard machines, record codec and simulated clusters, on a store
// that crashes, with everything that can go wrong between them going wrong, in virtual time and in one goroutine.
//
// A run has three phases. In the first, users submit, stop, restart and delete work of every kind and edit pools, while machines die,
// messages are late, disks fail and clocks jump; checkers hold what must never happen against what the clusters really run and what the disk
// really holds (truth.go, durable.go, state.go, naive.go). In the second nothing goes wrong any more, and what can run must run. In the third
// all work is stopped, and nothing may be left: no run, no charge, no lease, no unread change.
//
// The checkers keep books of their own. They never ask the core what it believes where they can look at the clusters, the disk or the
// groups that a Step returned.
//
// The package owns the world around the core and decides nothing in its place. What users do and what goes wrong is drawn from one seed,
// so a failure is replayed by its number. It is recorded, too, as a Scenario: text that can be shrunk, kept in testdata, and played without
// the generators. Latencies are drawn for each place apart, so that leaving one thing out changes little else.
//
// A third of the seeds have pools that lend to one another (lending.go): users come in tides, pool by pool, so that lenders want back what
// borrowers hold, and faults strike what makes room. There the checkers follow all room that is made by preemption (rooms.go, victims.go), and
// between the first phase and the second stands a quiet, in which the load does not change, with demand in every pool (quiet.go): preemption
// must come to an end, without circles, and nobody may starve beside what he is entitled to.
//
// A quarter of the seeds have policies of quota and of preemption in force (policies.go) that answer late, twice, wrongly or with malice. What no policy may change is
// checked all the time; that of preemption stays in force in the quiet, where nobody may go in circles whatever it says.
//
// # How to add something
//
// A kind of work is a case of users.draw, or a wish in users.decorate; a command is one more case of users.act and of the table in spell.go.
// Where a checker must know what was asked for, it looks at users.spec, never at what the core made of it. What may wait for ever goes into
// users.mayWait. Work of pools that lend is drawn by lenders.draw.
//
// A fault has a name in scenario.go. One that somebody makes happen is an entry of actions, drawn in world.generate and done by
// world.perform; one that strikes what comes along stands in passing and is asked for by world.strikes where it strikes. Its chance is a
// field of Faults, drawn in Draw, and its name stands in everyFault of the tests, which want it to happen. What happens when room is made is
// counted by rooms.count and stands in everyRoom.
//
// A checker has a name of the type Checker and calls world.fail. One that follows a Step is called by cell.compare, one that guards an
// effect by judge, one that looks at the clusters by truth, and what must come true in the end stands in users.waitsFor or world.remains.
//
// A checker is worth what it catches. A mutant that spoils what goes from part to part is an Interposer (mutant_test.go). One that decides
// wrongly is an edit of the core's source, compiled over an overlay (core_mutant_test.go), so that no switch stands in the program itself.
// When the source moves on, the test says which edit no longer finds its place.
//
// Nothing here is safe for concurrent use; runs of different Options may go on side by side.
package sim
