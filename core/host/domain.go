package host

// Domains is one topology attribute over the hosts of a table: hosts with the same value share a domain. It is good until the table changes.
type Domains struct{ column *column }

// Domains returns the domains of a topology attribute; workload.TopologyHost makes every host its own.
func (t *Table) Domains(key string) Domains { return Domains{t.columns[key]} }

// Of returns the domain of the host at row, 0 for none.
func (d Domains) Of(row Row) uint32 {
	if d.column == nil {
		return 0
	}
	return d.column.ids[row]
}

// Len is one more than the highest domain.
func (d Domains) Len() int {
	if d.column == nil {
		return 1
	}
	return len(d.column.values)
}

// Name is the attribute's value in a domain.
func (d Domains) Name(domain uint32) string {
	if d.column == nil || int(domain) >= len(d.column.values) {
		return ""
	}
	return d.column.values[domain].text
}

// Lookup finds the domain of a value, 0 when no host has it.
func (d Domains) Lookup(name string) uint32 {
	if d.column == nil {
		return 0
	}
	return d.column.index[name]
}
