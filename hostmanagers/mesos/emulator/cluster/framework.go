package cluster

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	mesos "github.com/mesos/mesos-go/api/v1/lib"
	"github.com/mesos/mesos-go/api/v1/lib/scheduler"
)

// framework is one scheduler that subscribed.
type framework struct {
	id      string
	info    mesos.FrameworkInfo
	stream  string // of its subscription; "": none
	removed bool
	strange bool // the master, which is new, has not heard of it

	multiRole, refined, partitionAware, killingState, revocable bool

	roles      []string
	suppressed map[string]bool                // by role
	filters    map[string]map[*agent][]filter // by role
	held       map[string]share               // by role: offered and used

	tasks       map[string]*task
	taskOrder   []*task
	unreachable map[string]*task // by task id
	executors   []*executor
	operations  []*operation

	heartbeat, removal *timer
}

// setInfo takes over what a framework says of itself. User and checkpoint stay what they were.
func (f *framework) setInfo(info *mesos.FrameworkInfo, suppressed []string) {
	user, checkpoint, known := f.info.User, f.info.Checkpoint, f.id == f.info.GetID().GetValue() && f.id != ""
	f.info = *info
	if known {
		f.info.User, f.info.Checkpoint = user, checkpoint
	}
	f.info.ID = &mesos.FrameworkID{Value: f.id}
	capable := capabilities(info)
	f.multiRole = capable[mesos.FrameworkInfo_Capability_MULTI_ROLE]
	f.refined = capable[mesos.FrameworkInfo_Capability_RESERVATION_REFINEMENT]
	f.partitionAware = capable[mesos.FrameworkInfo_Capability_PARTITION_AWARE]
	f.killingState = capable[mesos.FrameworkInfo_Capability_TASK_KILLING_STATE]
	f.revocable = capable[mesos.FrameworkInfo_Capability_REVOCABLE_RESOURCES]
	f.roles = slices.Clone(info.Roles)
	if !f.multiRole {
		f.roles = []string{info.GetRole()}
	}
	f.suppressed = map[string]bool{}
	for _, role := range suppressed {
		f.suppressed[role] = true
	}
}

func capabilities(info *mesos.FrameworkInfo) map[mesos.FrameworkInfo_Capability_Type]bool {
	capable := map[mesos.FrameworkInfo_Capability_Type]bool{}
	for _, c := range info.Capabilities {
		capable[c.Type] = true
	}
	return capable
}

func (f *framework) holding(role string) share {
	s := f.held[role]
	if s == nil {
		s = share{}
		f.held[role] = s
	}
	return s
}

// Subscribe is a SUBSCRIBE call, already known to be well-formed, on a new stream. What is wrong with it comes as an ERROR event.
func (c *Cluster) Subscribe(stream string, call *scheduler.Call) {
	asked := call.Subscribe
	if text := invalidFramework(asked.FrameworkInfo, asked.SuppressedRoles); text != "" {
		c.reject(stream, text)
		return
	}
	id := asked.FrameworkInfo.GetID().GetValue()
	f := c.frameworks[id]
	switch {
	case f != nil && f.removed:
		c.reject(stream, "Framework has been removed")
	case f == nil:
		c.admit(stream, id, asked)
	case f.stream != "":
		c.failOver(f, stream, asked)
	default:
		c.reconnect(f, stream, asked)
	}
}

func (c *Cluster) reject(stream, text string) {
	c.emit(Deliver{Stream: stream, Event: &scheduler.Event{Type: scheduler.Event_ERROR, Error: &scheduler.Event_Error{Message: text}}})
	c.emit(Close{Stream: stream})
}

// admit registers a framework that the master has not seen, with the id that it brings, if any.
func (c *Cluster) admit(stream, id string, asked *scheduler.Call_Subscribe) {
	if id == "" {
		id = fmt.Sprintf("%s-%04d", c.cfg.MasterID, c.nextFramework)
		c.nextFramework++
	}
	f := &framework{
		id: id, filters: map[string]map[*agent][]filter{}, held: map[string]share{}, tasks: map[string]*task{}, unreachable: map[string]*task{},
	}
	f.setInfo(asked.FrameworkInfo, asked.SuppressedRoles)
	c.frameworks[id] = f
	c.order = append(c.order, f)
	c.connect(f, stream)
	c.allocate(c.roster)
}

// failOver moves a framework to a new subscription. Its offers are void without a word; the next run of the allocator gives new ones.
func (c *Cluster) failOver(f *framework, stream string, asked *scheduler.Call_Subscribe) {
	f.setInfo(asked.FrameworkInfo, asked.SuppressedRoles)
	c.leaveRoles(f)
	c.voidOffers(f)
	c.reject(f.stream, "Framework failed over")
	delete(c.streams, f.stream)
	c.stop(f.heartbeat)
	c.connect(f, stream)
	c.resend(f)
}

// reconnect takes back a framework whose connection was lost.
func (c *Cluster) reconnect(f *framework, stream string, asked *scheduler.Call_Subscribe) {
	c.stop(f.removal)
	f.setInfo(asked.FrameworkInfo, asked.SuppressedRoles)
	f.filters = map[string]map[*agent][]filter{}
	c.connect(f, stream)
	c.allocate(c.roster)
	c.resend(f)
}

func (c *Cluster) connect(f *framework, stream string) {
	f.stream, f.strange = stream, false
	c.streams[stream] = f
	master, interval := c.MasterInfo(), c.cfg.Heartbeat.Seconds()
	c.deliver(f, &scheduler.Event{Type: scheduler.Event_SUBSCRIBED, Subscribed: &scheduler.Event_Subscribed{
		FrameworkID: &mesos.FrameworkID{Value: f.id}, HeartbeatIntervalSeconds: &interval, MasterInfo: &master,
	}})
	c.beat(f)
}

