package members

import (
	"context"
	"fmt"

	"github.com/paceline-sched/paceline/core/engine"
	"github.com/paceline-sched/paceline/core/scheduler"
)

// Identity keeps what a cluster knows the cell by, such as the id of a Mesos framework or the owner of pods. It lies in the cell's store beside the cluster's settings, so that a
// second start and a restored backup are to the cluster who the cell was before, and find their runs.
type Identity struct {
	cell    *engine.Engine
	cluster string
}

// Epoch is the cell's, which grows with every start.
func (i *Identity) Epoch() uint64 { return i.cell.Epoch() }

// Load returns the identity; "": there is none yet.
func (i *Identity) Load() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	var identity string
	if err := i.cell.Read(ctx, func(r scheduler.Reader) {
		rec, _ := r.AddedCluster(i.cluster)
		identity = rec.Identity
	}); err != nil {
		return "", fmt.Errorf("read what cluster %s knows the cell by: %w", i.cluster, err)
	}
	return identity, nil
}

// Save makes an identity durable.
func (i *Identity) Save(id string) error {
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	answer, err := i.cell.Do(ctx, scheduler.Caller{}, scheduler.IdentifyCluster{Name: i.cluster, Identity: id})
	if err == nil && answer.Err != nil {
		err = answer.Err
	}
	if err != nil {
		return fmt.Errorf("keep what cluster %s knows the cell by: %w", i.cluster, err)
	}
	return nil
}
