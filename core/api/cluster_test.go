package api_test

import (
	"testing"

	"connectrpc.com/connect"

	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

// A server that connects to no clusters shows what there is, and who may not add clusters is told so first.
func TestClustersWithoutConnections(t *testing.T) {
	c := newTestCell(t, 1)
	root := c.as(adminToken)
	list, err := root.Clusters.ListClusters(t.Context(), connect.NewRequest(&pacelinev1.ListClustersRequest{}))
	if err != nil || len(list.Msg.GetClusters()) != 1 {
		t.Fatalf("the clusters are %v, %v", list, err)
	}
	one := list.Msg.GetClusters()[0]
	if one.GetHosts() != 1 || one.GetReadyHosts() != 1 || len(one.GetShards()) != 1 || one.GetState() != pacelinev1.ClusterState_CLUSTER_STATE_CONNECTED {
		t.Errorf("the cluster is %v", one)
	}
	spec := &pacelinev1.ClusterSpec{Name: "east", Settings: &pacelinev1.ClusterSpec_Mesos{Mesos: &pacelinev1.MesosCluster{Masters: []string{"http://m:5050"}}}}
	_, err = root.Clusters.AddCluster(t.Context(), connect.NewRequest(&pacelinev1.AddClusterRequest{Spec: spec}))
	c.want("adding", err, connect.CodeUnimplemented, "cannot connect")
	_, err = root.Clusters.GetCluster(t.Context(), connect.NewRequest(&pacelinev1.GetClusterRequest{Name: "east"}))
	c.want("getting", err, connect.CodeNotFound, `"east"`)
	_, err = c.as(adsToken).Clusters.RemoveCluster(t.Context(), connect.NewRequest(&pacelinev1.RemoveClusterRequest{Name: "c", Force: true}))
	c.want("removing", err, connect.CodePermissionDenied, "role")
}
