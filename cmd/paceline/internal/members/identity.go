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
	rec, err := i.record()
	if err != nil {
		return "", fmt.Errorf("read what cluster %s knows the cell by: %w", i.cluster, err)
	}
	return rec.Identity, nil
}

func (i *Identity) record() (rec scheduler.ClusterRecord, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	err = i.cell.Read(ctx, func(r scheduler.Reader) { rec, _ = r.AddedCluster(i.cluster) })
	return rec, err
}

// do has the cell carry out a command of a driver's.
func (i *Identity) do(command scheduler.Command) error {
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	answer, err := i.cell.Do(ctx, scheduler.Caller{}, command)
	if err == nil && answer.Err != nil {
		err = answer.Err
	}
	return err
}

// Save makes an identity durable.
func (i *Identity) Save(id string) error {
	if err := i.do(scheduler.IdentifyCluster{Name: i.cluster, Identity: id}); err != nil {
		return fmt.Errorf("keep what cluster %s knows the cell by: %w", i.cluster, err)
	}
	return nil
}

// Known returns what tells the cluster from all others; "": nobody has said that yet.
func (i *Identity) Known() (string, error) {
	rec, err := i.record()
	if err != nil {
		return "", fmt.Errorf("read which cluster %s is: %w", i.cluster, err)
	}
	return rec.UID, nil
}

// Recognize makes durable what tells the cluster from all others.
func (i *Identity) Recognize(uid string) error {
	if err := i.do(scheduler.IdentifyCluster{Name: i.cluster, UID: uid}); err != nil {
		return fmt.Errorf("keep which cluster %s is: %w", i.cluster, err)
	}
	return nil
}
