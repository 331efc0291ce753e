# Tasks run approved programs and images only. An image is named by the label "image" of a job, a program by the first word of its command.
package paceline.admission

approved_image(image) if {
	some prefix in data.approved_images
	startswith(image, prefix)
}

deny contains msg if {
	image := input.job.labels.image
	not approved_image(image)
	msg := sprintf("the image %q is not approved: use one that begins with %s", [image, concat(" or ", data.approved_images)])
}

deny contains msg if {
	image := input.job.labels.image
	endswith(image, ":latest")
	msg := sprintf("the image %q may change under the job: name a version or a digest", [image])
}

commands contains input.job.task.command

commands contains command if {
	some override in input.job.overrides
	command := override.command
	count(command) > 0
}

deny contains msg if {
	some command in commands
	count(command) > 0
	not command[0] in data.approved_programs
	msg := sprintf("the program %q is not approved: ask for it to be added, or use one of %s", [command[0], concat(", ", data.approved_programs)])
}
