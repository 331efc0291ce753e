package deploy_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	typedauthorization "k8s.io/client-go/kubernetes/typed/authorization/v1"
	typed "k8s.io/client-go/kubernetes/typed/core/v1"
	typedrbac "k8s.io/client-go/kubernetes/typed/rbac/v1"
	"k8s.io/client-go/rest"

	"github.com/paceline-sched/paceline/conformance/controlplane"
	"github.com/paceline-sched/paceline/conformance/drivertest"
	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/execution"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/manifest"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/mirror"
)

// patience bounds every wait.
const patience = 2 * time.Minute

// What rbac.yaml calls its things.
const (
	accountSpace, account = "paceline", "paceline"
	viewRole              = "paceline-view"
	taskSpace, taskRole   = "paceline-tasks", "paceline-tasks"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// right is one verb on one kind of object, in the whole cluster or in the namespace of tasks.
type right struct {
	cluster        bool
	verb, resource string
}

func (r right) String() string {
	if r.cluster {
		return r.verb + " " + r.resource + " of the cluster"
	}
	return r.verb + " " + r.resource + " of " + taskSpace
}

func compareRights(a, b right) int { return strings.Compare(a.String(), b.String()) }

// granted spells rules out, one right each.
func granted(cluster bool, rules []rbacv1.PolicyRule) []right {
	var all []right
	for _, rule := range rules {
		for _, kind := range rule.Resources {
			for _, verb := range rule.Verbs {
				all = append(all, right{cluster, verb, kind})
			}
		}
	}
	return all
}

// spent takes down which rights an account's requests need, and which of them were refused.
type spent struct {
	mu            sync.Mutex
	used, refused map[right]bool
}

func (s *spent) take(r *http.Request, answer *http.Response) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used[needed(r)] = true
	if answer.StatusCode == http.StatusForbidden {
		s.refused[needed(r)] = true
	}
}

// report returns what was used and refused since the last report of refusals.
func (s *spent) report() (used, refused []right) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for r := range s.used {
		used = append(used, r)
	}
	for r := range s.refused {
		refused = append(refused, r)
	}
	clear(s.refused)
	slices.SortFunc(used, compareRights)
	slices.SortFunc(refused, compareRights)
	return used, refused
}

// needed is the right that a request needs, as the API server's authorisers see it.
func needed(r *http.Request) right {
	path := strings.Split(strings.TrimPrefix(r.URL.Path, "/api/v1/"), "/")
	out := right{cluster: true}
	if path[0] == "namespaces" && len(path) > 2 {
		out.cluster = path[1] != taskSpace
		path = path[2:]
	}
	out.resource = path[0]
	if len(path) > 2 {
		out.resource += "/" + path[2]
	}
	switch one := len(path) > 1; {
	case r.Method == http.MethodGet && one:
		out.verb = "get"
	case r.Method == http.MethodGet && r.URL.Query().Get("watch") != "":
		out.verb = "watch"
	case r.Method == http.MethodGet:
		out.verb = "list"
	case r.Method == http.MethodPost:
		out.verb = "create"
	case r.Method == http.MethodDelete && !one:
		out.verb = "deletecollection"
	default:
		out.verb = map[string]string{http.MethodDelete: "delete", http.MethodPut: "update", http.MethodPatch: "patch"}[r.Method]
	}
	return out
}

// scene is a real control plane with the service account of rbac.yaml.
type scene struct {
	admin   *typed.CoreV1Client
	roles   *typedrbac.RbacV1Client
	reviews *typedauthorization.AuthorizationV1Client
	account *rest.Config // with the account's token
	spent   *spent
}

