package paceline.admission_test

import data.paceline.admission

job := {"name": "crunch", "labels": {"team": "ads", "cost-center": "4711"}, "batch": {}, "revocable": false}

test_complete if {
	count(admission.deny) == 0 with input as {"job": job, "principal": {"tenant": "ads"}}
}

test_missing if {
	admission.deny == {"the label \"cost-center\" is missing: add it to labels"} with input as {
		"job": object.union(object.remove(job, ["labels"]), {"labels": {"team": "ads"}}),
		"principal": {"tenant": ""},
	}
}

test_wrong_form if {
	count(admission.deny) == 1 with input as {
		"job": object.union(job, {"labels": {"cost-center": "12"}}),
		"principal": {"tenant": ""},
	}
}

test_team_is_filled_in if {
	admission.mutate == {{"labels": {"team": "ads"}}} with input as {
		"job": object.union(object.remove(job, ["labels"]), {"labels": {"cost-center": "4711"}}),
		"principal": {"tenant": "ads"},
	}
}

test_team_is_left_alone if {
	count(admission.mutate) == 0 with input as {"job": job, "principal": {"tenant": "video"}}
}

test_experiment if {
	count(admission.warn) == 1 with input as {
		"job": object.union(job, {"labels": {"experiment": "7"}}),
		"principal": {"tenant": ""},
	}
}
