package manifest

import "regexp"

// What Kubernetes takes as the key and the value of a label.
var (
	labelKey   = regexp.MustCompile(`^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$`)
	labelValue = regexp.MustCompile(`^([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?$`)
)

// LabelManager is the label that says what made an object, and Manager what it says of those of the driver.
const (
	LabelManager = "app.kubernetes.io/managed-by"
	Manager      = "paceline"
)
