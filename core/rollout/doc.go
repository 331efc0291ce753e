// Package rollout decides how versions of policies come into force and go out of it.
//
// It owns the Book, all that is known of policies, and Step, which takes a Book and one Event and returns the next Book with what came of it. A version is uploaded, watched
// in shadow, tried as a canary, active, and retired; or rolled back, by hand or because it broke a gate. It is pure: it is told the time, loads nothing, and
// never changes the Book that it is given.
package rollout
