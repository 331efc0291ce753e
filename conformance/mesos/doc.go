// Package mesos holds a Mesos master, a real one or the emulated, to what Paceline needs of it, by its address alone: the kit of all drivers, the
// answers and events that the driver counts on, and another client, mesos-go's own msh. It also holds a whole cell to its promises while
// everything about a cluster goes wrong.
//
// The tests run against an emulated cluster in this process, or, with -mesos=http://host:5050, against the master there; make
// conformance-mesos does that. They need agents with a processor and some memory free, start only short commands, and leave no framework behind.
package mesos
