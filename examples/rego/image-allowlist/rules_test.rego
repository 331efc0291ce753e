package paceline.admission_test

import data.paceline.admission

job(image, program) := {"job": {
	"labels": {"image": image},
	"task": {"command": [program, "main.py"]},
	"overrides": [],
}}

test_approved if {
	count(admission.deny) == 0 with input as job("registry.example.com/apps/web:1.4", "/usr/bin/python3")
}

test_foreign_image if {
	count(admission.deny) == 1 with input as job("docker.example.org/web:1.4", "/usr/bin/python3")
}

test_latest if {
	count(admission.deny) == 1 with input as job("registry.example.com/apps/web:latest", "/usr/bin/python3")
}

test_program if {
	count(admission.deny) == 1 with input as job("registry.example.com/apps/web:1.4", "/bin/sh")
}

test_program_of_an_override if {
	asked := object.union(job("registry.example.com/apps/web:1.4", "/usr/bin/env").job, {"overrides": [{"instances": "0", "command": ["/bin/sh"]}]})
	count(admission.deny) == 1 with input as {"job": asked}
}

test_override_without_command if {
	asked := object.union(job("registry.example.com/apps/web:1.4", "/usr/bin/env").job, {"overrides": [{"instances": "0", "command": []}]})
	count(admission.deny) == 0 with input as {"job": asked}
}
