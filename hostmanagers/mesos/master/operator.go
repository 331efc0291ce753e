package master

import (
	"context"
	"fmt"
	"io"

	"github.com/mesos/mesos-go/api/v1/lib/master"
)

// maxAgents bounds the answer that lists agents.
const maxAgents = 512 << 20

// Agents asks the master that leads, by its operator API, for all agents that are registered. It needs a subscription, to know who leads.
func (c *Connection) Agents(ctx context.Context) ([]master.Response_GetAgents_Agent, error) {
	c.mu.Lock()
	s := c.sub
	c.mu.Unlock()
	if s == nil {
		return nil, ErrNotSubscribed
	}
	body, err := (&master.Call{Type: master.Call_GET_AGENTS}).Marshal()
	if err != nil {
		return nil, fmt.Errorf("encode a call to the Mesos master: %w", err)
	}
	x, at, err := c.follow(ctx, s.at, operatorPath, body)
	if err != nil {
		return nil, fmt.Errorf("list Mesos agents: %w", err)
	}
	defer x.close()
	stop := context.AfterFunc(ctx, x.close)
	defer stop()
	x.grace = c.cfg.Timeout
	data, err := io.ReadAll(io.LimitReader(x.response.Body, maxAgents+1))
	if err == nil && len(data) > maxAgents {
		err = fmt.Errorf("the answer is longer than %d bytes", maxAgents)
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	response := new(master.Response)
	if err == nil {
		err = decode(response, data)
	}
	if err != nil {
		return nil, fmt.Errorf("list Mesos agents of %s: %w", at, err)
	}
	return response.GetGetAgents().GetAgents(), nil
}
