package server

import (
	"log/slog"
	"path/filepath"

	"github.com/paceline-sched/paceline/core/engine"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/telemetry"
	"github.com/paceline-sched/paceline/policies/decision"
	"github.com/paceline-sched/paceline/policies/registry"
)

// defaultDecisionLog is how much of the log of decisions is kept, in MiB.
const defaultDecisionLog = decision.DefaultRetain >> 20

// decisionLog opens the log of decisions; nil: there is none.
func (c *Config) decisionLog(trace *telemetry.Trace) (*decision.Log, error) {
	if c.DecisionLogMiB < 0 {
		return nil, nil //nolint:nilnil // no log is no error
	}
	return decision.OpenLog(decision.Config{
		Dir: c.DecisionLogDir, Retain: c.DecisionLogMiB << 20, Log: c.Log.With(telemetry.KeyComponent, "decisions"), OnWrite: trace.Complete().DecisionsRecorded,
	})
}

// host is what shards run in.
type host struct {
	cell      *engine.Engine
	policies  *registry.Registry
	decisions *decision.Log // nil: none
	log       *slog.Logger
}

// record has a shard's placers recorded. close ends that; the shard must have ended before. A shard whose decisions cannot be recorded places all the same.
func (h *host) record(id string, placers placement.PlacerSource) (recorded placement.PlacerSource, closeRecord func()) {
	if h.decisions == nil {
		return placers, func() {}
	}
	recorder, err := h.decisions.Record(id, placers)
	if err != nil {
		h.log.Error("the decisions of a shard are not recorded", slog.String(telemetry.KeyShard, id), slog.Any(telemetry.KeyError, err))
		return placers, func() {}
	}
	return recorder, recorder.Close
}

// withDecisionLog fills in where the log is and how much is kept.
func (c *Config) withDecisionLog() {
	if c.DecisionLogDir == "" {
		c.DecisionLogDir = filepath.Join(c.DataDir, "decisions")
	}
	if c.DecisionLogMiB == 0 {
		c.DecisionLogMiB = defaultDecisionLog
	}
}
