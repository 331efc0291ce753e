# Nobody but operators runs what changes its own rights, hooks itself into other programs, or directs other work.
package paceline.admission

operator if {
	some binding in input.principal.roles
	binding.role in {"operator", "admin"}
	within(binding.pool, input.pool.path)
}

within("/", _)

within(top, pool) if pool == top

within(top, pool) if startswith(pool, concat("", [top, "/"]))

commands contains input.job.task.command

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