func (c *Cluster) beat(f *framework) {
	c.deliver(f, &scheduler.Event{Type: scheduler.Event_HEARTBEAT})
	f.heartbeat = c.after(c.cfg.Heartbeat, func() { c.beat(f) })
}

// Disconnect says that a subscription's connection is gone.
func (c *Cluster) Disconnect(stream string) {
	f := c.streams[stream]
	if f == nil {
		return
	}
	delete(c.streams, stream)
	c.stop(f.heartbeat)
	f.stream = ""
	c.voidOffers(f)
	patience := time.Duration(f.info.GetFailoverTimeout() * float64(time.Second))
	if patience <= 0 {
		c.remove(f)
		return
	}
	f.removal = c.after(patience, func() { c.remove(f) })
}

// remove forgets a framework for good: its tasks are killed, its offers void.
func (c *Cluster) remove(f *framework) {
	if f.stream != "" {
		c.emit(Close{Stream: f.stream})
		delete(c.streams, f.stream)
		f.stream = ""
	}
	c.stop(f.heartbeat)
	c.stop(f.removal)
	f.removed = true
	c.voidOffers(f)
	for id, i := range c.inverse {
		if i.framework == f {
			delete(c.inverse, id)
		}
	}
	for _, t := range slices.Clone(f.taskOrder) {
		c.quit(t)
	}
	for _, t := range byID(f.unreachable) {
		c.endContainer(t)
	}
	for _, e := range slices.Clone(f.executors) {
		c.release(f, e.role, e.agent, e.resources)
	}
	f.executors, f.operations = nil, nil
	c.order = slices.DeleteFunc(c.order, func(other *framework) bool { return other == f })
}

// updateInfo is an UPDATE_FRAMEWORK call.
func (c *Cluster) updateInfo(f *framework, update *scheduler.Call_UpdateFramework) *Refusal {
	info := &update.FrameworkInfo
	if text := invalidFramework(info, update.SuppressedRoles); text != "" {
		return badRequest("FrameworkInfo update is not valid: " + text)
	}
	if info.GetPrincipal() != f.info.GetPrincipal() {
		return badRequest("FrameworkInfo update is not valid: Changing framework's principal is not allowed.")
	}
	f.setInfo(info, update.SuppressedRoles)
	c.leaveRoles(f)
	return nil
}

// leaveRoles takes back the offers in roles that a framework no longer has.
func (c *Cluster) leaveRoles(f *framework) {
	for _, o := range c.offersOf(f) {
		if !slices.Contains(f.roles, o.role) {
			c.rescind(o)
		}
	}
}

// invalidFramework says what a master would not accept; "": nothing.
func invalidFramework(info *mesos.FrameworkInfo, suppressed []string) string {
	multiRole := capabilities(info)[mesos.FrameworkInfo_Capability_MULTI_ROLE]
	switch {
	case multiRole && info.Role != nil:
		return "'FrameworkInfo.role' must not be set when the framework is MULTI_ROLE capable"
	case !multiRole && len(info.Roles) > 0:
		return "'FrameworkInfo.roles' must not be set when the framework is not MULTI_ROLE capable"
	}
	if twice := duplicates(info.Roles); len(twice) > 0 {
		return "'FrameworkInfo.roles' contains duplicate items: { " + strings.Join(twice, ", ") + " }"
	}
	for _, role := range info.Roles {
		if text := invalidRole(role); text != "" {
			return "'FrameworkInfo.roles' contains invalid role: " + text
		}
	}
	if info.Role != nil && info.GetRole() != "*" {
		if text := invalidRole(info.GetRole()); text != "" {
			return "'FrameworkInfo.role' is not a valid role: " + text
		}
	}
	// A Duration counts nanoseconds in 64 bits.
	if timeout := info.GetFailoverTimeout(); timeout > float64(1<<63-1)/1e9 || timeout < -float64(1<<63-1)/1e9 {
		return "The framework failover_timeout (" + strconv.FormatFloat(timeout, 'g', 6, 64) + ") is invalid"
	}
	roles := info.Roles
	if !multiRole {
		roles = []string{info.GetRole()}
	}
	var foreign []string
	for _, role := range suppressed {
		if !slices.Contains(roles, role) {
			foreign = append(foreign, role)
		}
	}
	if len(foreign) > 0 {
		return "Suppressed roles { " + strings.Join(foreign, ", ") + " } are not contained in the set of roles"
	}
	return ""
}

func duplicates(roles []string) []string {
	var twice []string
	for i, role := range roles {
		if slices.Contains(roles[:i], role) && !slices.Contains(twice, role) {
			twice = append(twice, role)
		}
	}
	return twice
}

func invalidRole(role string) string {
	switch {
	case role == "":
		return "Empty role name is invalid"
	case strings.HasPrefix(role, "/"):
		return "Role '" + role + "' cannot start with a slash"
	case strings.HasSuffix(role, "/"):
		return "Role '" + role + "' cannot end with a slash"
	}
	for component := range strings.SplitSeq(role, "/") {
		switch {
		case component == "":
			return "Role '" + role + "' cannot contain two adjacent slashes"
		case component == "." || component == "..":
			return "Role '" + role + "' cannot include '" + component + "' as a component"
		case strings.HasPrefix(component, "-"):
			return "Role component '" + component + "' is invalid because it begins with a dash"
		case strings.ContainsAny(component, "\x08\t\n\v\f\r "):
			return "Role component '" + component + "' is invalid because it contains backspace or whitespace"
		}
	}
	return ""
}
