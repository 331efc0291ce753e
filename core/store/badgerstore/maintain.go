package badgerstore

import (
	"context"
	"log/slog"
	"time"

	"github.com/paceline-sched/paceline/core/telemetry"
)

// flattenAfterDeletes is how many deletes may slow down scans before a quiet moment is used to fold the tree into one level.
const flattenAfterDeletes = 50_000

// maintain folds deleted records out of the tree when the store is quiet. Badger drops them by itself only where levels overflow,
// and scans of a queue walk over the others. Flattening stops Badger's compactions, so it waits for a tick without commits.
func (s *Store) maintain(ctx context.Context, ticks <-chan time.Time) {
	defer close(s.stopped)
	if ticks == nil {
		ticker := time.NewTicker(DefaultMaintenance)
		defer ticker.Stop()
		ticks = ticker.C
	}
	var seen int64
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks:
		}
		commits := s.commits.Load()
		quiet := commits == seen
		seen = commits
		if !quiet || s.deletes.Load() < flattenAfterDeletes {
			continue
		}
		s.deletes.Store(0)
		if err := s.db.Flatten(1); err != nil {
			s.log.Warn("flatten the store", slog.Any(telemetry.KeyError, err))
		}
	}
}
