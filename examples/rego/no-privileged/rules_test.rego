package paceline.admission_test

import data.paceline.admission

asks(command, env, role) := {
	"pool": {"path": "/ads/web"},
	"principal": {"roles": [{"role": role, "pool": "/ads"}]},
	"job": {"controller": false, "task": {"command": command, "env": env}, "overrides": []},
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
