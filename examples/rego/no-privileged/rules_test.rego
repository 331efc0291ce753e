package paceline.admission_test

import data.paceline.admission

asks(command, env, role) := {
	"pool": {"path": "/ads/web"},
	"principal": {"roles": [{"role": role, "pool": "/ads"}]},
	"job": {"controller": false, "task": {"command": command, "env": env, "inits": [], "sidecars": [], "volumes": [], "user": ""}, "overrides": []},
}

test_plain if count(admission.deny) == 0 with input as asks(["/usr/bin/python3", "x.py"], {"HOME": "/tmp"}, "submitter")

test_sudo if count(admission.deny) == 1 with input as asks(["/usr/bin/sudo", "x"], {}, "submitter")

test_sudo_behind_env if count(admission.deny) == 1 with input as asks(["env", "A=1", "/usr/bin/sudo"], {}, "submitter")

test_preload if count(admission.deny) == 1 with input as asks(["x"], {"LD_PRELOAD": "/tmp/x.so"}, "submitter")

test_operators_may if count(admission.deny) == 0 with input as asks(["sudo"], {"LD_PRELOAD": "x"}, "operator")

test_operators_of_other_pools_may_not if {
	asked := asks(["sudo"], {}, "operator")
	count(admission.deny) == 1 with input as object.union(asked, {"pool": {"path": "/advertising"}})
}

test_override if {
	asked := asks(["x"], {}, "submitter")
	job := object.union(asked.job, {"overrides": [{"instances": "0", "command": ["su"], "env": {"LD_AUDIT": "x"}}]})
	count(admission.deny) == 2 with input as object.union(asked, {"job": job})
}

test_controller if {
	asked := asks(["x"], {}, "submitter")
	count(admission.deny) == 1 with input as object.union(asked, {"job": object.union(asked.job, {"controller": true})})
}

# A task of a submitter with some fields of its own.
task(more) := object.union(asked, {"job": object.union(asked.job, {"task": object.union(asked.job.task, more)})}) if {
	asked := asks(["x"], {}, "submitter")
}

test_privileged if count(admission.deny) == 1 with input as task({"container": {"image": "x", "privileged": true}})

test_privileged_sidecar if {
	count(admission.deny) == 1 with input as task({"sidecars": [{"name": "s", "privileged": true, "command": [], "env": {}}]})
}

test_sudo_in_an_init if {
	count(admission.deny) == 1 with input as task({"inits": [{"name": "s", "privileged": false, "command": ["sudo"], "env": {}}]})
}

test_preload_in_a_sidecar if {
	count(admission.deny) == 1 with input as task({"sidecars": [{"name": "s", "privileged": false, "command": [], "env": {"LD_PRELOAD": "x"}}]})
}

test_container if count(admission.deny) == 0 with input as task({"container": {"image": "x", "privileged": false}})

test_host_path if count(admission.deny) == 1 with input as task({"volumes": [{"name": "v", "host_path": "/etc"}]})

test_allowed_host_path if count(admission.deny) == 0 with input as task({"volumes": [{"name": "v", "host_path": "/mnt/data/a"}]})

test_scratch if count(admission.deny) == 0 with input as task({"volumes": [{"name": "v", "scratch": {}}]})

test_root if count(admission.deny) == 1 with input as task({"user": "root"})

test_user_zero if count(admission.deny) == 1 with input as task({"kubernetes": {"run_as_user": 0}})

test_user if count(admission.deny) == 0 with input as task({"user": "ada", "kubernetes": {"run_as_user": 1000}})

test_patch if count(admission.deny) == 1 with input as task({"kubernetes": {"pod_patch": {"spec": {"hostNetwork": true}}}})
