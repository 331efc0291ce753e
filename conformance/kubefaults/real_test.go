package kubefaults_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	typed "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/paceline-sched/paceline/conformance/controlplane"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/mirror"
)

var onReal = flag.Bool("real", false, "run TestReal on a control plane of its own")

// managed is the annotation of nodes whose kubelets kwok plays.
const managed = "kwok.x-k8s.io/node"

// TestReal is TestEmulated on a real API server with etcd and kwok: the API server is killed, etcd is held up, watches are cut and requests refused, held up and not answered,
// nodes fall silent and are deleted, and pods are rejected, evicted and deleted by others, while cells are killed.
func TestReal(t *testing.T) {
	t.Parallel()
	if !*onReal {
		t.Skip("takes minutes: make faults-kubernetes")
	}
	if !controlplane.Cached(controlplane.Etcd, controlplane.APIServer, controlplane.Kwok) {
		t.Skip("the programs of a control plane are not built: make conformance-kubernetes builds them")
	}
	began := time.Now()
	r := newReal(t)
	r.suffer()
	said := r.run()
	r.settle()
	r.report(said, began)
}

const apiServerKilled = "API server killed"

// realTrouble is at a pace that a real control plane keeps up with.
var realTrouble = troubles{
	kill: 10 * second, outage: 10 * second, cut: 3 * second, storm: 8 * second, stormFor: 2 * second, slow: 6 * second, slowFor: second,
	silence: 6 * second, silenceFor: 12 * second, unreachable: 4 * second, vanish: 7 * second, vanishFor: 3 * second, meddle: 300 * time.Millisecond,
	cores: "16",
}

// tried is a real control plane in trouble. The cell sees it through a proxy, everybody else as it is.
type tried struct {
	weather
	plane *controlplane.Plane
	proxy *proxy
	api   *typed.CoreV1Client
	nodes []string
}

func newReal(t *testing.T) *tried {
	t.Helper()
	r := &tried{weather: weather{hardship: newHardship(t, realTrouble.kill, apiServerKilled), slowFor: realTrouble.slowFor}}
	plane, err := controlplane.Start(t.Context(), controlplane.Config{Kwok: true, Log: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	r.plane = plane
	t.Cleanup(func() {
		if err := plane.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(r.work.Wait)
	t.Cleanup(r.relieve)
	r.proxy, r.orders.Kubeconfig = startProxy(t, plane, r.fault)
	r.orders.Patch = `{"metadata": {"annotations": {"test.run-for": "2s"}}}`
	r.witness.grace = realTrouble.unreachable
	r.orders.Start, r.orders.Unreachable, r.orders.Kill, r.orders.LongestWait = 10*second, realTrouble.unreachable, 5*second, 2*second
	api, err := kubernetes.Connect(plane.Kubeconfig(), "")
	if err != nil {
		t.Fatal(err)
	}
	api.QPS, api.ContentType, api.Timeout = -1, "application/vnd.kubernetes.protobuf", 0
	client, err := rest.HTTPClientFor(api)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { utilnet.CloseIdleConnectionsFor(client.Transport) })
	if r.api, err = typed.NewForConfigAndClient(api, client); err != nil {
		t.Fatal(err)
	}
	for n := range 10 {
		r.nodes = append(r.nodes, label("node", n))
		if err := r.addNode(label("node", n)); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

func (r *tried) addNode(name string) error {
	capacity := corev1.ResourceList{"cpu": resource.MustParse(realTrouble.cores), "memory": resource.MustParse("16Gi"), "pods": resource.MustParse("110")}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{managed: "fake"}},
		Status:     corev1.NodeStatus{Capacity: capacity, Allocatable: capacity},
	}
	return r.insist(func(ctx context.Context) error {
		_, err := r.api.Nodes().Create(ctx, node, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) { // an attempt whose answer was lost
			return nil
		}
		return err
	})
}

// insist tries until the API server does it: it is away most of the time.
func (r *tried) insist(do func(ctx context.Context) error) error {
	var err error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); <-time.After(200 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(r.Context(), 20*second)
		err = do(ctx)
		cancel()
		if err == nil || r.Context().Err() != nil {
			return err
		}
	}
	return err
}

// try does something once, if the API server is there, and says whether it was done.
func (r *tried) try(what string, do func(ctx context.Context) error) bool {
	ctx, cancel := context.WithTimeout(r.Context(), 20*second)
	defer cancel()
	if do(ctx) != nil {
		return false
	}
	r.strike(what)
	return true
}

// suffer begins the trouble.
func (r *tried) suffer() {
	ctx, cancel := context.WithCancel(r.Context())
	r.watch(ctx)
	r.Cleanup(cancel)
	o := &realTrouble
	r.change(o)
	r.every(o.cut, "cut", r.proxy.cutWatches)
	r.every(o.outage, apiServerKilled, func() {
		if err := r.plane.CrashAPIServer(r.Context()); err != nil {
			r.Errorf("kill the API server and start it again: %v", err)
		}
	})
	r.every(17*second, "etcd held up", func() {
		pid := r.plane.PID(controlplane.Etcd)
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			r.Error(err)
		}
		r.wait(3 * second)
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
			r.Error(err)
		}
	})
	r.every(o.vanish, "a node deleted", r.vanish)
	r.every(o.silence, "a node silent", r.silence)
	r.every(o.meddle, "meddled", r.meddle)
}

