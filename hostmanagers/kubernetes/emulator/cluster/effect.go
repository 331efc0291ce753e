package cluster

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Effect is something to do: Start or Signal.
type Effect interface{ effect() }

// Start asks for a container's process. What becomes of it is told by Cluster.Started and Cluster.Ended.
type Start struct {
	Process   string // names it: letters, digits and dashes
	Pod       *corev1.Pod
	Container *corev1.Container
	// Refs are the objects that the container's environment and volumes name, as far as they are there.
	Refs map[Ref]Object
}

// Ref names an object that a pod refers to.
type Ref struct{ Resource, Name string }

// Signal asks that a process ends: politely, or for good.
type Signal struct {
	Process string
	Kill    bool
}

func (Start) effect()  {}
func (Signal) effect() {}

// Exit says how a process ended.
type Exit struct {
	Code    int32
	Signal  int32
	OOM     bool
	Message string
	// NotStarted says that there never was a process: Message says why.
	NotStarted bool
}

// Process is the name of the newest process of a pod's container. "": it never had one.
func (c *Cluster) Process(uid types.UID, key Key, container string, previous bool) string {
	p, ok := c.shelves[Pods.GroupResource()].objects[key].(*corev1.Pod)
	if !ok || p.UID != uid {
		return ""
	}
	for _, list := range [][]corev1.ContainerStatus{p.Status.ContainerStatuses, p.Status.InitContainerStatuses} {
		for _, s := range list {
			if s.Name != container {
				continue
			}
			id := s.ContainerID
			if previous {
				id = ""
				if t := s.LastTerminationState.Terminated; t != nil {
					id = t.ContainerID
				}
			}
			if len(id) > len(idPrefix) {
				return id[len(idPrefix):]
			}
		}
	}
	return ""
}

// idPrefix begins the ids of containers.
const idPrefix = "emulated://"
