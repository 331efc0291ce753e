// Package deploy judges the folder deploy: that its Helm chart renders what an API server takes, and asks for the rights of the plain manifests.
//
// It has tests alone, and owns nothing. What a test needs and the machine does not have, it names and is skipped: helm comes with `make lint`.
package deploy