// vanish deletes a node. After a while another one of its name comes.
func (r *tried) vanish() {
	name, back, ok := r.takeAway(r.nodes)
	if !ok {
		return
	}
	if err := r.insist(func(ctx context.Context) error {
		err := r.api.Nodes().Delete(ctx, name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) { // the answer of an attempt was lost
			return nil
		}
		return err
	}); err != nil {
		r.Errorf("delete node %s: %v", name, err)
	}
	r.work.Go(func() {
		defer back()
		r.wait(realTrouble.vanishFor)
		if err := r.addNode(name); err != nil {
			r.Errorf("bring back node %s: %v", name, err)
		}
	})
}

// silence takes a node from its kubelet for a while, and says what its controller would say.
func (r *tried) silence() {
	name, back, ok := r.takeAway(r.nodes)
	if !ok {
		return
	}
	release := fmt.Appendf(nil, `{"metadata": {"annotations": {%q: null}}}`, managed)
	unknown := []byte(`{"status": {"conditions": [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "Kubelet stopped posting node status."}]}}`)
	patch := func(body []byte, part ...string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := r.api.Nodes().Patch(ctx, name, types.StrategicMergePatchType, body, metav1.PatchOptions{}, part...)
			return err
		}
	}
	_ = r.try("released", patch(release)) && r.try("silenced", patch(unknown, "status")) // what was not answered may be done
	r.work.Go(func() {
		defer back()
		r.wait(realTrouble.silenceFor)
		_ = r.insist(func(ctx context.Context) error {
			err := patch(fmt.Appendf(nil, `{"metadata": {"annotations": {%q: "fake"}}}`, managed))(ctx)
			if apierrors.IsNotFound(err) { // it was deleted meanwhile
				return nil
			}
			return err
		})
	})
}

