package cli

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/paceline-sched/paceline/cmd/paceline/internal/output"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

// kubernetesFlags are the settings of a Kubernetes cluster.
type kubernetesFlags struct {
	kubeconfig, context, namespace, perPool, image, poolLabel, ports string
	tolerated, gpus                                                  []string
	inCluster, createNamespaces, hostPaths, privileged               bool
	keepEnded, startGrace, unreachableGrace                          time.Duration
	keepEndedPods                                                    uint32
}

func (f *kubernetesFlags) set() *pflag.FlagSet {
	flags := pflag.NewFlagSet("kubernetes", pflag.ContinueOnError)
	flags.StringVar(&f.kubeconfig, "kubeconfig", "", "file that says where the API server is and who the cell is there, below the server's directory of secrets")
	flags.StringVar(&f.context, "kube-context", "", "context of the kubeconfig (default: its current one)")
	flags.BoolVar(&f.inCluster, "in-cluster", false, "the server is a pod of the cluster: use its service account")
	flags.StringVar(&f.namespace, "namespace", "", "namespace of pods whose job names none (default default)")
	flags.StringVar(&f.perPool, "namespace-per-pool", "", "a namespace for each pool, such as batch-{pool}, which no job leaves (default: one for all)")
	flags.BoolVar(&f.createNamespaces, "create-namespaces", false, "make namespaces that are missing")
	flags.StringVar(&f.image, "default-image", "", "image that runs commands of tasks without one (default: such tasks go to other clusters)")
	flags.StringVar(&f.poolLabel, "host-pool-label", "", "label of nodes that names their host pool (default paceline.io/host-pool)")
	flags.StringSliceVar(&f.tolerated, "tolerate", nil, "keys of taints that do not keep pods away")
	flags.StringSliceVar(&f.gpus, "gpu-resource", nil, "resources that are GPUs (default nvidia.com/gpu,amd.com/gpu,gpu.intel.com/i915)")
	flags.BoolVar(&f.hostPaths, "allow-host-paths", false, "let tasks mount paths of their hosts")
	flags.BoolVar(&f.privileged, "allow-privileged", false, "let tasks run privileged containers")
	flags.StringVar(&f.ports, "host-ports", "", "hosts' ports that tasks are given, as `first-last` (default 20000-29999)")
	flags.DurationVar(&f.keepEnded, "keep-ended", 0, "how long pods stay after their run's end, so that its output can be read; 0: they go at once (default 10m)")
	flags.Uint32Var(&f.keepEndedPods, "keep-ended-pods", 0, "how many such pods stay, those that ended last; 0: none (default 1000)")
	flags.DurationVar(&f.startGrace, "start-grace", 0, "how long what keeps a container from starting may mend itself, such as an image that cannot be pulled: 1s to 24h, 0: the default (default 2m)")
	flags.DurationVar(&f.unreachableGrace, "unreachable-grace", 0, "how long runs on a node that is out of contact are waited for, before they are lost: 1s to 24h, 0: the default (default 1m)")
	return flags
}

func (f *kubernetesFlags) apply(cmd *cobra.Command, k *pacelinev1.KubernetesCluster) error {
	given := cmd.Flags().Changed
	set(given("kubeconfig"), &k.Kubeconfig, f.kubeconfig)
	set(given("kube-context"), &k.Context, f.context)
	set(given("in-cluster"), &k.InCluster, f.inCluster)
	set(given("namespace"), &k.Namespace, f.namespace)
	set(given("namespace-per-pool"), &k.NamespacePerPool, f.perPool)
	set(given("create-namespaces"), &k.CreateNamespaces, f.createNamespaces)
	set(given("default-image"), &k.DefaultImage, f.image)
	set(given("host-pool-label"), &k.PoolLabel, f.poolLabel)
	set(given("tolerate"), &k.ToleratedTaints, f.tolerated)
	set(given("gpu-resource"), &k.GpuResources, f.gpus)
	set(given("allow-host-paths"), &k.AllowHostPaths, f.hostPaths)
	set(given("allow-privileged"), &k.AllowPrivileged, f.privileged)
	set(given("keep-ended"), &k.KeepEnded, durationpb.New(f.keepEnded))
	set(given("start-grace"), &k.StartGrace, durationpb.New(f.startGrace))
	set(given("unreachable-grace"), &k.UnreachableGrace, durationpb.New(f.unreachableGrace))
	set(given("keep-ended-pods"), &k.KeepEndedPods, &f.keepEndedPods)
	if !given("host-ports") {
		return nil
	}
	first, last, err := portRange(f.ports)
	if err != nil {
		return err
	}
	k.FirstPort, k.LastPort = first, last
	return nil
}

