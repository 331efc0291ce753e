package api

import (
	"context"

	"connectrpc.com/connect"

	"github.com/paceline-sched/paceline/core/api/auth"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/sdk/gen/paceline/v1/pacelinev1connect"
)

// scope says where a caller must have the role that a method needs.
type scope uint8

const (
	// everywhere: in all of the cell.
	everywhere scope = iota + 1
	// somewhere: in some pool; the answer holds what belongs to all, or is filtered by what the caller may see.
	somewhere
	// inPool: in the pool of the object that the request names. The handler finds it and asks permit.
	inPool
)

// rule is what a method needs.
type rule struct {
	role  auth.Role
	scope scope
}

// rules covers every method; a method without a rule is refused.
var rules = map[string]rule{
	pacelinev1connect.JobServiceCreateJobProcedure:  {auth.Submitter, inPool},
	pacelinev1connect.JobServicePlanJobProcedure:    {auth.Submitter, inPool},
	pacelinev1connect.JobServiceGetJobProcedure:     {auth.Viewer, inPool},
	pacelinev1connect.JobServiceListJobsProcedure:   {auth.Viewer, somewhere},
	pacelinev1connect.JobServiceStopJobProcedure:    {auth.Submitter, inPool},
	pacelinev1connect.JobServiceRestartJobProcedure: {auth.Submitter, inPool},
	pacelinev1connect.JobServiceDeleteJobProcedure:  {auth.Submitter, inPool},
	pacelinev1connect.JobServiceExplainJobProcedure: {auth.Viewer, inPool},

	pacelinev1connect.TaskServiceListTasksProcedure: {auth.Viewer, inPool},
	pacelinev1connect.TaskServiceGetTaskProcedure:   {auth.Viewer, inPool},
	pacelinev1connect.TaskServiceReadLogsProcedure:  {auth.Viewer, inPool},

	// A pool is given by whoever runs the pool above it: else its own operator could raise its share at the cost of its siblings.
	pacelinev1connect.PoolServiceApplyPoolProcedure:  {auth.Operator, inPool},
	pacelinev1connect.PoolServiceGetPoolProcedure:    {auth.Viewer, inPool},
	pacelinev1connect.PoolServiceListPoolsProcedure:  {auth.Viewer, somewhere},
	pacelinev1connect.PoolServiceMovePoolProcedure:   {auth.Operator, inPool},
	pacelinev1connect.PoolServicePlanPoolProcedure:   {auth.Operator, inPool},
	pacelinev1connect.PoolServiceDeletePoolProcedure: {auth.Operator, inPool},
	// Whoever may see some pools is told of these.
	pacelinev1connect.PoolServiceExplainPoolProcedure: {auth.Viewer, somewhere},

	pacelinev1connect.UsageServiceGetUsageProcedure:     {auth.Viewer, inPool},
	pacelinev1connect.UsageServiceListJobUsageProcedure: {auth.Viewer, somewhere},

	// Rules hold for the whole cell, and who may change them may change every job. What they say and whom they judged is not everybody's.
	pacelinev1connect.AdmissionServicePushBundleProcedure:    {auth.Admin, everywhere},
	pacelinev1connect.AdmissionServiceUseBundleProcedure:     {auth.Admin, everywhere},
	pacelinev1connect.AdmissionServiceRemoveBundleProcedure:  {auth.Admin, everywhere},
	pacelinev1connect.AdmissionServiceListBundlesProcedure:   {auth.Viewer, everywhere},
	pacelinev1connect.AdmissionServiceGetBundleProcedure:     {auth.Operator, everywhere},
	pacelinev1connect.AdmissionServiceListDecisionsProcedure: {auth.Operator, everywhere},

	// Policies place the work of the whole cell, and what their authors wrote is not everybody's.
	pacelinev1connect.PolicyServicePushPolicyProcedure:       {auth.Admin, everywhere},
	pacelinev1connect.PolicyServiceMovePolicyProcedure:       {auth.Admin, everywhere},
	pacelinev1connect.PolicyServiceRollBackPolicyProcedure:   {auth.Admin, everywhere},
	pacelinev1connect.PolicyServiceRetirePolicyProcedure:     {auth.Admin, everywhere},
	pacelinev1connect.PolicyServiceSetDefaultPolicyProcedure: {auth.Admin, everywhere},
	pacelinev1connect.PolicyServiceListPoliciesProcedure:     {auth.Viewer, somewhere},
	pacelinev1connect.PolicyServiceGetPolicyProcedure:        {auth.Operator, everywhere},

	// A cluster takes the work of the whole cell, and to add one has the server speak to whatever it names.
	pacelinev1connect.ClusterServiceAddClusterProcedure:    {auth.Admin, everywhere},
	pacelinev1connect.ClusterServiceUpdateClusterProcedure: {auth.Admin, everywhere},
	pacelinev1connect.ClusterServiceRemoveClusterProcedure: {auth.Admin, everywhere},
	pacelinev1connect.ClusterServiceListClustersProcedure:  {auth.Viewer, somewhere},
	pacelinev1connect.ClusterServiceGetClusterProcedure:    {auth.Viewer, somewhere},

	// Hosts belong to no pool: whoever may see anything sees them, as placement is explained in terms of them.
	pacelinev1connect.HostServiceListHostsProcedure:   {auth.Viewer, somewhere},
	pacelinev1connect.HostServiceGetHostProcedure:     {auth.Viewer, somewhere},
	pacelinev1connect.HostServiceDrainHostProcedure:   {auth.Operator, everywhere},
	pacelinev1connect.HostServiceUndrainHostProcedure: {auth.Operator, everywhere},

	pacelinev1connect.EventServiceWatchEventsProcedure: {auth.Viewer, somewhere},

	pacelinev1connect.AdminServiceGetInfoProcedure: {auth.Viewer, somewhere},
	pacelinev1connect.AdminServiceBackupProcedure:  {auth.Admin, everywhere},

	"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo":      {auth.Viewer, somewhere},
	"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": {auth.Viewer, somewhere},
}

