package cluster

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// defaultGrace is a pod's if it does not say, and what a pod endures a dead node for.
const (
	defaultGrace    = 30
	tolerateSeconds = 300
)

// seconds is a duration that a client gave. What is longer than time is counted is the longest that there is.
func seconds(n int64) time.Duration {
	const most = int64(math.MaxInt64 / time.Second)
	return time.Duration(max(-most, min(n, most))) * time.Second
}

// preparePod fills in what the API server adds to a pod.
func preparePod(c *Cluster, o, old Object) {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return
	}
	defaultPod(p)
	if old == nil {
		p.Generation = 1
		p.Status = corev1.PodStatus{Phase: corev1.PodPending, QOSClass: qosClass(p)}
		if len(p.Spec.SchedulingGates) > 0 && p.Spec.NodeName == "" {
			p.Status.Conditions = []corev1.PodCondition{{
				Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonSchedulingGated, LastTransitionTime: c.stamp(),
				Message: "Scheduling is blocked due to non-empty scheduling gates",
			}}
		}
		return
	}
	was, ok := old.(*corev1.Pod)
	if ok && p.Spec.Priority == nil {
		p.Spec.Priority = was.Spec.Priority
	}
	if ok && p.Spec.PreemptionPolicy == nil {
		p.Spec.PreemptionPolicy = was.Spec.PreemptionPolicy
	}
	if ok && !equality.Semantic.DeepEqual(p.Spec, was.Spec) {
		p.Generation = was.Generation + 1
	}
}

func defaultPod(p *corev1.Pod) {
	s := &p.Spec
	setDefault(&s.RestartPolicy, corev1.RestartPolicyAlways)
	setDefault(&s.DNSPolicy, corev1.DNSClusterFirst)
	setDefault(&s.SchedulerName, corev1.DefaultSchedulerName)
	setPointer(&s.TerminationGracePeriodSeconds, defaultGrace)
	setPointer(&s.EnableServiceLinks, true)
	if s.SecurityContext == nil {
		s.SecurityContext = &corev1.PodSecurityContext{}
	}
	if s.ServiceAccountName == "" {
		s.ServiceAccountName = s.DeprecatedServiceAccount
	}
	s.DeprecatedServiceAccount = s.ServiceAccountName
	for i := range s.InitContainers {
		defaultContainer(&s.InitContainers[i], s.HostNetwork)
	}
	for i := range s.Containers {
		defaultContainer(&s.Containers[i], s.HostNetwork)
	}
	for i := range s.Volumes {
		defaultVolume(&s.Volumes[i].VolumeSource)
	}
	tolerate(s, corev1.TaintNodeNotReady)
	tolerate(s, corev1.TaintNodeUnreachable)
}

// tolerate adds the toleration that pods get for a while.
func tolerate(s *corev1.PodSpec, key string) {
	for _, t := range s.Tolerations {
		if (t.Key == key || t.Key == "") && (t.Effect == corev1.TaintEffectNoExecute || t.Effect == "") {
			return
		}
	}
	s.Tolerations = append(s.Tolerations, corev1.Toleration{
		Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: pointer[int64](tolerateSeconds),
	})
}

func defaultContainer(c *corev1.Container, hostNetwork bool) {
	setDefault(&c.TerminationMessagePath, corev1.TerminationMessagePathDefault)
	setDefault(&c.TerminationMessagePolicy, corev1.TerminationMessageReadFile)
	if c.ImagePullPolicy == "" {
		c.ImagePullPolicy = corev1.PullIfNotPresent
		name := c.Image[strings.LastIndexByte(c.Image, '/')+1:]
		if tag := strings.IndexByte(name, ':'); !strings.Contains(name, "@") && (tag < 0 || name[tag:] == ":latest") {
			c.ImagePullPolicy = corev1.PullAlways
		}
	}
	for name, limit := range c.Resources.Limits {
		if _, has := c.Resources.Requests[name]; !has {
			if c.Resources.Requests == nil {
				c.Resources.Requests = corev1.ResourceList{}
			}
			c.Resources.Requests[name] = limit.DeepCopy()
		}
	}
	for i := range c.Ports {
		setDefault(&c.Ports[i].Protocol, corev1.ProtocolTCP)
		if hostNetwork {
			setDefault(&c.Ports[i].HostPort, c.Ports[i].ContainerPort)
		}
	}
	for i := range c.Env {
		if from := c.Env[i].ValueFrom; from != nil && from.FieldRef != nil {
			setDefault(&from.FieldRef.APIVersion, "v1")
		}
	}
	for _, probe := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		defaultProbe(probe)
	}
	if l := c.Lifecycle; l != nil {
		for _, h := range []*corev1.LifecycleHandler{l.PreStop, l.PostStart} {
			if h != nil {
				defaultHTTP(h.HTTPGet)
			}
		}
	}
}

