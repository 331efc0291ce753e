// Package spec turns what users ask for, in messages of paceline.v1, into the scheduler's own form and back.
//
// It owns the defaults of the API, the checks that the rules in the protos cannot express, and the instance ranges of overrides. It
// expects messages that passed those rules, but never relies on it for its own safety: whatever it is given, it answers with a result or
// with violations. Defaults are filled in on the way in, so what comes back out says all that holds.
//
// Every function is pure and may be called concurrently.
package spec

import (
	"fmt"
	"strings"
)

// The bounds of a spec that are not bounds of one field.
const (
	// MaxBytes bounds an encoded job spec.
	MaxBytes = 512 << 10
	// MaxCommandBytes bounds a command with its arguments.
	MaxCommandBytes = 128 << 10
	// MaxOverridden bounds the instances of one job that differ from its template.
	MaxOverridden = 10_000
	// maxViolations bounds the violations told of at once.
	maxViolations = 32
)

// Violation is one thing wrong with one field of a message.
type Violation struct {
	Field   string // path in the message
	Message string
}

// InvalidError says what is wrong with a message.
type InvalidError struct {
	Violations []Violation
	More       int // how many further ones were left out
}

func (e *InvalidError) Error() string {
	var b strings.Builder
	for i, v := range e.Violations {
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(v.Field + ": " + v.Message)
	}
	if e.More > 0 {
		fmt.Fprintf(&b, "; and %d more", e.More)
	}
	return b.String()
}

// checker collects violations.
type checker struct{ invalid InvalidError }

func (c *checker) refuse(field, format string, args ...any) {
	if len(c.invalid.Violations) == maxViolations {
		c.invalid.More++
		return
	}
	c.invalid.Violations = append(c.invalid.Violations, Violation{Field: field, Message: fmt.Sprintf(format, args...)})
}

func (c *checker) err() error {
	if len(c.invalid.Violations) == 0 {
		return nil
	}
	return &c.invalid
}

// clip keeps hostile input out of messages.
func clip(s string) string {
	if len(s) > 80 {
		return strings.ToValidUTF8(s[:80], "") + "..."
	}
	return s
}
