package mesos

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os/user"
	"slices"
	"time"

	mesosapi "github.com/mesos/mesos-go/api/v1/lib"

	"github.com/paceline-sched/paceline/hostmanagers/mesos/framework"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/master"
)

// The defaults of a Config.
const (
	DefaultFrameworkName   = "paceline"
	DefaultRole            = "paceline"
	DefaultFailoverTimeout = 7 * 24 * time.Hour
	defaultDrain           = 2 * time.Second
	defaultRetake          = time.Minute
)

// maxFailoverTimeout is the longest that a master takes.
const maxFailoverTimeout = 10 * 365 * 24 * time.Hour

// Config says which Mesos cluster it is, and as whom to use it. Zero fields take their defaults.
type Config struct {
	// Masters are the addresses of the cluster's masters: "http://host:5050", "https://host:5050", or one "zk://host:2181,.../mesos".
	Masters []string
	// Identity keeps the framework's id. Whoever starts with the same id is the same framework: its tasks are his.
	Identity master.Identity

	// FrameworkName is shown by the master. Default: "paceline".
	FrameworkName string
	// Roles are those whose resources are used. Default: "paceline".
	Roles []string
	// User runs the tasks of jobs that name none. Default: the user of this process.
	User string
	// FailoverTimeout is how long tasks live on without this process; then the master kills them. Default: 7 days.
	FailoverTimeout time.Duration
	// WebURL is where the master's pages point to for this framework. Default: nowhere.
	WebURL string

	// Principal and Secret authenticate, if Principal is set. Secret is asked for every connection and never printed.
	Principal string
	Secret    func() (string, error)
	// TLS is for masters with https. Default: the system's authorities.
	TLS *tls.Config

	// KeepRemoved says what happens when the master has removed the framework, as after FailoverTimeout: false begins a new one, whose
	// tasks are others; true ends the driver's work with an error.
	KeepRemoved bool
	// Retake is how long after another process took this framework's id it is taken back, longer each time. Default: 1 min.
	Retake time.Duration

	// Limits are the machine's: waits, filters and bounds. Roles, Principal and FirstToken are filled in.
	Limits framework.Config
	// Drain bounds how long launches and acknowledgements that were accepted are carried out after the end of Start's context. Default: 2 s.
	Drain time.Duration
	// Connection has what else a connection may be told: waits, time-outs, dialling. Its other fields are filled in.
	Connection master.Config

	Logger *slog.Logger
	// Now is the wall clock. Default: time.Now.
	Now func() time.Time
	// NewTimer calls a function once after a time, unless stop comes before. Default: time.AfterFunc.
	AfterFunc func(d time.Duration, f func()) (stop func() bool)
}

// Validate fills in the defaults and reports what is out of range.
func (c *Config) Validate() error {
	orDefault(&c.FrameworkName, DefaultFrameworkName)
	orDefault(&c.FailoverTimeout, DefaultFailoverTimeout)
	orDefault(&c.Drain, defaultDrain)
	orDefault(&c.Retake, defaultRetake)
	if len(c.Roles) == 0 {
		c.Roles = []string{DefaultRole}
	}
	if c.User == "" {
		if me, err := user.Current(); err == nil {
			c.User = me.Username
		}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.AfterFunc == nil {
		c.AfterFunc = func(d time.Duration, f func()) func() bool { return time.AfterFunc(d, f).Stop }
	}
	switch {
	case c.User == "":
		return errors.New("mesos: this process's user has no name: set User to who is to run tasks")
	case c.Identity == nil:
		return errors.New("mesos: Identity must say where the framework's id is kept")
	case c.FailoverTimeout < time.Second || c.FailoverTimeout > maxFailoverTimeout:
		return fmt.Errorf("mesos: FailoverTimeout is %s; it must be from 1s to %s", c.FailoverTimeout, maxFailoverTimeout)
	case c.Drain < 0 || c.Retake < 0:
		return errors.New("mesos: Drain and Retake must not be negative")
	}
	c.Limits.Roles, c.Limits.Principal = slices.Clone(c.Roles), c.Principal
	c.Limits.FirstToken = firstToken(c.Now())
	if err := c.Limits.Validate(); err != nil {
		return fmt.Errorf("mesos: %w", err)
	}
	return nil
}

func orDefault[T comparable](value *T, otherwise T) {
	var zero T
	if *value == zero {
		*value = otherwise
	}
}

// tokenShift leaves a driver room for four million statuses each millisecond that it runs, so that the next one's tokens are above its own.
const tokenShift = 22

// firstToken is above all tokens of drivers that started before, and so one from before a restart acknowledges nothing.
func firstToken(now time.Time) uint64 {
	return uint64(max(now.UnixMilli(), 0)) << tokenShift //nolint:gosec // not negative
}

// capabilities are what the framework understands beyond the oldest masters' ways.
var capabilities = []mesosapi.FrameworkInfo_Capability_Type{
	mesosapi.FrameworkInfo_Capability_MULTI_ROLE,
	mesosapi.FrameworkInfo_Capability_PARTITION_AWARE,
	mesosapi.FrameworkInfo_Capability_REVOCABLE_RESOURCES,
	mesosapi.FrameworkInfo_Capability_RESERVATION_REFINEMENT,
	mesosapi.FrameworkInfo_Capability_TASK_KILLING_STATE,
	mesosapi.FrameworkInfo_Capability_GPU_RESOURCES,
	mesosapi.FrameworkInfo_Capability_SHARED_RESOURCES,
	mesosapi.FrameworkInfo_Capability_REGION_AWARE,
}

// connection is what the connection is made of.
func (c *Config) connection() master.Config {
	info := &mesosapi.FrameworkInfo{Name: c.FrameworkName, User: c.User, Roles: c.Roles}
	checkpoint, timeout := true, c.FailoverTimeout.Seconds()
	info.Checkpoint, info.FailoverTimeout = &checkpoint, &timeout
	if c.WebURL != "" {
		info.WebUiURL = &c.WebURL
	}
	for _, t := range capabilities {
		info.Capabilities = append(info.Capabilities, mesosapi.FrameworkInfo_Capability{Type: t})
	}
	cfg := c.Connection
	cfg.Framework, cfg.Masters, cfg.Identity = info, c.Masters, c.Identity
	cfg.Principal, cfg.Secret, cfg.TLS = c.Principal, c.Secret, c.TLS
	cfg.Renew, cfg.Retake, cfg.Logger = !c.KeepRemoved, c.Retake, c.Logger
	return cfg
}
