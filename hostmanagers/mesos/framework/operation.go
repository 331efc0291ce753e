package framework

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	mesos "github.com/mesos/mesos-go/api/v1/lib"
	"github.com/mesos/mesos-go/api/v1/lib/scheduler"
)

// OperationKind is what is done with resources.
type OperationKind uint8

// The kinds.
const (
	Reserve OperationKind = iota
	Unreserve
	CreateVolume
	DestroyVolume
)

func (k OperationKind) String() string {
	return [...]string{"reserve", "unreserve", "create a volume", "destroy a volume"}[min(k, DestroyVolume)]
}

// Operation turns resources of a host that are offered into others: it reserves them dynamically, or makes a persistent volume of disk.
type Operation struct {
	Kind OperationKind
	Host string
	// Role is whose they are or become. Default: the framework's first one.
	Role string
	// Needs are the resources, by Paceline's names: for a volume, disk alone.
	Needs map[string]int64
	// Labels mark a reservation.
	Labels map[string]string
	// Volume is a volume's id, Path where tasks that use it see it.
	Volume, Path string
}

// Feedback is what became of an operation.
type Feedback struct {
	ID      string
	State   mesos.OperationState
	Message string
}

// Done reports whether the operation was carried out.
func (f *Feedback) Done() bool { return f.State == mesos.OPERATION_FINISHED }

// operation is one whose outcome is not known yet.
type operation struct {
	id    string
	agent *agent
}

// Operate has an operation carried out on what is offered of a host, and returns the id by which Feedback will tell what became of it.
func (m *Machine) Operate(now int64, op *Operation, out *Output) (id string, err error) {
	m.begin(now, out)
	defer m.end()
	a := m.names[op.Host]
	switch {
	case !m.told:
		return "", ErrNotConnected
	case a == nil:
		return "", fmt.Errorf("%s: the cluster has no host %.80q", op.Kind, op.Host)
	case len(m.operations) >= maxOperations:
		return "", fmt.Errorf("%s: %d operations are under way already, of at most %d; try again later", op.Kind, len(m.operations), maxOperations)
	}
	if op.Role == "" {
		op.Role = m.cfg.Roles[0]
	}
	for _, role := range rolesOf(a.offers) {
		for _, o := range a.offers {
			if o.role != role || (role != op.Role && op.Kind == Reserve) {
				continue
			}
			from, err := m.from(op, o.parts)
			if err != nil {
				continue
			}
			return m.operate(op, o, from), nil
		}
	}
	if !m.demand {
		m.quietAt, m.revive = m.now+int64(m.cfg.SuppressAfter), true
	}
	_, err = m.from(op, nil)
	return "", fmt.Errorf("%s on host %s: nothing that is offered of it has what is needed (%w); ask again when it is offered", op.Kind, op.Host, err)
}

// from finds the resources that an operation works on.
func (m *Machine) from(op *Operation, parts bundle) (bundle, error) {
	switch op.Kind {
	case Reserve:
		found, ok := parts.only(func(p *part) bool { return p.flavor == nil }).take(needsOf(op.Needs), nil, false)
		if !ok || len(found) == 0 {
			return nil, errors.New("unreserved resources of that size")
		}
		return found, nil
	case Unreserve, CreateVolume:
		if op.Kind == CreateVolume && (op.Volume == "" || op.Path == "" || len(op.Needs) != 1 || op.Needs[nameDisk] <= 0) {
			return nil, errors.New("an id, a path and a size of disk alone")
		}
		found, ok := parts.only(func(p *part) bool { return m.reservedTo(p, op.Role) }).take(needsOf(op.Needs), nil, false)
		if !ok || len(found) == 0 {
			return nil, fmt.Errorf("resources of that size that role %s has reserved dynamically", op.Role)
		}
		return found, nil
	default:
		found := parts.only(func(p *part) bool { return p.flavor != nil && p.flavor.like.Disk.GetPersistence().GetID() == op.Volume })
		if len(found) == 0 || op.Volume == "" {
			return nil, fmt.Errorf("a volume named %.80q", op.Volume)
		}
		return found, nil
	}
}

func (m *Machine) reservedTo(p *part, role string) bool {
	if p.flavor == nil || !p.flavor.usable || !p.flavor.reserved {
		return false
	}
	last := p.flavor.like.Reservations[len(p.flavor.like.Reservations)-1]
	return last.GetRole() == role && last.GetType() == mesos.Resource_ReservationInfo_DYNAMIC
}

func (b bundle) only(keep func(*part) bool) bundle {
	var kept bundle
	for i := range b {
		if keep(&b[i]) {
			kept = append(kept, b[i])
		}
	}
	return kept
}

