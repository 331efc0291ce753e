// Package deploy judges the folder deploy: that its Helm chart renders what an API server takes, that the rights which it asks for are enough and no
// more, and that the image's program and the systemd unit are sound.
//
// It has tests alone, and owns nothing. What a test needs and the machine does not have, it names and is skipped: helm comes with `make lint`, a real API
// server with `make conformance-kubernetes`, a kubelet with `make conformance-kubelet`, and `make conformance-deploy` builds the image's program.
package deploy
