package paceline.admission_test

import data.paceline.admission

at(path, priority) := {"pool": {"path": path}, "job": {"priority": priority, "batch": {}}}

test_cap_of_the_nearest_pool if {
	admission.cap == 500 with input as at("/prod/batch/nightly", 1)
	admission.cap == 1000 with input as at("/prod/web", 1)
	admission.cap == 100 with input as at("/production", 1)
	admission.cap == 100 with input as at("/default", 1)
}

test_priority_is_capped if {
	{"priority_cap": 100} in admission.mutate with input as at("/default", 101)
}

test_preemptible_outside_production if {
	{"preemptible": true} in admission.mutate with input as at("/dev", 1)
	not {"preemptible": true} in admission.mutate with input as at("/prod/web", 1)
}