func defaultProbe(p *corev1.Probe) {
	if p == nil {
		return
	}
	setDefault(&p.TimeoutSeconds, 1)
	setDefault(&p.PeriodSeconds, 10)
	setDefault(&p.SuccessThreshold, 1)
	setDefault(&p.FailureThreshold, 3)
	defaultHTTP(p.HTTPGet)
	if p.GRPC != nil {
		setPointer(&p.GRPC.Service, "")
	}
}

func defaultHTTP(h *corev1.HTTPGetAction) {
	if h != nil {
		setDefault(&h.Path, "/")
		setDefault(&h.Scheme, corev1.URISchemeHTTP)
	}
}

func defaultVolume(v *corev1.VolumeSource) {
	if equality.Semantic.DeepEqual(*v, corev1.VolumeSource{}) {
		v.EmptyDir = &corev1.EmptyDirVolumeSource{}
	}
	const mode = int32(0o644)
	switch {
	case v.HostPath != nil:
		setPointer(&v.HostPath.Type, corev1.HostPathUnset)
	case v.Secret != nil:
		setPointer(&v.Secret.DefaultMode, mode)
	case v.ConfigMap != nil:
		setPointer(&v.ConfigMap.DefaultMode, mode)
	case v.DownwardAPI != nil:
		setPointer(&v.DownwardAPI.DefaultMode, mode)
	case v.Projected != nil:
		setPointer(&v.Projected.DefaultMode, mode)
	}
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func setPointer[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}

func pointer[T any](v T) *T { return &v }

// qosClass is how a pod is treated when its node is short.
func qosClass(p *corev1.Pod) corev1.PodQOSClass {
	some, same := false, true
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			request, limit := c.Resources.Requests[name], c.Resources.Limits[name]
			some = some || !request.IsZero() || !limit.IsZero()
			same = same && !limit.IsZero() && request.Cmp(limit) == 0
		}
	}
	switch {
	case !some:
		return corev1.PodQOSBestEffort
	case same:
		return corev1.PodQOSGuaranteed
	}
	return corev1.PodQOSBurstable
}

// podGrace is how long a pod that is deleted may take.
func podGrace(p *corev1.Pod, asked *int64) int64 {
	grace := int64(defaultGrace)
	switch {
	case asked != nil:
		grace = *asked
	case p.Spec.TerminationGracePeriodSeconds != nil:
		grace = *p.Spec.TerminationGracePeriodSeconds
	}
	if grace < 0 {
		grace = 1
	}
	if p.Spec.NodeName == "" || over(p) {
		grace = 0
	}
	return grace
}

// over says that a pod has ended.
func over(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// prepareStatus keeps the parts of a pod's status that are decided once.
func prepareStatus(o, old Object) {
	p, ok := o.(*corev1.Pod)
	was, also := old.(*corev1.Pod)
	if !ok || !also {
		return
	}
	if p.Status.QOSClass == "" {
		p.Status.QOSClass = was.Status.QOSClass
	}
}

// checkPod finds what is wrong with a pod.
func checkPod(o, old Object) fieldErrors {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return nil
	}
	if was, ok := old.(*corev1.Pod); ok && was != nil {
		return checkChange(p, was)
	}
	var errs fieldErrors
	spec := field.NewPath("spec")
	if len(p.Spec.Containers) == 0 {
		errs = append(errs, field.Required(spec.Child("containers"), ""))
	}
	seen := map[string]bool{}
	for i := range p.Spec.Containers {
		errs = append(errs, checkContainer(&p.Spec.Containers[i], spec.Child("containers").Index(i), seen)...)
	}
	for i := range p.Spec.InitContainers {
		errs = append(errs, checkContainer(&p.Spec.InitContainers[i], spec.Child("initContainers").Index(i), seen)...)
	}
	errs = append(errs, checkVolumes(p, spec)...)
	policies := []corev1.RestartPolicy{corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever}
	if !slices.Contains(policies, p.Spec.RestartPolicy) {
		errs = append(errs, field.NotSupported(spec.Child("restartPolicy"), p.Spec.RestartPolicy, policies))
	}
	if g := p.Spec.TerminationGracePeriodSeconds; g != nil && *g < 0 {
		p.Spec.TerminationGracePeriodSeconds = pointer[int64](1)
	}
	if d := p.Spec.ActiveDeadlineSeconds; d != nil && (*d < 1 || *d > 1<<31-1) {
		errs = append(errs, field.Invalid(spec.Child("activeDeadlineSeconds"), *d, "must be between 1 and 2147483647, inclusive"))
	}
	if len(p.Spec.SchedulingGates) > 0 && p.Spec.NodeName != "" {
		errs = append(errs, field.Forbidden(spec.Child("nodeName"), "cannot be set until all schedulingGates have been cleared"))
	}
	for key, value := range p.Spec.NodeSelector {
		for _, m := range validation.IsValidLabelValue(value) {
			errs = append(errs, field.Invalid(spec.Child("nodeSelector"), value, m))
		}
		for _, m := range validation.IsQualifiedName(key) {
			errs = append(errs, field.Invalid(spec.Child("nodeSelector"), key, m))
		}
	}
	if p.Spec.NodeName != "" {
		for _, m := range validation.IsDNS1123Subdomain(p.Spec.NodeName) {
			errs = append(errs, field.Invalid(spec.Child("nodeName"), p.Spec.NodeName, m))
		}
	}
	return errs
}

