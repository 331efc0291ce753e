package emulator

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator/cluster"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator/wire"
)

// column is one column of a table for people. Those of priority 1 are for who wants it wide.
func column(name string, priority int32) metav1.TableColumnDefinition {
	format := ""
	if name == "Name" {
		format = "name"
	}
	description := metav1.ObjectMeta{}.SwaggerDoc()["name"]
	if name != "Name" {
		description = ""
	}
	return metav1.TableColumnDefinition{Name: name, Type: "string", Format: format, Description: description, Priority: priority}
}

// layout is how a resource is shown.
type layout struct {
	columns []metav1.TableColumnDefinition
	cells   func(o cluster.Object, now time.Time) []any
}

var plainLayout = layout{
	columns: []metav1.TableColumnDefinition{column("Name", 0), column("Age", 0)},
	cells: func(o cluster.Object, now time.Time) []any {
		return []any{o.GetName(), age(o.GetCreationTimestamp(), now)}
	},
}

var layouts = map[string]layout{
	"pods": {columns: []metav1.TableColumnDefinition{
		column("Name", 0), column("Ready", 0), column("Status", 0), column("Restarts", 0), column("Age", 0),
		column("IP", 1), column("Node", 1), column("Nominated Node", 1), column("Readiness Gates", 1),
	}, cells: podCells},
	"nodes": {columns: []metav1.TableColumnDefinition{
		column("Name", 0), column("Status", 0), column("Roles", 0), column("Age", 0), column("Version", 0),
		column("Internal-IP", 1), column("External-IP", 1), column("OS-Image", 1), column("Kernel-Version", 1),
		column("Container-Runtime", 1),
	}, cells: nodeCells},
	"namespaces": {columns: []metav1.TableColumnDefinition{column("Name", 0), column("Status", 0), column("Age", 0)}, cells: namespaceCells},
	"leases":     {columns: []metav1.TableColumnDefinition{column("Name", 0), column("Holder", 0), column("Age", 0)}, cells: leaseCells},
	"events": {columns: []metav1.TableColumnDefinition{
		column("Last Seen", 0), column("Type", 0), column("Reason", 0), column("Object", 0), column("Subobject", 1),
		column("Source", 1), column("Message", 0), column("First Seen", 1), column("Count", 1), column("Name", 1),
	}, cells: eventCells},
}

// table shows objects in a table.
func (e *Emulator) table(r *request, objects []cluster.Object, version string, headed bool) (*metav1.Table, error) {
	l, ok := layouts[r.resource.Resource]
	if !ok {
		l = plainLayout
	}
	now := e.clock.Now()
	table := &metav1.Table{ListMeta: metav1.ListMeta{ResourceVersion: version}, Rows: []metav1.TableRow{}}
	if len(objects) == 1 && version == "" {
		table.ResourceVersion = objects[0].GetResourceVersion()
	}
	if headed {
		table.ColumnDefinitions = l.columns
	}
	for _, o := range objects {
		row := metav1.TableRow{Cells: l.cells(o, now)}
		switch r.query.Get("includeObject") {
		case string(metav1.IncludeNone):
		case string(metav1.IncludeObject):
			raw, err := wire.Encode(wire.JSON, r.resource.GroupVersion(), shallow(o))
			if err != nil {
				return nil, err
			}
			row.Object.Raw = raw
		default:
			one := partial(r.resource, o)
			one.TypeMeta = metav1.TypeMeta{Kind: wire.AsPartial, APIVersion: metav1.SchemeGroupVersion.String()}
			row.Object = runtime.RawExtension{Object: one}
		}
		row.Conditions = over(o)
		table.Rows = append(table.Rows, row)
	}
	return table, nil
}

// over marks the row of a pod that has ended.
func over(o cluster.Object) []metav1.TableRowCondition {
	p, ok := o.(*corev1.Pod)
	switch {
	case ok && p.Status.Phase == corev1.PodSucceeded:
		return []metav1.TableRowCondition{{Type: metav1.RowCompleted, Status: metav1.ConditionTrue, Reason: "Succeeded", Message: "The pod has completed successfully."}}
	case ok && p.Status.Phase == corev1.PodFailed:
		return []metav1.TableRowCondition{{Type: metav1.RowCompleted, Status: metav1.ConditionTrue, Reason: "Failed", Message: "The pod failed."}}
	}
	return nil
}

func age(t metav1.Time, now time.Time) string {
	if t.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(now.Sub(t.Time))
}

const none = "<none>"

func orNone(s string) string {
	if s == "" {
		return none
	}
	return s
}

func podCells(o cluster.Object, now time.Time) []any {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return nil
	}
	ready, restarts := 0, int32(0)
	for i := range p.Status.ContainerStatuses {
		s := &p.Status.ContainerStatuses[i]
		restarts += s.RestartCount
		if s.Ready && s.State.Running != nil {
			ready++
		}
	}
	gates := none
	if n := len(p.Spec.ReadinessGates); n > 0 {
		met := 0
		for _, g := range p.Spec.ReadinessGates {
			for _, c := range p.Status.Conditions {
				if c.Type == g.ConditionType && c.Status == corev1.ConditionTrue {
					met++
				}
			}
		}
		gates = fmt.Sprintf("%d/%d", met, n)
	}
	return []any{
		p.Name, fmt.Sprintf("%d/%d", ready, len(p.Spec.Containers)), podWord(p), strconv.Itoa(int(restarts)), age(p.CreationTimestamp, now),
		orNone(p.Status.PodIP), orNone(p.Spec.NodeName), orNone(p.Status.NominatedNodeName), gates,
	}
}