// portRange reads first-last; nothing is the default of the cluster.
func portRange(text string) (first, last uint32, err error) {
	if text == "" {
		return 0, 0, nil
	}
	from, to, _ := strings.Cut(text, "-")
	a, errFirst := strconv.ParseUint(from, 10, 16)
	b, errLast := strconv.ParseUint(to, 10, 16)
	if errFirst != nil || errLast != nil || a == 0 || a > b {
		return 0, 0, fmt.Errorf("--host-ports is %q: give the first and the last, such as 20000-29999", text)
	}
	return uint32(a), uint32(b), nil
}

func (a *app) clusterAddKubernetes() *cobra.Command {
	f := &kubernetesFlags{}
	return a.clusterAdd(&cobra.Command{
		Use:   "kubernetes NAME",
		Short: "Connect the cell to a Kubernetes cluster",
		Long: `Connect the cell to a Kubernetes cluster. Its nodes become hosts; a run becomes a pod that is created bound to its node. What the pods of others take is
left to them.

The kubeconfig is never given here: the server reads it below its --secrets-dir each time that it connects, and so must every file be that it names. One that
runs a program to log in is refused. A server that is a pod of the cluster itself needs no kubeconfig.`,
		Example: `  paceline cluster add kubernetes west --kubeconfig west.yaml --kube-context prod --namespace batch --wait
  paceline cluster add kubernetes here --in-cluster --default-image busybox:1.37 --tolerate example.com/batch`,
	}, f.set(), func(cmd *cobra.Command, spec *pacelinev1.ClusterSpec) error {
		if f.kubeconfig == "" && !f.inCluster {
			return errors.New("nothing says where the API server is: give --kubeconfig FILE, or --in-cluster")
		}
		k := &pacelinev1.KubernetesCluster{}
		spec.Settings = &pacelinev1.ClusterSpec_Kubernetes{Kubernetes: k}
		return f.apply(cmd, k)
	})
}

// kubernetesFacts lists the settings of a Kubernetes cluster.
func kubernetesFacts(f *facts, k *pacelinev1.KubernetesCluster) {
	f.add("Kubeconfig", "%s", k.GetKubeconfig())
	f.add("Context", "%s", k.GetContext())
	if k.GetInCluster() {
		f.add("Reached as", "%s", "a pod of it")
	}
	f.add("Namespace", "%s", k.GetNamespace())
	f.add("Namespace of a pool", "%s", k.GetNamespacePerPool())
	f.add("Default image", "%s", k.GetDefaultImage())
	f.add("Host pools by", "%s", prefixed("label ", k.GetPoolLabel()))
	f.add("Tolerated taints", "%s", strings.Join(k.GetToleratedTaints(), ", "))
	f.add("GPU resources", "%s", strings.Join(k.GetGpuResources(), ", "))
	var allowed []string
	if k.GetCreateNamespaces() {
		allowed = append(allowed, "making namespaces")
	}
	if k.GetAllowHostPaths() {
		allowed = append(allowed, "paths of hosts")
	}
	if k.GetAllowPrivileged() {
		allowed = append(allowed, "privileged containers")
	}
	f.add("Allowed", "%s", strings.Join(allowed, ", "))
	if k.GetFirstPort() > 0 {
		f.add("Ports of hosts", "%d-%d", k.GetFirstPort(), k.GetLastPort())
	}
	if k.GetStartGrace() != nil {
		f.add("Grace for starts", "%s", output.Span(k.GetStartGrace().AsDuration()))
	}
	if k.GetUnreachableGrace() != nil {
		f.add("Grace for unreachable hosts", "%s", output.Span(k.GetUnreachableGrace().AsDuration()))
	}
	if k.GetKeepEnded() != nil {
		f.add("Ended pods stay for", "%s", output.Span(k.GetKeepEnded().AsDuration()))
	}
	if k != nil && k.KeepEndedPods != nil { // whether it is set is no getter's to say
		f.add("Ended pods kept", "%d", k.GetKeepEndedPods())
	}
}
