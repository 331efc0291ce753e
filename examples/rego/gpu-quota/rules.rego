# Each team may hold so many GPUs in its pool. What runs there already and what the job would add at once count together.
package paceline.admission

quota := data.gpu_quota[input.pool.path] * 1000

# A window bounds what a batch job holds at one time.
at_once := n if {
	n := min({input.job.instances, input.job.batch.max_running})
	input.job.batch.max_running > 0
} else := input.job.instances

asked := at_once * input.job.task.resources.gpu_milli

held := input.pool.usage.gpu_milli

deny contains msg if {
	asked > quota
	msg := sprintf("it asks for %v GPUs at once, and pool %s may hold %v: use fewer instances, or batch.max_running", [asked / 1000, input.pool.path, quota / 1000])
}

# It may start once others have ended.
warn contains msg if {
	asked <= quota
	asked + held > quota
	msg := sprintf("pool %s holds %v of its %v GPUs: the job waits until others have ended", [input.pool.path, held / 1000, quota / 1000])
}

# Instances with needs of their own are not counted, so they may not ask for GPUs.
deny contains "overrides must not ask for GPUs in a pool with a quota" if {
	quota
	some override in input.job.overrides
	override.resources.gpu_milli > 0
}

# GPUs are dear: a job that holds them ends some time.
mutate contains {"deadline_cap": data.gpu_deadline} if {
	input.job.batch
	input.job.task.resources.gpu_milli > 0
}
