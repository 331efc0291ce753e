package paceline.admission_test

import data.paceline.admission

asks(path, held, instances, window) := {
	"pool": {"path": path, "usage": {"gpu_milli": held}},
	"job": {
		"instances": instances,
		"batch": {"max_running": window},
		"task": {"resources": {"gpu_milli": 2000}},
		"overrides": [],
	},
}

test_within if {
	count(admission.deny) == 0 with input as asks("/ml/vision", 0, 4, 0)
	count(admission.warn) == 0 with input as asks("/ml/vision", 0, 4, 0)
}

test_above if count(admission.deny) == 1 with input as asks("/ml/speech", 0, 3, 0)

test_window if count(admission.deny) == 0 with input as asks("/ml/speech", 0, 100, 2)

test_waits if count(admission.warn) == 1 with input as asks("/ml/vision", 4000, 3, 0)

test_other_pools_have_no_quota if count(admission.deny) == 0 with input as asks("/dev", 99000, 500, 0)

test_overrides if {
	asked := asks("/ml/vision", 0, 1, 0)
	job := object.union(asked.job, {"overrides": [{"instances": "0", "resources": {"gpu_milli": 1000}}]})
	count(admission.deny) == 1 with input as object.union(asked, {"job": job})
}

test_deadline if {
	admission.mutate == {{"deadline_cap": "48h"}} with input as asks("/dev", 0, 1, 0)
}
