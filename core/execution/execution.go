// Package execution holds the vocabulary of how a task's processes run where a command on the host is not all: images, more containers,
// artifacts, volumes, and what one kind of cluster alone knows.
//
// It owns definitions. The decision core hands them through and looks at the features that they ask a host for only.
package execution

import (
	"iter"
	"slices"
	"strings"
)

// Spec is how a task's processes run. A value is immutable and shared by the tasks of a job.
type Spec struct {
	// Main is what the task's command runs in. Its Name, Command, Args, Env and Needs are not used: the template has these.
	Main Container
	// Inits run one after the other before the others start; each must exit with 0.
	Inits []Container
	// Sidecars run beside the command and are ended when it ends.
	Sidecars []Container
	// Artifacts are fetched into the working directory before anything starts.
	Artifacts []Artifact
	Volumes   []Volume
	// User runs the processes, by name. "": whoever the cluster takes.
	User string
	// Mesos and Kubernetes are for one kind of cluster alone. A task with one of them goes to that kind only, one with both to any.
	Mesos      *Mesos
	Kubernetes *Kubernetes
}

// Container is one set of processes with a file system of its own, or, without an image, on the host's.
type Container struct {
	Name       string // unique in its task; a DNS label
	Image      string // "": the host's file system
	Pull       PullPolicy
	Command    []string // nil: the image's entry point
	Env        map[string]string
	Needs      map[string]int64 // by resource name, of what the whole task needs; nil: no share of its own
	WorkDir    string
	Mounts     []Mount
	Privileged bool
	ReadOnly   bool // the root file system
}

// PullPolicy says when an image is fetched.
type PullPolicy uint8

// The pull policies.
const (
	PullIfMissing PullPolicy = iota
	PullAlways
	PullNever
)

var pullNames = [...]string{"missing", "always", "never"}

// String is the policy as job files have it.
func (p PullPolicy) String() string {
	if int(p) >= len(pullNames) {
		return "unknown"
	}
	return pullNames[p]
}

// Artifact is one file or archive to fetch.
type Artifact struct {
	URI        string
	Path       string // in the working directory; "": the last part of the URI
	Extract    bool   // an archive is unpacked
	Executable bool
	Cache      bool // the host may keep it for other tasks
}

// Volume is storage that containers mount. Exactly one of HostPath, Claim, ConfigMap, Secret and Scratch is set.
type Volume struct {
	Name      string // unique in its task; a DNS label
	HostPath  string
	Claim     string // a persistent volume claim
	ConfigMap string
	Secret    string
	Scratch   bool // empty at the start, gone at the end
}

// Mount is where a container sees a volume.
type Mount struct {
	Volume   string
	Path     string
	SubPath  string
	ReadOnly bool
}

// Mesos is for Mesos clusters alone.
type Mesos struct {
	// Docker says that images run by the Docker containerizer; else the Mesos containerizer runs them.
	Docker bool
}

// Kubernetes is for Kubernetes clusters alone.
type Kubernetes struct {
	Namespace      string // "": that of the pool
	ServiceAccount string
	PullSecrets    []string
	RunAsUser      *int64
	RunAsNonRoot   bool
	// Patch is a strategic merge patch in JSON that is applied to the pod last.
	Patch []byte
}

// Feature is something that a host can or cannot do for a task.
type Feature string

// The features. A host that has one says so by an attribute of that name with the value "yes", so that classes ask for them as for any
// other attribute.
const (
	FeatureCommand    Feature = "can/command"    // processes on the host's own file system
	FeatureImage      Feature = "can/image"      // container images
	FeatureContainers Feature = "can/containers" // more than one container in a task
	FeatureArtifact   Feature = "can/artifact"   // fetches artifacts
	FeatureVolume     Feature = "can/volume"     // host paths and scratch volumes
	FeatureClaim      Feature = "can/claim"      // claims, config maps and secrets by name
	FeaturePrivileged Feature = "can/privileged"
	FeatureUser       Feature = "can/user"       // processes of a user who is given by name
	FeatureMesos      Feature = "can/mesos"      // what Spec.Mesos says
	FeatureKubernetes Feature = "can/kubernetes" // what Spec.Kubernetes says
)

// The values of a feature's attribute. Only of FeatureCommand is No ever said: tasks that are a mere command ask no host for anything, so a
// host that cannot run them has to say so.
const (
	FeatureYes = "yes"
	FeatureNo  = "no"
)

// Features returns all there are, in a fixed order.
func Features() []Feature {
	return []Feature{
		FeatureCommand, FeatureImage, FeatureContainers, FeatureArtifact, FeatureVolume, FeatureClaim, FeaturePrivileged, FeatureUser,
		FeatureMesos, FeatureKubernetes,
	}
}