func checkContainer(c *corev1.Container, at *field.Path, seen map[string]bool) fieldErrors {
	var errs fieldErrors
	switch {
	case c.Name == "":
		errs = append(errs, field.Required(at.Child("name"), ""))
	case seen[c.Name]:
		errs = append(errs, field.Duplicate(at.Child("name"), c.Name))
	default:
		for _, m := range validation.IsDNS1123Label(c.Name) {
			errs = append(errs, field.Invalid(at.Child("name"), c.Name, m))
		}
	}
	seen[c.Name] = true
	if c.Image == "" {
		errs = append(errs, field.Required(at.Child("image"), ""))
	} else if strings.TrimSpace(c.Image) != c.Image {
		errs = append(errs, field.Invalid(at.Child("image"), c.Image, "must not have leading or trailing whitespace"))
	}
	for i, e := range c.Env {
		if e.Name == "" {
			errs = append(errs, field.Required(at.Child("env").Index(i).Child("name"), ""))
		}
	}
	return append(errs, checkNeeds(&c.Resources, at.Child("resources"))...)
}

func checkNeeds(r *corev1.ResourceRequirements, at *field.Path) fieldErrors {
	var errs fieldErrors
	for _, name := range sortedNames(r.Limits) {
		limit := r.Limits[name]
		errs = append(errs, checkQuantity(name, limit, at.Child("limits").Key(string(name)))...)
	}
	for _, name := range sortedNames(r.Requests) {
		request := r.Requests[name]
		errs = append(errs, checkQuantity(name, request, at.Child("requests").Key(string(name)))...)
		limit, limited := r.Limits[name]
		switch {
		case limited && extended(name) && request.Cmp(limit) != 0:
			errs = append(errs, field.Invalid(at.Child("requests"), request.String(), fmt.Sprintf("must be equal to %s limit of %s", name, limit.String())))
		case limited && request.Cmp(limit) > 0:
			errs = append(errs, field.Invalid(at.Child("requests"), request.String(), fmt.Sprintf("must be less than or equal to %s limit of %s", name, limit.String())))
		case !limited && extended(name):
			errs = append(errs, field.Required(at.Child("limits"), "Limit must be set for non overcommitable resources"))
		}
	}
	return errs
}

