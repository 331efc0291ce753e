// Package execution holds the vocabulary of how a task's processes run where a command on the host is not all: images, more containers,
// artifacts, volumes, and what one kind of cluster alone knows.
//
// It owns definitions. The decision core hands them through and looks at the features that they ask a host for only.
package execution

import "maps"

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
	// User runs the processes. "": whoever the cluster takes.
	User       string
	Mesos      *Mesos      // nil: nothing of that kind of cluster
	Kubernetes *Kubernetes // nil: nothing of that kind of cluster
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
	FeatureMesos      Feature = "can/mesos"      // Mesos
	FeatureKubernetes Feature = "can/kubernetes" // Kubernetes
)

// FeatureYes is the value of a feature's attribute.
const FeatureYes = "yes"

// WithFeatures returns attributes with those features added.
func WithFeatures(attributes map[string]string, features ...Feature) map[string]string {
	all := make(map[string]string, len(attributes)+len(features))
	maps.Copy(all, attributes)
	for _, f := range features {
		all[string(f)] = FeatureYes
	}
	return all
}