// IsFeature reports whether an attribute of hosts is a feature.
func IsFeature(attribute string) bool { return strings.HasPrefix(attribute, "can/") }

var featureWords = map[Feature][2]string{
	FeatureCommand:    {"run", "commands without an image"},
	FeatureImage:      {"run", "container images"},
	FeatureContainers: {"run", "several containers in one task"},
	FeatureArtifact:   {"fetch", "artifacts"},
	FeatureVolume:     {"mount", "host paths and scratch volumes"},
	FeatureClaim:      {"mount", "claims, config maps and secrets"},
	FeaturePrivileged: {"run", "privileged containers"},
	FeatureUser:       {"run", "tasks as a named user"},
	FeatureMesos:      {"take", "settings for Mesos alone"},
	FeatureKubernetes: {"take", "settings for Kubernetes alone"},
}

// Noun names for people what a host with the feature takes: "container images".
func (f Feature) Noun() string { return featureWords[f][1] }

// Verb says for people what a host with the feature can do: "run container images".
func (f Feature) Verb() string { return featureWords[f][0] + " " + featureWords[f][1] }

// WithFeatures returns attributes with those features added, and with the word that there is no FeatureCommand when it is not among them. Whatever
// the attributes say of features themselves is left out: what a host can do is for its driver to say.
func WithFeatures(attributes map[string]string, features ...Feature) map[string]string {
	all := make(map[string]string, len(attributes)+len(features)+1)
	for name, value := range attributes {
		if !IsFeature(name) {
			all[name] = value
		}
	}
	all[string(FeatureCommand)] = FeatureNo
	for _, f := range features {
		all[string(f)] = FeatureYes
	}
	return all
}

// Asks returns the features that a host must have for a task, each once. A task without a Spec, a mere command, asks for none.
func (s *Spec) Asks() []Feature {
	if s == nil {
		return nil
	}
	asked := map[Feature]bool{
		FeatureContainers: len(s.Inits)+len(s.Sidecars) > 0,
		FeatureArtifact:   len(s.Artifacts) > 0,
		FeatureUser:       s.User != "",
		FeatureMesos:      s.Mesos != nil && s.Kubernetes == nil,
		FeatureKubernetes: s.Kubernetes != nil && s.Mesos == nil,
	}
	for c := range s.Containers() {
		if c.Image == "" {
			asked[FeatureCommand] = true
		} else {
			asked[FeatureImage] = true
		}
		// On Mesos the Docker containerizer alone does that, so who names it asks a Mesos host for nothing more.
		asked[FeaturePrivileged] = asked[FeaturePrivileged] || c.Privileged && (s.Mesos == nil || !s.Mesos.Docker)
	}
	for i := range s.Volumes {
		if v := &s.Volumes[i]; v.HostPath != "" || v.Scratch {
			asked[FeatureVolume] = true
		} else {
			asked[FeatureClaim] = true
		}
	}
	var out []Feature
	for _, f := range Features() {
		if asked[f] {
			out = append(out, f)
		}
	}
	return out
}

// Without returns a copy that does not ask for a feature.
func (s *Spec) Without(f Feature) *Spec {
	out := *s
	switch f {
	case FeatureImage, FeaturePrivileged:
		out.Inits, out.Sidecars = slices.Clone(s.Inits), slices.Clone(s.Sidecars)
		for c := range out.Containers() {
			c.Privileged = false
			if f == FeatureImage {
				c.Image = ""
			}
		}
	case FeatureContainers:
		out.Inits, out.Sidecars = nil, nil
	case FeatureArtifact:
		out.Artifacts = nil
	case FeatureVolume, FeatureClaim:
		out.Volumes = slices.DeleteFunc(slices.Clone(s.Volumes), func(v Volume) bool {
			return (v.HostPath != "" || v.Scratch) == (f == FeatureVolume)
		})
	case FeatureUser:
		out.User = ""
	case FeatureMesos:
		out.Mesos = nil
	case FeatureKubernetes:
		out.Kubernetes = nil
	case FeatureCommand: // nothing is left without one
	}
	return &out
}

// HasImage reports whether the task's command runs in an image, so that it has an entry point and needs no command.
func (s *Spec) HasImage() bool { return s != nil && s.Main.Image != "" }

// Containers yields the main container, the inits and the sidecars.
func (s *Spec) Containers() iter.Seq[*Container] {
	return func(yield func(*Container) bool) {
		if !yield(&s.Main) {
			return
		}
		for _, list := range [][]Container{s.Inits, s.Sidecars} {
			for i := range list {
				if !yield(&list[i]) {
					return
				}
			}
		}
	}
}
