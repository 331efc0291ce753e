# Nobody but operators runs what has rights on its host, changes its own rights, hooks itself into other programs, or directs other work.
package paceline.admission

operator if {
	some binding in input.principal.roles
	binding.role in {"operator", "admin"}
	within(binding.pool, input.pool.path)
}

within("/", _)

within(top, pool) if pool == top

within(top, pool) if startswith(pool, concat("", [top, "/"]))

# Every container of the task: that of its command, those before it and those beside it.
containers contains input.job.task.container

sides contains side if some side in input.job.task.inits

sides contains side if some side in input.job.task.sidecars

containers contains side if some side in sides

deny contains "only operators run privileged containers: leave privileged out" if {
	not operator
	some container in containers
	container.privileged
}

deny contains msg if {
	not operator
	some volume in input.job.task.volumes
	path := volume.host_path
	not allowed_path(path)
	msg := sprintf("only operators mount %s of a host: use a scratch volume or a claim", [path])
}

allowed_path(path) if {
	some top in data.allowed_host_paths
	within(top, path)
}

administrators := {"root", "0"}

deny contains msg if {
	not operator
	input.job.task.user in administrators
	msg := sprintf("only operators run as user %s: name another", [input.job.task.user])
}

deny contains "only operators run as user 0: set another kubernetes.run_as_user" if {
	not operator
	input.job.task.kubernetes.run_as_user == 0
}

# A patch of the pod could bring what the rules above refuse.
deny contains "only operators patch pods: leave kubernetes.pod_patch out" if {
	not operator
	count(object.get(input.job.task, ["kubernetes", "pod_patch"], {})) > 0
}

commands contains input.job.task.command

commands contains side.command if some side in sides

commands contains override.command if some override in input.job.overrides

# A program may stand behind others, as in env X=1 sudo.
deny contains msg if {
	not operator
	some command in commands
	some word in command
	parts := split(word, "/")
	program := parts[count(parts) - 1]
	program in data.privileged_programs
	msg := sprintf("the command uses %s, which only operators may: run it without", [program])
}

environments contains input.job.task.env

environments contains side.env if some side in sides

environments contains override.env if some override in input.job.overrides

deny contains msg if {
	not operator
	some env in environments
	some name, _ in env
	some prefix in data.forbidden_env
	startswith(name, prefix)
	msg := sprintf("the variable %s hooks code into programs, which only operators may: leave it out", [name])
}

deny contains "only operators run controllers: leave controller out" if {
	not operator
	input.job.controller
}