// setUp starts a control plane of the test's own and does what docs/kubernetes.md says for a Paceline outside.
func setUp(t *testing.T) *scene {
	t.Helper()
	if os.Getenv("PACELINE_KUBECONFIG") == "" || os.Getenv("PACELINE_CONTROLPLANE") == "" {
		t.Skip("needs a control plane of its own: make conformance-kubernetes")
	}
	plane, err := controlplane.Start(t.Context(), controlplane.Config{Kwok: true, Log: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := plane.Close(); err != nil {
			t.Error(err)
		}
	})
	kubectl(t, plane.Kubeconfig(), "", "apply", "--filename", plain)
	token := strings.TrimSpace(kubectl(t, plane.Kubeconfig(), "", "create", "token", account, "--namespace", accountSpace))

	admin, err := kubernetes.Connect(plane.Kubeconfig(), "")
	if err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(admin)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { utilnet.CloseIdleConnectionsFor(client.Transport) })
	s := &scene{spent: &spent{used: map[right]bool{}, refused: map[right]bool{}}}
	s.admin, err = typed.NewForConfigAndClient(admin, client)
	if err == nil {
		s.roles, err = typedrbac.NewForConfigAndClient(admin, client)
	}
	if err == nil {
		s.reviews, err = typedauthorization.NewForConfigAndClient(admin, client)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.account = rest.AnonymousClientConfig(admin)
	s.account.BearerToken = token
	s.account.WrapTransport = func(next http.RoundTripper) http.RoundTripper {
		return &through{spent: s.spent, next: next}
	}
	return s
}

// through leads one client's requests by what is taken down of all.
type through struct {
	spent *spent
	next  http.RoundTripper
}

func (t *through) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := t.next.RoundTrip(r)
	if err == nil {
		t.spent.take(r, answer)
	}
	return answer, err //nolint:wrapcheck // it is handed through
}

// WrappedRoundTripper lets a client close its idle connections.
func (t *through) WrappedRoundTripper() http.RoundTripper { return t.next }

// node makes a node that kwok plays, and an empty namespace of tasks.
func (s *scene) node(t testing.TB, name string) {
	t.Helper()
	ctx, now := t.Context(), int64(0)
	if err := s.admin.Pods(taskSpace).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	capacity := corev1.ResourceList{"cpu": resource.MustParse("8"), "memory": resource.MustParse("16Gi"), "pods": resource.MustParse("110")}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"kwok.x-k8s.io/node": "fake"}},
		Status:     corev1.NodeStatus{Capacity: capacity, Allocatable: capacity},
	}
	if _, err := s.admin.Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.admin.Nodes().Delete(context.WithoutCancel(ctx), name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	until(t, "a ready node without pods", func() bool {
		n, err := s.admin.Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil || !slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		}) {
			return false
		}
		pods, err := s.admin.Pods(taskSpace).List(ctx, metav1.ListOptions{})
		return err == nil && len(pods.Items) == 0
	})
}

func (s *scene) config(owner string) kubernetes.Config {
	return kubernetes.Config{
		API: s.account, Pods: manifest.Config{Owner: owner, Epoch: 1, Namespace: taskSpace, DefaultImage: "none"}, Limits: mirror.Config{KeepEnded: -1},
		FirstWait: 10 * time.Millisecond, LongestWait: 200 * time.Millisecond, Place: place{},
	}
}

