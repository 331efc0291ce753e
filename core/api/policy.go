package api

import (
	"slices"
	"strings"

	"github.com/paceline-sched/paceline/core/rollout"
)

// Policies keeps policies, and says which there are. All of it may be called concurrently.
type Policies interface {
	// Book tells which policies there are. It must not be changed.
	Book() rollout.Book
}

// checkPolicy refuses a name under which nothing places.
func (c *cell) checkPolicy(field, name string) *fault {
	if name == "" || rollout.BuiltIn(name) {
		return nil
	}
	var book rollout.Book
	if c.policies != nil {
		book = c.policies.Book()
	}
	choices := book.Choices()
	if slices.Contains(choices, name) {
		return nil
	}
	return refuseField(field, "choose one of the policies that place, or leave it out", "there is no policy of placement %q: use %s", clip(name, 63), strings.Join(choices, ", "))
}
