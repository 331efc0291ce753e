# In each pool a job's priority has a cap, and work outside of production may always be preempted.
package paceline.admission

# The longest path that the job's pool is at or below counts.
covering contains path if {
	some path, _ in data.priority_caps
	covers(path, input.pool.path)
}

covers(_, pool) if pool == "/"

covers(path, pool) if pool == path

covers(path, pool) if startswith(pool, concat("", [trim_suffix(path, "/"), "/"]))

cap := data.priority_caps[longest] if {
	lengths := {count(path) | some path in covering}
	some longest in covering
	count(longest) == max(lengths)
}

mutate contains {"priority_cap": cap}

mutate contains {"preemptible": true} if {
	not covers("/prod", input.pool.path)
	not input.job.daemon
}
