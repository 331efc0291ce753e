package paceline.admission_test

import data.paceline.admission

# A task as rules see it: lists and plain fields are always there.
task(more) := object.union({"command": ["/bin/sh", "main.sh"], "inits": [], "sidecars": [], "volumes": []}, more)

runs(image) := {"job": {"task": task({"container": {"image": image}}), "overrides": []}}

on_host(program) := {"job": {"task": task({"command": [program, "main.py"]}), "overrides": []}}

test_approved if {
	count(admission.deny) == 0 with input as runs("registry.example.com/apps/web:1.4")
}

test_digest if {
	count(admission.deny) == 0 with input as runs("registry.example.com/apps/web@sha256:0123")
}

test_foreign_image if {
	count(admission.deny) == 1 with input as runs("docker.example.org/web:1.4")
}

test_latest if {
	count(admission.deny) == 1 with input as runs("registry.example.com/apps/web:latest")
}

test_no_version if {
	count(admission.deny) == 1 with input as runs("registry.example.com/apps/web")
}

test_sidecar if {
	asked := {"job": {"overrides": [], "task": task({
		"container": {"image": "registry.example.com/apps/web:1.4"},
		"sidecars": [{"name": "proxy", "image": "docker.example.org/proxy:2", "command": []}],
	})}}
	count(admission.deny) == 1 with input as asked
}

test_init if {
	asked := {"job": {"overrides": [], "task": task({
		"container": {"image": "registry.example.com/apps/web:1.4"},
		"inits": [{"name": "fetch", "image": "docker.example.org/fetch:2", "command": []}],
	})}}
	count(admission.deny) == 1 with input as asked
}

test_init_on_the_host if {
	asked := {"job": {"overrides": [], "task": task({
		"container": {"image": "registry.example.com/apps/web:1.4"},
		"inits": [{"name": "fetch", "image": "", "command": ["/bin/curl"]}],
	})}}
	count(admission.deny) == 1 with input as asked
}

test_pod_patch if {
	asked := {"job": {"overrides": [], "task": task({
		"container": {"image": "registry.example.com/apps/web:1.4"},
		"kubernetes": {"pod_patch": {"spec": {"containers": [{"name": "x", "image": "y"}]}}},
	})}}
	count(admission.deny) == 1 with input as asked
}

test_kubernetes_without_patch if {
	asked := {"job": {"overrides": [], "task": task({
		"container": {"image": "registry.example.com/apps/web:1.4"}, "kubernetes": {"namespace": "prod"},
	})}}
	count(admission.deny) == 0 with input as asked
}

test_approved_program if count(admission.deny) == 0 with input as on_host("/usr/bin/python3")

test_program if count(admission.deny) == 1 with input as on_host("/bin/sh")

test_program_of_an_override if {
	asked := object.union(on_host("/usr/bin/env").job, {"overrides": [{"instances": "0", "command": ["/bin/sh"]}]})
	count(admission.deny) == 1 with input as {"job": asked}
}

test_override_without_command if {
	asked := object.union(on_host("/usr/bin/env").job, {"overrides": [{"instances": "0", "command": []}]})
	count(admission.deny) == 0 with input as {"job": asked}
}
