// Package mirror is what a Kubernetes cluster's nodes and pods mean to a shard, as a pure machine: it is told the time, what a shard asks and
// what an API server says, and answers with calls for the API server and news for the shard.
//
// It owns three things. Hosts: what a node offers, less what foreign pods take. Runs: the pod of each, its last status, and the kill that is
// under way. And the one table that maps the words of Kubernetes to a run's state and reason. It keeps compact records, never an API object,
// and knows no connection and no clock. A Machine has one caller at a time.
package mirror