// podWord is the one word that says how a pod is.
func podWord(p *corev1.Pod) string {
	word := string(p.Status.Phase)
	if p.Status.Reason != "" {
		word = p.Status.Reason
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonSchedulingGated {
			word = corev1.PodReasonSchedulingGated
		}
	}
	word = containersWord(p, word)
	if p.DeletionTimestamp != nil {
		switch {
		case p.Status.Reason == "NodeLost":
			word = "Unknown"
		case p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed:
			word = "Terminating"
		}
	}
	return word
}

// containersWord is the word of the first container that has something to say.
func containersWord(p *corev1.Pod, word string) string {
	for i := range p.Status.InitContainerStatuses {
		s := &p.Status.InitContainerStatuses[i]
		switch t, w := s.State.Terminated, s.State.Waiting; {
		case t != nil && t.ExitCode == 0, s.Started != nil && *s.Started && s.State.Running != nil:
			continue
		case t != nil && t.Reason != "":
			return "Init:" + t.Reason
		case t != nil:
			return fmt.Sprintf("Init:ExitCode:%d", t.ExitCode)
		case w != nil && w.Reason != "" && w.Reason != "PodInitializing":
			return "Init:" + w.Reason
		}
		return fmt.Sprintf("Init:%d/%d", i, len(p.Spec.InitContainers))
	}
	running := false
	for i := len(p.Status.ContainerStatuses) - 1; i >= 0; i-- {
		s := &p.Status.ContainerStatuses[i]
		switch t, w := s.State.Terminated, s.State.Waiting; {
		case w != nil && w.Reason != "":
			word = w.Reason
		case t != nil && t.Reason != "":
			word = t.Reason
		case t != nil:
			word = fmt.Sprintf("ExitCode:%d", t.ExitCode)
		case s.Ready && s.State.Running != nil:
			running = true
		}
	}
	if word == "Completed" && running {
		word = "NotReady"
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
				word = "Running"
			}
		}
	}
	return word
}

func nodeCells(o cluster.Object, now time.Time) []any {
	n, ok := o.(*corev1.Node)
	if !ok {
		return nil
	}
	word := "Unknown"
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			word = "Ready"
			if c.Status != corev1.ConditionTrue {
				word = "NotReady"
			}
		}
	}
	if n.Spec.Unschedulable {
		word += ",SchedulingDisabled"
	}
	var roles []string
	for label := range n.Labels {
		if role, is := strings.CutPrefix(label, "node-role.kubernetes.io/"); is && role != "" {
			roles = append(roles, role)
		}
	}
	addresses := map[corev1.NodeAddressType]string{}
	for _, a := range n.Status.Addresses {
		addresses[a.Type] = a.Address
	}
	unknown := func(s string) string {
		if s == "" {
			return "<unknown>"
		}
		return s
	}
	info := n.Status.NodeInfo
	return []any{
		n.Name, word, orNone(strings.Join(roles, ",")), age(n.CreationTimestamp, now), info.KubeletVersion, orNone(addresses[corev1.NodeInternalIP]),
		orNone(addresses[corev1.NodeExternalIP]), unknown(info.OSImage), unknown(info.KernelVersion), unknown(info.ContainerRuntimeVersion),
	}
}

func namespaceCells(o cluster.Object, now time.Time) []any {
	ns, ok := o.(*corev1.Namespace)
	if !ok {
		return nil
	}
	return []any{ns.Name, string(ns.Status.Phase), age(ns.CreationTimestamp, now)}
}

func leaseCells(o cluster.Object, now time.Time) []any {
	l, ok := o.(*coordinationv1.Lease)
	if !ok {
		return nil
	}
	holder := ""
	if l.Spec.HolderIdentity != nil {
		holder = *l.Spec.HolderIdentity
	}
	return []any{l.Name, holder, age(l.CreationTimestamp, now)}
}

func eventCells(o cluster.Object, now time.Time) []any {
	ev, ok := o.(*corev1.Event)
	if !ok {
		return nil
	}
	first := age(ev.FirstTimestamp, now)
	last := first
	if !ev.LastTimestamp.IsZero() {
		last = age(ev.LastTimestamp, now)
	}
	source := ev.Source.Component
	if ev.Source.Host != "" {
		source += ", " + ev.Source.Host
	}
	target := strings.ToLower(ev.InvolvedObject.Kind)
	if ev.InvolvedObject.Name != "" {
		target += "/" + ev.InvolvedObject.Name
	}
	return []any{last, ev.Type, ev.Reason, target, ev.InvolvedObject.FieldPath, source, strings.TrimSpace(ev.Message), first, int64(max(1, ev.Count)), ev.Name}
}