// meddle does to a pod what others may do, or rejects it in its kubelet's place.
func (r *tried) meddle() {
	var pods []corev1.Pod
	r.try("listed", func(ctx context.Context) error {
		list, err := r.api.Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{LabelSelector: mirror.LabelOwner + "=" + owner, ResourceVersion: "0"})
		if err != nil {
			return err
		}
		for i := range list.Items {
			if p := &list.Items[i]; p.DeletionTimestamp == nil && (p.Status.Phase == corev1.PodPending || p.Status.Phase == corev1.PodRunning) {
				pods = append(pods, *p)
			}
		}
		return nil
	})
	p, ok := some(pods)
	if !ok {
		return
	}
	pods = nil
	grace, uid := int64(rand.IntN(2)), p.UID
	options := metav1.DeleteOptions{GracePeriodSeconds: &grace, Preconditions: &metav1.Preconditions{UID: &uid}}
	space := r.api.Pods(p.Namespace)
	switch rand.IntN(3) {
	case 0:
		r.witness.touch(string(uid), "evicted")
		r.try("evicted", func(ctx context.Context) error {
			return space.EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace}, DeleteOptions: &options})
		})
	case 1:
		r.witness.touch(string(uid), "deleted")
		r.try("deleted", func(ctx context.Context) error { return space.Delete(ctx, p.Name, options) })
	default:
		r.witness.touch(string(uid), "rejected")
		r.try("rejected", func(ctx context.Context) error {
			p.Status.Phase, p.Status.Reason, p.Status.Message = corev1.PodFailed, "OutOfcpu", "Pod was rejected: Node didn't have enough resource: cpu"
			p.Status.ContainerStatuses = nil
			_, err := space.UpdateStatus(ctx, &p, metav1.UpdateOptions{})
			return err
		})
	}
}

// watch has the witness see everything that is stored, until the context ends. It looks at etcd itself: an API server that was started again remembers nothing of what
// happened before.
func (r *tried) watch(ctx context.Context) {
	var done sync.WaitGroup
	for _, prefix := range []string{podsPrefix, nodesPrefix} {
		done.Go(func() {
			if err := r.follow(ctx, prefix); err != nil && ctx.Err() == nil {
				r.Errorf("the witness looks no longer at %s: %v", prefix, err)
			}
		})
	}
	r.Cleanup(done.Wait)
}

// The keys of pods and nodes.
const (
	podsPrefix  = "/registry/pods/"
	nodesPrefix = "/registry/minions/"
)

// stored is one message of etcd's watch.
type stored struct {
	Result struct {
		Events []struct {
			Type string // "" for PUT
			KV   keyed
			Prev keyed `json:"prev_kv"`
		}
	}
}

type keyed struct {
	Revision string `json:"mod_revision"`
	Value    []byte
}

// follow watches all keys below a prefix through etcd's gateway.
func (r *tried) follow(ctx context.Context, prefix string) error {
	end := []byte(prefix)
	end[len(end)-1]++
	body, err := json.Marshal(map[string]any{"create_request": map[string]any{
		"key": []byte(prefix), "range_end": end, "start_revision": "1", "prev_kv": true,
	}})
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, r.plane.EtcdURL()+"/v3/watch", bytes.NewReader(body))
	if err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	for in := json.NewDecoder(answer.Body); ; {
		var s stored
		if err := in.Decode(&s); err != nil {
			return err
		}
		for _, e := range s.Result.Events {
			value, gone := e.KV.Value, e.Type == "DELETE"
			if gone {
				value = e.Prev.Value
			}
			if err := r.see(prefix, value, e.KV.Revision, gone); err != nil {
				return err
			}
		}
	}
}

// see shows the witness an object as it is stored: four bytes of a mark, an envelope, and the object.
func (r *tried) see(prefix string, value []byte, revision string, gone bool) error {
	at, err := strconv.ParseInt(revision, 10, 64)
	if err != nil {
		return err
	}
	raw, marked := bytes.CutPrefix(value, []byte("k8s\x00"))
	if !marked {
		return fmt.Errorf("what is stored below %s is not protobuf: %.20q", prefix, value)
	}
	var envelope runtime.Unknown
	if err := envelope.Unmarshal(raw); err != nil {
		return err
	}
	if prefix == nodesPrefix {
		var n corev1.Node
		if err := n.Unmarshal(envelope.Raw); err != nil {
			return err
		}
		r.witness.node(&n, at, gone)
		return nil
	}
	var p corev1.Pod
	if err := p.Unmarshal(envelope.Raw); err != nil {
		return err
	}
	r.witness.pod(&p, at, gone)
	return nil
}

// settle waits until the witness has seen every pod go.
func (r *tried) settle() {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); <-time.After(50 * time.Millisecond) {
		if r.witness.left() == 0 {
			return
		}
	}
}