// TestRights: with the rights of rbac.yaml the driver does all that it can, every one of them is used, and without any one of them it tells what is missing.
func TestRights(t *testing.T) { //nolint:tparallel // one after another: they change the same roles
	t.Parallel()
	s := setUp(t)
	objects := decode(t, read(t, plain))
	all := append(granted(true, one[*rbacv1.ClusterRole](t, objects).Rules), granted(false, one[*rbacv1.Role](t, objects).Rules)...)
	slices.SortFunc(all, compareRights)
	for _, r := range all {
		s.await(t, r, true)
	}
	count := 0
	drivertest.Run(t, func(t testing.TB) drivertest.Cluster {
		count++
		name := fmt.Sprintf("kit-%d", count)
		s.node(t, name)
		cfg := s.config(name)
		return drivertest.Cluster{
			Connect: func() (driver.Driver, error) { return kubernetes.New(cfg) }, Patience: patience,
			RemoveHost: func(name string) {
				if err := s.admin.Nodes().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
					t.Error(err)
				}
			},
			Work: drivertest.Work{
				Exit: func(l *driver.Launch, code int32) {
					l.Command = []string{"true"}
					patch := fmt.Sprintf(`{"metadata": {"annotations": {"test.run-for": "10ms", "test.exit-code": "%d"}}}`, code)
					l.Execution = &execution.Spec{Kubernetes: &execution.Kubernetes{Patch: []byte(patch)}}
				},
				Forever: func(l *driver.Launch) { l.Command = []string{"sleep", "1000"} },
				Bad: func(l *driver.Launch) {
					l.Command, l.Needs = []string{"true"}, map[string]int64{"cpu_milli": 10, "gpu_milli": 500}
				},
			},
		}
	})
	t.Run("WithAll", func(t *testing.T) {
		for name, paged := range map[string]bool{"all": false, "all-paged": true} {
			if said := s.exercise(t, name, paged); strings.Contains(said, "orbidden") {
				t.Errorf("%s: with all rights the driver says: %s", name, said)
			}
		}
		used, refused := s.spent.report()
		if !slices.Equal(used, all) {
			t.Errorf("rbac.yaml grants %v,\nthe driver uses %v", all, used)
		}
		if len(refused) > 0 {
			t.Errorf("refused were %v", refused)
		}
	})
	for i, r := range all {
		t.Run("Without/"+strings.ReplaceAll(r.String(), " ", "-"), func(t *testing.T) {
			s.take(t, objects, r)
			said := s.exercise(t, fmt.Sprintf("less-%d", i), r.verb == "list") // watches list, too, where the server does that
			if _, refused := s.spent.report(); !slices.Contains(refused, r) || !strings.Contains(said, "orbidden") {
				t.Errorf("it was refused %v, and says: %s", refused, said)
			}
		})
	}
}

// take takes one right away until the test has ended.
func (s *scene) take(t *testing.T, objects []runtime.Object, r right) {
	t.Helper()
	view, tasks := one[*rbacv1.ClusterRole](t, objects).DeepCopy(), one[*rbacv1.Role](t, objects).DeepCopy()
	ctx := context.WithoutCancel(t.Context())
	put := func(rules func(cluster bool, from []rbacv1.PolicyRule) []rbacv1.PolicyRule) {
		t.Helper()
		v, w := view.DeepCopy(), tasks.DeepCopy()
		v.Rules, w.Rules = rules(true, v.Rules), rules(false, w.Rules)
		_, err := s.roles.ClusterRoles().Update(ctx, v, metav1.UpdateOptions{})
		_, other := s.roles.Roles(taskSpace).Update(ctx, w, metav1.UpdateOptions{})
		if err := errors.Join(err, other); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		put(func(_ bool, from []rbacv1.PolicyRule) []rbacv1.PolicyRule { return from })
		s.await(t, r, true)
	})
	put(func(cluster bool, from []rbacv1.PolicyRule) []rbacv1.PolicyRule {
		var rules []rbacv1.PolicyRule
		for _, have := range granted(cluster, from) {
			if have != r {
				rules = append(rules, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{have.resource}, ResourceNames: namesOf(have), Verbs: []string{have.verb}})
			}
		}
		return rules
	})
	s.await(t, r, false)
}

// namesOf are the objects that a right is restricted to; none: it is not.
func namesOf(r right) []string {
	if r.resource == "namespaces" {
		return []string{metav1.NamespaceSystem}
	}
	return nil
}

// place forgets which cluster it is with each driver.
type place struct{}

func (place) Known() (string, error) { return "", nil }
func (place) Recognize(string) error { return nil }

// await waits until the API server's authorisers know of a change.
func (s *scene) await(t *testing.T, r right, allowed bool) {
	t.Helper()
	kind, sub, _ := strings.Cut(r.resource, "/")
	attributes := &authorizationv1.ResourceAttributes{Verb: r.verb, Resource: kind, Subresource: sub}
	if !r.cluster {
		attributes.Namespace = taskSpace
	}
	if names := namesOf(r); len(names) > 0 {
		attributes.Name = names[0]
	}
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: "system:serviceaccount:" + accountSpace + ":" + account, ResourceAttributes: attributes,
	}}
	until(t, fmt.Sprintf("%s to be allowed: %v", r, allowed), func() bool {
		answer, err := s.reviews.SubjectAccessReviews().Create(context.WithoutCancel(t.Context()), review, metav1.CreateOptions{})
		return err == nil && answer.Status.Allowed == allowed
	})
}

