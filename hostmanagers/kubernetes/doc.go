// Package kubernetes makes a Kubernetes cluster a cluster of a cell: the driver that the shard calls, on a real API server.
//
// Three parts, each with one thing to own. Package mirror is a pure machine that knows nodes, runs and what others take. Package manifest writes
// pods. This package joins the two with an API server: it owns the two watches, the requests with their retries and their throttle, and the order
// in which the sink hears of things.
//
// A run is a pod of the run's name that is created already bound to its node. The pod's end is kept by the cluster: a pod is deleted some time after its end
// was acknowledged, or when the run is to be killed. Nothing is written to disk.
//
// # What stays of a run that has ended
//
// Its pod, for a while, as its output goes with it: Limits say how long, and how many. Such a pod takes no room, is told no more, and can be found by ReadLog
// alone. One without an output goes at once; one whose deletion was asked for is its kubelet's to remove. A quota that counts objects counts kept pods,
// so they go when it refuses one. Deletions are few at a time, so that launches and kills do not wait for them.
//
// # Whose pods these are
//
// A pod is a run of the cell if it has the cell's owner label and a run's name. Every other pod is somebody else's: it takes room and is not touched
// before the cell leaves the cluster. That holds for a copy of a run's pod in another namespace too.
//
// A run that nobody here remembers, as after a restart, is told like any other, in the first inventory or by its first status, and the cell decides: it
// adopts what its store has, kills what lives and is unknown, and acknowledges what has ended. So an ended pod is told once more by the next process, though it
// was acknowledged before, and stays for what is left of its time. All that has the owner's label is deleted by Leave; if the cluster cannot be reached then, they run on until
// somebody deletes them by their label.
//
// # Two processes of one cell
//
// Nothing at the API server keeps an earlier process of a cell from creating pods: the store of the cell does, which has one writer, as a launch
// is sent after its record is durable. What is sent already may come late. Then the name of the pod is the fence: a second creation of a run answers
// AlreadyExists, and what is there is looked up and taken for the run, whoever made it. As long as a creation without an answer may have its effect, the pod
// stays after its end, so that the name is taken. A late pod whose run has no other is told and killed, and may have run for that long.
//
// Each pod is labelled with the epoch that it was created under. A process that sees a new pod of a later epoch than its own knows that another has followed
// it: it creates nothing any more, and says so. An earlier epoch is no reason to refuse a pod; the cell's store is what counts.
//
// Concurrency: as core/driver says. One goroutine calls the sink, two watch, and some make requests.
package kubernetes
