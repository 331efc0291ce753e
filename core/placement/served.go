package placement

// Witness is a Placer that tells how it came to its last answer, so that the answer can be recorded and found again. One that is no Witness served the batch itself, as the
// built-in placer does.
type Witness interface {
	Served() []Served
}

// Follower is a Placer that can be told how the next batch was served when it was recorded, so that it serves it alike. What is told of another policy's doing it may ignore.
type Follower interface {
	Follow(Served)
}

// Served is how a stretch of a batch's requests was answered.
type Served struct {
	Requests int          // of the batch, after those of the stretch before
	By       string       // the policy's name, or the built-in strategy
	Digest   string       // of the policy's module; "": it is built in
	Fuel     int64        // that its calls used
	Faults   int          // of the policy; what it left undone another one did
	Calls    []ServedCall // into which the stretch was cut, in order
}

// ServedCall is one call of a policy: how much it held, and what else it saw.
type ServedCall struct {
	Requests, Tasks int
	Seed            uint64
	Time            int64   // UTC nanoseconds
	Mix             []Share // the work to come, as the policy was told; shared, and never changed
}

// Share is a class with its part of the work to come, of 1.
type Share struct {
	Class  *Class
	Weight float64
}
