package kubernetes

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/paceline-sched/paceline/core/execution"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/manifest"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/mirror"
)

// The defaults of a Config.
const (
	// DefaultNamespace has the pods of jobs that name none.
	DefaultNamespace = "default"
	// DefaultRequests are under way at once: more gain nothing on one connection.
	DefaultRequests = 32

	defaultDrain  = 5 * time.Second
	maxRequests   = 1024
	defaultPage   = 1000
	maxPage       = 100_000
	tokenShift    = 22
	agent         = "paceline"
	firstWait     = 50 * time.Millisecond
	longestWait   = 5 * time.Second
	longestAdvice = time.Minute // of what a server says when to come again
)

// Config says which Kubernetes cluster it is, and how to use it. Zero fields take their defaults.
type Config struct {
	// API is how the API server is reached; see Connect. Its rate limits are lifted.
	API *rest.Config
	// Pods is what all pods have in common. Its Owner must be set: the runs of an owner are his alone.
	Pods manifest.Config
	// Place remembers which cluster this is, so that another one in its place is noticed. nil: nobody does.
	Place Place
	// CreateNamespaces has a namespace that is missing made when a pod needs it; otherwise its launch fails.
	CreateNamespaces bool
	// Limits are the machine's. Owner, Epoch, Tolerated, Features and FirstToken are filled in.
	Limits mirror.Config

	// Requests are under way at once. Default: 32.
	Requests int
	// Page is how many objects one answer to a list has, so that neither side ever holds all of them as such. Default: 1,000.
	Page int
	// Paged has all lists come in pages. Otherwise they come by the watch that follows on them, where the server does that.
	Paged bool
	// FirstWait and LongestWait bound the waits between two attempts of a request or a watch; each is drawn between nothing and twice the one
	// before. Defaults: 50 ms, 5 s.
	FirstWait, LongestWait time.Duration
	// Drain bounds how long what was accepted is carried out after the end of Start's context. Default: 5 s.
	Drain time.Duration

	Logger *slog.Logger
	// Now is the wall clock. Default: time.Now.
	Now func() time.Time
	// AfterFunc calls a function once after a time, unless stop comes before. Default: time.AfterFunc.
	AfterFunc func(d time.Duration, f func()) (stop func() bool)
}

// Validate fills in the defaults and reports what is out of range.
func (c *Config) Validate() error {
	orDefault(&c.Pods.Namespace, DefaultNamespace)
	orDefault(&c.Requests, DefaultRequests)
	orDefault(&c.Page, defaultPage)
	orDefault(&c.FirstWait, firstWait)
	orDefault(&c.LongestWait, longestWait)
	orDefault(&c.Drain, defaultDrain)
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
	case c.API == nil:
		return errors.New("kubernetes: API must say how the API server is reached")
	case c.Requests < 1 || c.Requests > maxRequests:
		return fmt.Errorf("kubernetes: Requests is %d; it must be from 1 to %d", c.Requests, maxRequests)
	case c.Page < 1 || c.Page > maxPage:
		return fmt.Errorf("kubernetes: Page is %d; it must be from 1 to %d", c.Page, maxPage)
	case c.FirstWait < 0 || c.LongestWait < c.FirstWait || c.Drain < 0:
		return errors.New("kubernetes: FirstWait, LongestWait and Drain must not be negative, and LongestWait not below FirstWait")
	}
	if err := c.Pods.Validate(); err != nil {
		return fmt.Errorf("kubernetes: %w", err)
	}
	c.Limits.Owner, c.Limits.Epoch, c.Limits.Tolerated, c.Limits.Features = c.Pods.Owner, c.Pods.Epoch, c.Pods.Tolerated, c.features()
	c.Limits.FirstToken = uint64(max(c.Now().UnixMilli(), 0)) << tokenShift //nolint:gosec // not negative
	if err := c.Limits.Validate(); err != nil {
		return fmt.Errorf("kubernetes: %w", err)
	}
	return nil
}

// features are what hosts can do for tasks, by what is allowed.
func (c *Config) features() map[string]string {
	list := []execution.Feature{
		execution.FeatureImage, execution.FeatureContainers, execution.FeatureVolume, execution.FeatureClaim, execution.FeatureKubernetes,
	}
	if c.Pods.Privileged {
		list = append(list, execution.FeaturePrivileged)
	}
	all := maps.Clone(execution.WithFeatures(nil, list...))
	if c.Pods.DefaultImage != "" {
		all[string(execution.FeatureCommand)] = execution.FeatureYes
	}
	return all
}

// client is the API's configuration with client-go's own limits lifted: the driver has its own. Messages are protobuf: JSON costs five times the
// time.
func (c *Config) client() *rest.Config {
	api := rest.CopyConfig(c.API)
	api.QPS, api.Burst = -1, math.MaxInt32
	api.UserAgent = agent
	api.ContentConfig = rest.ContentConfig{ContentType: runtime.ContentTypeProtobuf, AcceptContentTypes: runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON}
	return api
}

func orDefault[T comparable](value *T, otherwise T) {
	var zero T
	if *value == zero {
		*value = otherwise
	}
}
