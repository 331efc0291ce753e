# Tasks run approved images, and, where they run on their host's file system, approved programs.
package paceline.admission

# Every container of the task: that of its command, those before it and those beside it.
containers contains input.job.task.container

containers contains container if some container in input.job.task.inits

containers contains container if some container in input.job.task.sidecars

approved_image(image) if {
	some prefix in data.approved_images
	startswith(image, prefix)
}

deny contains msg if {
	some container in containers
	container.image != ""
	not approved_image(container.image)
	msg := sprintf("the image %q is not approved: use one that begins with %s", [container.image, concat(" or ", data.approved_images)])
}

# The last part of an image names its version, after a colon or an @.
deny contains msg if {
	some container in containers
	parts := split(container.image, "/")
	last := parts[count(parts) - 1]
	last != ""
	not contains(last, "@")
	moves(last)
	msg := sprintf("the image %q may change under the job: name a version or a digest", [container.image])
}

moves(last) if not contains(last, ":")

moves(last) if endswith(last, ":latest")

# A patch of the pod could bring containers of its own.
deny contains "leave kubernetes.pod_patch out: it could bring images that nobody approved" if {
	count(object.get(input.job.task, ["kubernetes", "pod_patch"], {})) > 0
}

# Without an image the program is one of the host's.
on_host if object.get(input.job.task, ["container", "image"], "") == ""

commands contains input.job.task.command if on_host

commands contains command if {
	on_host
	some override in input.job.overrides
	command := override.command
}

commands contains container.command if {
	some container in containers
	container.image == ""
	container.name != ""
}

deny contains msg if {
	some command in commands
	count(command) > 0
	not command[0] in data.approved_programs
	msg := sprintf("the program %q is not approved: ask for it to be added, or use one of %s", [command[0], concat(", ", data.approved_programs)])
}
