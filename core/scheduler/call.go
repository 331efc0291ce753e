package scheduler

import (
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/workload"
)

// call carries out one command. Its answer leaves when everything before and of it is durable; a refusal changes nothing.
func (s *State) call(c Call) {
	var a Answer
	var err *Error
	switch cmd := c.Command.(type) {
	case SubmitJob:
		a, err = s.submitJob(c.Caller, &cmd)
	case PlanJob:
		if err = s.planJob(c.Token, &cmd); err == nil {
			return // answered when the shards have
		}
	case ExplainJob:
		if err = s.inquire(c.Token, cmd.Job); err == nil {
			return // as above
		}
	case StopJob:
		a, err = s.stopJob(c.Caller, cmd)
	case RestartJob:
		a, err = s.restartJob(c.Caller, cmd)
	case ApplyPool, MovePool, DeletePool:
		a, err = s.commitPool(c.Caller, cmd)
	case EditRules:
		err = s.editRules(c.Caller, &cmd)
	case EditPolicies:
		err = s.editPolicies(c.Caller, &cmd)
	case NameResources:
		err = s.nameResources(cmd.Names)
	case DrainHost:
		a, err = s.drainHost(c.Caller, cmd)
	case AddCluster, UpdateCluster, IdentifyCluster, RemoveCluster:
		a, err = s.editCluster(c.Caller, c.Command)
	default:
		err = refuse(InvalidArgument, "", "", "the command is unknown to this core")
	}
	if err != nil {
		a = Answer{Err: err}
	}
	a.Token = c.Token
	s.external(Reply{Answer: a})
}

// nameResources gives names their kinds and tells every shard before any class speaks of them.
func (s *State) nameResources(names []string) *Error {
	before := s.names.Len()
	for _, name := range names {
		if err := resource.CheckName(name); err != nil {
			return refuse(InvalidArgument, name, "", "%v", err)
		}
	}
	var failed *Error
	for _, name := range names {
		if _, err := s.names.Intern(name); err != nil {
			failed = refuse(ResourceExhausted, name, "use one of the resources that are there", "%v", err)
			break
		}
	}
	if s.names.Len() > before {
		s.writeAlone(Write{Record: s.cellRecord()})
		for _, sh := range s.shards {
			s.internal(ToShard{Shard: sh.id, Message: shard.Names{Epoch: sh.epoch, Named: s.names.Named()}})
		}
	}
	return failed
}

func (s *State) cellRecord() CellRecord {
	return CellRecord{Epoch: s.epoch, Named: s.names.Named(), Now: s.now}
}

func (s *State) drainHost(caller Caller, cmd DrainHost) (Answer, *Error) {
	h, ok := s.hosts[cmd.Host]
	if !ok {
		return Answer{}, refuse(NotFound, "host", "list the hosts and choose one", "host %s is not known", cmd.Host)
	}
	if h.Draining != cmd.Draining {
		had := available(&h.HostRecord)
		h.Draining, h.Since = cmd.Draining, s.now
		s.recount(h, had, available(&h.HostRecord))
		if h.Draining {
			s.dropPledgesOn(h.ID)
		}
		s.dirtyHost(h).principal = caller.Principal
		s.markHost(h)
		s.hostEpoch++
	}
	return Answer{Host: s.hostView(h)}, nil
}

// markHost tells the shard of a host whether it is drained. A shard keeps the mark of a host that is not there, too.
func (s *State) markHost(h *hostState) {
	if sh := s.shardByID(shard.ID(h.Shard)); sh != nil {
		s.internal(ToShard{Shard: sh.id, Message: shard.SetDraining{Epoch: sh.epoch, Hosts: []workload.HostID{h.ID}, Draining: h.Draining}})
	}
}
