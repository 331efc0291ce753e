# Every job says whose it is and who pays for it. What can be known is filled in.
package paceline.admission

# Who submits belongs to a tenant: the team need not be written into every file.
mutate contains {"labels": {"team": input.principal.tenant}} if {
	not input.job.labels.team
	input.principal.tenant != ""
}

deny contains msg if {
	some name in data.required_labels
	not input.job.labels[name]
	msg := sprintf("the label %q is missing: add it to labels", [name])
}

deny contains msg if {
	some name, pattern in data.label_patterns
	value := input.job.labels[name]
	not regex.match(pattern, value)
	msg := sprintf("the label %q is %q, which does not match %s", [name, value, pattern])
}

warn contains "a job with the label \"experiment\" is a good candidate for revocable: true" if {
	input.job.labels.experiment
	input.job.batch
	not input.job.revocable
}