func sortedNames(l corev1.ResourceList) []corev1.ResourceName {
	names := make([]corev1.ResourceName, 0, len(l))
	for name := range l {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// extended says that a resource is a device plug-in's or an operator's.
func extended(name corev1.ResourceName) bool {
	return strings.Contains(string(name), "/") && !strings.Contains(string(name), "kubernetes.io/")
}

func checkQuantity(name corev1.ResourceName, q resource.Quantity, at *field.Path) fieldErrors {
	var errs fieldErrors
	if !strings.Contains(string(name), "/") && !standard(name) {
		errs = append(errs, field.Invalid(at, name, "must be a standard resource type or fully qualified"), field.Invalid(at, name, "must be a standard resource for containers"))
	}
	if q.Sign() < 0 {
		errs = append(errs, field.Invalid(at, q.String(), "must be greater than or equal to 0"))
	}
	if extended(name) && q.MilliValue()%1000 != 0 {
		errs = append(errs, field.Invalid(at, q.String(), "must be an integer"))
	}
	return errs
}

func standard(name corev1.ResourceName) bool {
	return name == corev1.ResourceCPU || name == corev1.ResourceMemory || name == corev1.ResourceEphemeralStorage ||
		strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

func checkVolumes(p *corev1.Pod, spec *field.Path) fieldErrors {
	var errs fieldErrors
	names := map[string]bool{}
	for i, v := range p.Spec.Volumes {
		at := spec.Child("volumes").Index(i)
		switch {
		case v.Name == "":
			errs = append(errs, field.Required(at.Child("name"), ""))
		case names[v.Name]:
			errs = append(errs, field.Duplicate(at.Child("name"), v.Name))
		}
		names[v.Name] = true
	}
	errs = append(errs, checkMounts(p.Spec.Containers, spec.Child("containers"), names)...)
	return append(errs, checkMounts(p.Spec.InitContainers, spec.Child("initContainers"), names)...)
}

func checkMounts(containers []corev1.Container, at *field.Path, volumes map[string]bool) fieldErrors {
	var errs fieldErrors
	for i, c := range containers {
		for j, m := range c.VolumeMounts {
			at := at.Index(i).Child("volumeMounts").Index(j)
			if m.Name == "" {
				errs = append(errs, field.Required(at.Child("name"), ""))
			} else if !volumes[m.Name] {
				errs = append(errs, field.NotFound(at.Child("name"), m.Name))
			}
			if m.MountPath == "" {
				errs = append(errs, field.Required(at.Child("mountPath"), ""))
			}
		}
	}
	return errs
}

// immutable is what a change of a pod's spec is told.
const immutable = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"

// checkChange allows the few changes of a pod's spec that the API allows.
func checkChange(p, was *corev1.Pod) fieldErrors {
	var errs fieldErrors
	spec := field.NewPath("spec")
	want := was.Spec.DeepCopy()
	if len(p.Spec.Containers) != len(want.Containers) {
		return fieldErrors{field.Forbidden(spec.Child("containers"), "pod updates may not add or remove containers")}
	}
	if len(p.Spec.InitContainers) != len(want.InitContainers) {
		return fieldErrors{field.Forbidden(spec.Child("initContainers"), "pod updates may not add or remove containers")}
	}
	for i := range want.Containers {
		if p.Spec.Containers[i].Image == "" {
			errs = append(errs, field.Required(spec.Child("containers").Index(i).Child("image"), ""))
		}
		want.Containers[i].Image = p.Spec.Containers[i].Image
	}
	for i := range want.InitContainers {
		want.InitContainers[i].Image = p.Spec.InitContainers[i].Image
	}
	if p.Spec.ActiveDeadlineSeconds != nil {
		if d := was.Spec.ActiveDeadlineSeconds; d != nil && *p.Spec.ActiveDeadlineSeconds > *d {
			errs = append(errs, field.Invalid(spec.Child("activeDeadlineSeconds"), *p.Spec.ActiveDeadlineSeconds, "must be less than or equal to previous value"))
		}
		want.ActiveDeadlineSeconds = p.Spec.ActiveDeadlineSeconds
	}
	if more := p.Spec.Tolerations; len(more) >= len(want.Tolerations) && includes(more, want.Tolerations) {
		want.Tolerations = more
	}
	if len(was.Spec.SchedulingGates) > 0 {
		want.SchedulingGates = p.Spec.SchedulingGates
	}
	if !equality.Semantic.DeepEqual(p.Spec, *want) {
		errs = append(errs, field.Forbidden(spec, immutable))
	}
	return errs
}

func includes(all, some []corev1.Toleration) bool {
	for _, t := range some {
		if !slices.ContainsFunc(all, func(o corev1.Toleration) bool { return equality.Semantic.DeepEqual(o, t) }) {
			return false
		}
	}
	return true
}

// setCondition adds or replaces a condition of a pod; its time changes with its status only.
func setCondition(p *corev1.Pod, at metav1.Time, c corev1.PodCondition) {
	c.LastTransitionTime = at
	for i := range p.Status.Conditions {
		if old := &p.Status.Conditions[i]; old.Type == c.Type {
			if old.Status == c.Status {
				c.LastTransitionTime = old.LastTransitionTime
			}
			*old = c
			return
		}
	}
	p.Status.Conditions = append(p.Status.Conditions, c)
}