// exercise has a driver do everything once, up to what it cannot, and returns what it says.
func (s *scene) exercise(t *testing.T, name string, paged bool) string {
	t.Helper()
	s.node(t, name)
	heard := &ears{}
	cfg := s.config(name)
	cfg.Logger, cfg.Paged = slog.New(slog.NewTextHandler(heard, nil)), paged
	d, err := kubernetes.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	started := make(chan error, 1)
	go func() { started <- d.Start(ctx, heard) }()
	defer func() {
		stop()
		<-started
		d.Wait()
	}()
	complains := func() bool {
		if err := d.Describe().Err; err != nil {
			heard.note(err.Error())
		}
		return heard.has("orbidden")
	}
	if until(t, "an inventory", func() bool { return heard.has("inventory") || complains() }); complains() {
		return heard.all()
	}
	launch := func(instance uint32) driver.Launch {
		l := driver.Launch{
			Run: workload.RunID{Job: workload.JobID{0: 'x'}, Instance: instance, Generation: 1, Run: 1}, Host: name,
			Command: []string{"sleep"}, Needs: map[string]int64{"cpu_milli": 10}, KillGrace: time.Second,
		}
		if err := d.Launch(ctx, []driver.Launch{l}); err != nil {
			t.Fatal(err)
		}
		return l
	}
	first := launch(1)
	if r, err := d.Rehearse(ctx, &first); err != nil || r.Refused != "" {
		heard.note(fmt.Sprintf("a rehearsal: %s%v", r.Refused, err))
	}
	run := first.Run
	if until(t, "a run", func() bool { return heard.has(run.String()+" "+workload.RunRunning.String()) || complains() }); complains() {
		return heard.all()
	}
	if r, err := d.ReadLog(ctx, run, driver.LogRequest{}); err != nil {
		heard.note(err.Error()) // of a kubelet that is none, else
	} else {
		_ = r.Close() // nothing was read
	}
	strange := workload.RunID{Job: workload.JobID{0: 'x'}, Instance: 2, Generation: 1, Run: 1}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: strange.String()}, Spec: corev1.PodSpec{NodeName: name, Containers: []corev1.Container{{Name: "a", Image: "a"}}}}
	if _, err := s.admin.Pods(taskSpace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	launch(2)
	until(t, "an answer about a stranger's pod", func() bool { return heard.has(strange.String() + " " + workload.RunFailed.String()) })
	if err := d.Kill(ctx, []driver.Kill{{Run: run, Grace: time.Second}}); err != nil {
		t.Fatal(err)
	}
	if until(t, "an end", func() bool { return heard.has(run.String()+" "+workload.RunKilled.String()) || complains() }); complains() {
		return heard.all()
	}
	if err := d.Leave(ctx); err != nil {
		heard.note(err.Error())
	}
	return heard.all()
}

// ears take down what a driver says to its sink and to its log.
type ears struct {
	mu   sync.Mutex
	said []string
}

func (e *ears) note(words string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.said) == 0 || e.said[len(e.said)-1] != words {
		e.said = append(e.said, words)
	}
}

func (e *ears) has(words string) bool { return strings.Contains(e.all(), words) }

func (e *ears) all() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return strings.Join(e.said, "\n")
}

func (e *ears) Write(line []byte) (int, error) {
	e.note(string(line))
	return len(line), nil
}

func (e *ears) Inventory(driver.Inventory)           { e.note("inventory") }
func (e *ears) HostsChanged([]driver.Host, []string) {}
func (e *ears) Disconnected(reason error)            { e.note(reason.Error()) }
func (e *ears) Statuses(list []driver.Status) {
	for _, status := range list {
		e.note(fmt.Sprintf("%s %s %s", status.Run, status.State, status.Message))
	}
}

// until polls until something holds.
func until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline, tick := time.NewTimer(patience), time.NewTicker(5*time.Millisecond)
	defer deadline.Stop()
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("in vain waited for %s", what)
		}
	}
}
