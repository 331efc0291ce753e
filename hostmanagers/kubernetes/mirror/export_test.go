package mirror

// Words returns the table, for the test that goes through it.
func Words() map[Word]Meaning { return words }
