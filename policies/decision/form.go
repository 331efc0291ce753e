package decision

import (
	"fmt"
	"maps"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// The forms are what is written as JSON. Vectors lose their zeros at the end.

type stateForm struct {
	Names   []string       `json:"names,omitempty"`
	Groups  []occupantForm `json:"groups,omitempty"` // what residents are of
	Rows    []rowForm      `json:"rows"`
	Spare   []host.Row     `json:"spare,omitempty"`
	Columns []columnForm   `json:"columns,omitempty"`
}

type rowForm struct {
	Host      *hostForm  `json:"h,omitempty"`
	Draining  bool       `json:"d,omitempty"`
	Used      []int64    `json:"u,omitempty"`
	Lanes     []int64    `json:"l,omitempty"`
	Ports     []uint16   `json:"p,omitempty"`
	Residents [][2]int32 `json:"r,omitempty"` // group, how many
}

type columnForm struct {
	Key    string   `json:"key"`
	Values []string `json:"values"`
	Spare  []uint32 `json:"spare,omitempty"`
	IDs    []uint32 `json:"ids"`
}

type hostForm struct {
	ID         string            `json:"id"`
	Name       string            `json:"name"`
	Attributes map[string]string `json:"attributes,omitempty"`
	Pool       string            `json:"pool,omitempty"`
	Capacity   []int64           `json:"capacity,omitempty"`
	Foreign    []int64           `json:"foreign,omitempty"`
	Devices    []deviceForm      `json:"devices,omitempty"`
	Ports      [][2]uint16       `json:"ports,omitempty"`
	Ready      bool              `json:"ready,omitempty"`
}

// deviceForm is devices that follow each other and are alike.
type deviceForm struct {
	Model string `json:"model"`
	Milli int64  `json:"milli"`
	Count int    `json:"n"`
}

type occupantForm struct {
	Job       string            `json:"job,omitempty"`
	Exclusive bool              `json:"exclusive,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	Needs     []int64           `json:"needs,omitempty"`
	Milli     int64             `json:"milli,omitempty"`
}

type classForm struct {
	ID        placement.ClassID  `json:"id"`
	Kind      workload.Kind      `json:"kind"`
	Needs     []int64            `json:"needs,omitempty"`
	Models    []string           `json:"models,omitempty"`
	Ports     []uint16           `json:"ports,omitempty"`
	Labels    map[string]string  `json:"labels,omitempty"`
	Placement workload.Placement `json:"placement"`
	Job       string             `json:"job,omitempty"`
}

type shareForm struct {
	Class  uint64  `json:"class"` // by number
	Weight float64 `json:"weight"`
}

func vectorForm(v *resource.Vector) []int64 { return trim(v[:]) }

// trim copies a list without the zeros at its end.
func trim(list []int64) []int64 {
	n := len(list)
	for n > 0 && list[n-1] == 0 {
		n--
	}
	return append([]int64(nil), list[:n]...)
}

func vectorOf(form []int64) (v resource.Vector, err error) {
	if len(form) > len(v) {
		return v, fmt.Errorf("a vector of %d kinds, there are %d", len(form), len(v))
	}
	copy(v[:], form)
	return v, nil
}

// needsOf is vectorOf for what a task needs.
func needsOf(form []int64) (resource.Vector, error) {
	v, err := vectorOf(form)
	for _, q := range v {
		if q < 0 || q > resource.MaxQuantity {
			return v, fmt.Errorf("a need of %d", q)
		}
	}
	return v, err
}

func jobForm(id workload.JobID) string {
	if id == (workload.JobID{}) {
		return ""
	}
	return id.String()
}

func jobOf(form string) (workload.JobID, error) {
	if form == "" {
		return workload.JobID{}, nil
	}
	id, err := workload.ParseID(form)
	return workload.JobID(id), err
}

func newHostForm(h *host.Host, attributes bool) *hostForm {
	f := &hostForm{
		ID: h.ID.String(), Name: h.Name, Pool: h.Pool, Capacity: vectorForm(&h.Capacity), Foreign: vectorForm(&h.Foreign), Ready: h.Ready,
	}
	if attributes {
		f.Attributes = h.Attributes
	}
	for _, d := range h.Devices {
		if n := len(f.Devices); n > 0 && f.Devices[n-1].Model == d.Model && f.Devices[n-1].Milli == d.Milli {
			f.Devices[n-1].Count++
		} else {
			f.Devices = append(f.Devices, deviceForm{d.Model, d.Milli, 1})
		}
	}
	for _, p := range h.Ports {
		f.Ports = append(f.Ports, [2]uint16{p.First, p.Last})
	}
	return f
}

func (f *hostForm) host() (*host.Host, error) {
	id, err := workload.ParseID(f.ID)
	if err != nil {
		return nil, err
	}
	h := &host.Host{ID: workload.HostID(id), Name: f.Name, Attributes: f.Attributes, Pool: f.Pool, Ready: f.Ready}
	if h.Capacity, err = vectorOf(f.Capacity); err != nil {
		return nil, err
	}
	if h.Foreign, err = vectorOf(f.Foreign); err != nil {
		return nil, err
	}
	for _, d := range f.Devices {
		if d.Count < 0 || len(h.Devices)+d.Count > host.MaxDevices {
			return nil, fmt.Errorf("host %q has more than %d devices", f.Name, host.MaxDevices)
		}
		for range d.Count {
			h.Devices = append(h.Devices, host.Device{Model: d.Model, Milli: d.Milli})
		}
	}
	for _, p := range f.Ports {
		h.Ports = append(h.Ports, host.PortRange{First: p[0], Last: p[1]})
	}
	return h, nil
}

func newOccupantForm(o *host.Occupant) occupantForm {
	f := occupantForm{Job: jobForm(o.Job), Exclusive: o.Exclusive, Needs: vectorForm(&o.Needs), Milli: o.Milli}
	if labels := maps.Collect(o.Labels.All()); len(labels) > 0 {
		f.Labels = labels
	}
	return f
}

func (f *occupantForm) occupant() (o host.Occupant, err error) {
	if o.Job, err = jobOf(f.Job); err != nil {
		return o, err
	}
	o.Exclusive, o.Labels, o.Milli = f.Exclusive, host.NewLabelSet(f.Labels), f.Milli
	o.Needs, err = needsOf(f.Needs)
	return o, err
}

func newClassForm(c *placement.Class) classForm {
	return classForm{
		ID: c.ID, Kind: c.Kind, Needs: vectorForm(&c.Needs), Models: c.GPUModels, Ports: c.Ports, Labels: c.Labels, Placement: c.Placement,
		Job: jobForm(c.Job),
	}
}

func (f *classForm) class() (*placement.Class, error) {
	job, err := jobOf(f.Job)
	if err != nil {
		return nil, err
	}
	spec := workload.JobSpec{Kind: f.Kind, Labels: f.Labels, Placement: f.Placement}
	spec.Template.GPUModels = f.Models
	if spec.Template.Needs, err = needsOf(f.Needs); err != nil {
		return nil, err
	}
	for _, number := range f.Ports {
		spec.Template.Ports = append(spec.Template.Ports, workload.Port{Number: number})
	}
	c := placement.NewClass(job, &spec, nil)
	if c.ID != f.ID {
		return nil, fmt.Errorf("a class says that it is %x and is %x", uint64(f.ID), uint64(c.ID))
	}
	return c, nil
}

func newStateForm(s *host.State) *stateForm {
	s.Sort()
	f := &stateForm{Names: s.Names, Rows: make([]rowForm, len(s.Rows)), Spare: s.Spare}
	groups := map[occupantKey]int32{}
	for i := range s.Rows {
		r, out := &s.Rows[i], &f.Rows[i]
		if r.Host == nil {
			continue
		}
		*out = rowForm{Host: newHostForm(r.Host, false), Draining: r.Draining, Used: vectorForm(&r.Used), Lanes: trim(r.Lanes[:]), Ports: r.Ports}
		for _, o := range r.Residents {
			as := host.Occupant{Job: o.Job, Exclusive: o.Exclusive, Labels: o.Labels}
			key := keyOf(&as)
			g, known := groups[key]
			if !known {
				g = int32(len(f.Groups)) //nolint:gosec // as many as what runs
				groups[key] = g
				f.Groups = append(f.Groups, newOccupantForm(&as))
			}
			out.Residents = append(out.Residents, [2]int32{g, o.Occupants})
		}
	}
	for _, c := range s.Columns {
		f.Columns = append(f.Columns, columnForm{c.Key, c.Values, c.Spare, c.IDs})
	}
	return f
}

func (f *stateForm) state() (*host.State, error) {
	s := &host.State{Names: f.Names, Rows: make([]host.RowState, len(f.Rows)), Spare: f.Spare}
	groups := make([]host.Occupant, len(f.Groups))
	for i := range f.Groups {
		var err error
		if groups[i], err = f.Groups[i].occupant(); err != nil {
			return nil, err
		}
	}
	for i := range f.Rows {
		if f.Rows[i].Host == nil {
			continue
		}
		if err := f.Rows[i].row(&s.Rows[i], groups); err != nil {
			return nil, fmt.Errorf("row %d: %w", i, err)
		}
	}
	for _, c := range f.Columns {
		s.Columns = append(s.Columns, host.ColumnState{Key: c.Key, Values: c.Values, Spare: c.Spare, IDs: c.IDs})
	}
	return s, nil
}

func (f *rowForm) row(s *host.RowState, groups []host.Occupant) (err error) {
	s.Draining, s.Ports = f.Draining, f.Ports
	if s.Host, err = f.Host.host(); err != nil {
		return err
	}
	if s.Used, err = vectorOf(f.Used); err != nil {
		return err
	}
	if len(f.Lanes) > len(s.Lanes) {
		return fmt.Errorf("%d devices", len(f.Lanes))
	}
	copy(s.Lanes[:], f.Lanes)
	for _, r := range f.Residents {
		if r[0] < 0 || int(r[0]) >= len(groups) {
			return fmt.Errorf("there is no group %d of occupants", r[0])
		}
		g := &groups[r[0]]
		s.Residents = append(s.Residents, host.ResidentState{Job: g.Job, Exclusive: g.Exclusive, Labels: g.Labels, Occupants: r[1]})
	}
	return nil
}

// occupantKey tells occupants apart by all but their devices and ports.
type occupantKey struct {
	job       workload.JobID
	exclusive bool
	labels    string
	needs     resource.Vector
	milli     int64
}

func keyOf(o *host.Occupant) occupantKey {
	return occupantKey{job: o.Job, exclusive: o.Exclusive, labels: o.Labels.Canonical(), needs: o.Needs, milli: o.Milli}
}
