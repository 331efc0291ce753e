package host

// Journal is told of every change of a table, in order, once it is made. Whoever begins with a State and repeats what the journal is told ends
// with an equal table. It is called on the goroutine of the table's owner and must not change the table.
type Journal interface {
	// Upserted tells what is known of the host at row from now on. It must not be changed.
	Upserted(row Row, h *Host)
	Removed(row Row)
	Drained(row Row, draining bool)
	Took(row Row, o Occupant)
	Released(row Row, o Occupant)
}

// SetJournal has j told of what follows; nil: nobody. A table has one journal.
func (t *Table) SetJournal(j Journal) { t.journal = j }