// operate sends the operation. All of the offer that it leaves comes again, with what has become of the rest.
func (m *Machine) operate(op *Operation, o *offer, from bundle) string {
	m.operated++
	id := "paceline-" + strconv.FormatInt(m.now, 36) + "-" + strconv.FormatUint(m.operated, 36)
	m.operations[id] = &operation{id: id, agent: o.agent}
	work := mesos.Offer_Operation{ID: &mesos.OperationID{Value: id}}
	resources := from.write(o.role)
	switch op.Kind {
	case Reserve:
		for i := range resources {
			resources[i].Reservations = append(slices.Clone(resources[i].Reservations), m.reservation(op))
		}
		work.Type, work.Reserve = mesos.Offer_Operation_RESERVE, &mesos.Offer_Operation_Reserve{Resources: resources}
	case Unreserve:
		work.Type, work.Unreserve = mesos.Offer_Operation_UNRESERVE, &mesos.Offer_Operation_Unreserve{Resources: resources}
	case CreateVolume:
		for i := range resources {
			resources[i].Disk = m.volume(op)
		}
		work.Type, work.Create = mesos.Offer_Operation_CREATE, &mesos.Offer_Operation_Create{Volumes: resources}
	case DestroyVolume:
		work.Type, work.Destroy = mesos.Offer_Operation_DESTROY, &mesos.Offer_Operation_Destroy{Volumes: resources}
	}
	m.dropOffer(o)
	m.loosen(o.agent, o.parts.minus(from))
	m.out.Calls = append(m.out.Calls, Call{operations: []string{id}, Call: &scheduler.Call{
		Type: scheduler.Call_ACCEPT, Accept: &scheduler.Call_Accept{
			OfferIDs: []mesos.OfferID{{Value: o.id}}, Operations: []mesos.Offer_Operation{work}, Filters: refuse(0),
		},
	}})
	return id
}

func (m *Machine) reservation(op *Operation) mesos.Resource_ReservationInfo {
	role := op.Role
	r := mesos.Resource_ReservationInfo{Type: mesos.Resource_ReservationInfo_DYNAMIC.Enum(), Role: &role, Labels: labels(op.Labels)}
	if m.cfg.Principal != "" {
		r.Principal = &m.cfg.Principal
	}
	return r
}

func (m *Machine) volume(op *Operation) *mesos.Resource_DiskInfo {
	d := &mesos.Resource_DiskInfo{
		Persistence: &mesos.Resource_DiskInfo_Persistence{ID: op.Volume}, Volume: &mesos.Volume{Mode: mesos.RW.Enum(), ContainerPath: op.Path},
	}
	if m.cfg.Principal != "" {
		d.Persistence.Principal = &m.cfg.Principal
	}
	return d
}

// operationUpdate takes in what became of an operation.
func (m *Machine) operationUpdate(st *mesos.OperationStatus) {
	id := st.GetOperationID().GetValue()
	if st.UUID != nil && id != "" {
		call := &scheduler.Call_AcknowledgeOperationStatus{UUID: st.UUID.Value, OperationID: mesos.OperationID{Value: id}}
		call.AgentID, call.ResourceProviderID = st.AgentID, st.ResourceProviderID
		m.call(&scheduler.Call{Type: scheduler.Call_ACKNOWLEDGE_OPERATION_STATUS, AcknowledgeOperationStatus: call})
	}
	o := m.operations[id]
	if o == nil {
		return // of an earlier process
	}
	if st.State == mesos.OPERATION_PENDING || st.State == mesos.OPERATION_RECOVERING || st.State == mesos.OPERATION_UNREACHABLE {
		return // it will be said again
	}
	m.settle(o, Feedback{State: st.State, Message: cut(st.GetMessage())})
}

func (m *Machine) settle(o *operation, f Feedback) {
	delete(m.operations, o.id)
	f.ID = o.id
	m.out.Feedback = append(m.out.Feedback, f)
}

// reconcileOperations asks for the outcomes that are missing.
func (m *Machine) reconcileOperations() {
	if len(m.operations) == 0 {
		return
	}
	call := &scheduler.Call_ReconcileOperations{}
	for _, id := range slices.Sorted(maps.Keys(m.operations)) {
		call.Operations = append(call.Operations, scheduler.Call_ReconcileOperations_Operation{
			OperationID: mesos.OperationID{Value: id}, AgentID: &mesos.AgentID{Value: m.operations[id].agent.id},
		})
	}
	m.call(&scheduler.Call{Type: scheduler.Call_RECONCILE_OPERATIONS, ReconcileOperations: call})
}

// takeInverse answers a master that wants agents vacated. Nothing is moved for it: a host that is about to be unavailable takes nothing new, and
// what runs there the core may drain. The answer is yes once nothing does.
func (m *Machine) takeInverse(offers []mesos.InverseOffer) {
	yes := &scheduler.Call_AcceptInverseOffers{Filters: refuse(m.cfg.InverseFor)}
	no := &scheduler.Call_DeclineInverseOffers{Filters: refuse(m.cfg.InverseFor)}
	for i := range offers {
		o := &offers[i]
		a := m.agents[o.GetAgentID().GetValue()]
		if a == nil || len(a.runs) == 0 {
			yes.InverseOfferIDs = append(yes.InverseOfferIDs, o.OfferID)
		} else {
			no.InverseOfferIDs = append(no.InverseOfferIDs, o.OfferID)
		}
		if a == nil {
			continue
		}
		m.watchWindow(a, windowOf(&o.Unavailability))
		answer := "accepted: none of its tasks runs there"
		if len(a.runs) > 0 {
			answer = "declined: " + strconv.Itoa(len(a.runs)) + " of its tasks still run there"
		}
		if answer != a.answer {
			a.answer = answer
			m.blur(a)
		}
	}
	if len(yes.InverseOfferIDs) > 0 {
		m.call(&scheduler.Call{Type: scheduler.Call_ACCEPT_INVERSE_OFFERS, AcceptInverseOffers: yes})
	}
	if len(no.InverseOfferIDs) > 0 {
		m.call(&scheduler.Call{Type: scheduler.Call_DECLINE_INVERSE_OFFERS, DeclineInverseOffers: no})
	}
}
