package master

import (
	"context"
	"fmt"
	"io"

	mesos "github.com/mesos/mesos-go/api/v1/lib"
	"github.com/mesos/mesos-go/api/v1/lib/master"
)

// maxListing bounds the answer that lists agents or tasks.
const maxListing = 512 << 20

// Agents asks the master that leads, by its operator API, for all agents that are registered. It needs a subscription, to know who leads.
func (c *Connection) Agents(ctx context.Context) ([]master.Response_GetAgents_Agent, error) {
	response, err := c.list(ctx, "agents", master.Call_GET_AGENTS)
	if err != nil {
		return nil, err
	}
	return response.GetGetAgents().GetAgents(), nil
}

// Tasks asks it for the tasks of all frameworks that have not ended, or whose end was not acknowledged.
func (c *Connection) Tasks(ctx context.Context) ([]mesos.Task, error) {
	response, err := c.list(ctx, "tasks", master.Call_GET_TASKS)
	if err != nil {
		return nil, err
	}
	return response.GetGetTasks().GetTasks(), nil
}

// list asks the operator API for a listing.
func (c *Connection) list(ctx context.Context, what string, question master.Call_Type) (*master.Response, error) {
	c.mu.Lock()
	s := c.sub
	c.mu.Unlock()
	if s == nil {
		return nil, ErrNotSubscribed
	}
	body, err := (&master.Call{Type: question}).Marshal()
	if err != nil {
		return nil, fmt.Errorf("encode a call to the Mesos master: %w", err)
	}
	x, at, err := c.follow(ctx, s.at, operatorPath, body)
	if err != nil {
		return nil, fmt.Errorf("list Mesos %s: %w", what, err)
	}
	defer x.close()
	stop := context.AfterFunc(ctx, x.close)
	defer stop()
	x.grace = c.cfg.Timeout
	data, err := io.ReadAll(io.LimitReader(x.response.Body, maxListing+1))
	if err == nil && len(data) > maxListing {
		err = fmt.Errorf("the answer is longer than %d bytes", maxListing)
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	response := new(master.Response)
	if err == nil {
		err = decode(response, data)
	}
	if err != nil {
		return nil, fmt.Errorf("list Mesos %s of %s: %w", what, at, err)
	}
	return response, nil
}