// access is what the edge knows of a call; handlers find it in its context. It belongs to the call's goroutine.
type access struct {
	principal *auth.Principal
	rule      rule
	asked     bool         // whether the handler called permit
	renew     func() error // whether the caller's token still holds
}

type accessKey struct{}

func withAccess(ctx context.Context, a *access) context.Context {
	return context.WithValue(ctx, accessKey{}, a)
}

// accessOf panics without an access: a handler reached past the edge is a defect that must not answer.
func accessOf(ctx context.Context) *access {
	a, ok := ctx.Value(accessKey{}).(*access)
	if !ok {
		panic("api: a handler was called without passing the edge")
	}
	return a
}

// admit checks what can be checked before the object is known.
func (a *access) admit() error {
	switch {
	case a.rule.scope == everywhere && !a.principal.Allows(a.rule.role, auth.Root):
		return a.denied(auth.Root)
	case !a.principal.AllowsSome(a.rule.role):
		return a.denied("any pool")
	}
	return nil
}

func (a *access) denied(where string) error {
	return refuse(connect.CodePermissionDenied, "ask an admin for the role, or use another token",
		"%s does not have the role %s in %s", a.principal.Name, a.rule.role, where)
}

// permit asks whether the caller has the method's role in a pool. One who may not even see the pool gets missing, which is the same
// answer as for what does not exist; nil stands for a plain denial.
func permit(ctx context.Context, pool string, missing error) error {
	a := accessOf(ctx)
	a.asked = true
	switch {
	case a.principal.Allows(a.rule.role, pool):
		return nil
	case missing != nil && !a.principal.Allows(auth.Viewer, pool):
		return missing
	}
	return a.denied(pool)
}

// callerOf is on whose behalf the scheduler acts.
func callerOf(ctx context.Context) scheduler.Caller {
	p := accessOf(ctx).principal
	return scheduler.Caller{Principal: p.Name, Tenant: p.Tenant}
}
