package local

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/execution"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/hostmanagers/local/runner/shim"
)

// The defaults and bounds of the driver.
const (
	DefaultNamePrefix = "local-"
	MaxHosts          = 256
	// MaxProbes bounds the health checks under way at once.
	MaxProbes = 16
)

// DefaultPorts lies below the ports that Linux hands out by itself.
var DefaultPorts = driver.PortRange{First: 20000, Last: 31999}

// Config describes the machine as a cluster. Zero fields but Root take their defaults.
type Config struct {
	// Root is the directory of all runs; see package runner.
	Root string
	// Hosts is the number of virtual hosts, 1 to 256. Default: 1.
	Hosts int
	// NamePrefix begins the hosts' names; a number from 0 follows. Default: "local-".
	NamePrefix string
	// HostsPerRack, if not 0, gives each host the attribute "rack" with so many hosts in each.
	HostsPerRack int
	// Attributes are every host's; Pool is their host pool.
	Attributes map[string]string
	Pool       string
	// Capacity is one host's, by resource name. What it leaves out of CPU, memory and disk is the machine's, divided by Hosts. It
	// may add extended resources. More than there is over-commits the machine.
	Capacity map[string]int64
	// Devices are one host's GPUs; the runs find theirs in CUDA_VISIBLE_DEVICES, counted through all hosts. Default: none.
	Devices []driver.Device
	// Ports are divided among the hosts. Default: 20000 to 31999.
	Ports driver.PortRange

	// Starts, Logs, KeepRuns, KeepBytes, Cgroup and Executable are the runner's.
	Starts     int
	Logs       shim.LogLimits
	KeepRuns   int
	KeepBytes  int64
	Cgroup     string
	Executable string

	Logger *slog.Logger
	// Now is the wall clock, for time stamps only. Default: time.Now.
	Now func() time.Time
}

// Validate fills in the defaults and reports what is out of range.
func (c *Config) Validate() error {
	if c.Root == "" {
		return errors.New("local: Root must name a directory")
	}
	if c.Hosts == 0 {
		c.Hosts = 1
	}
	if c.NamePrefix == "" {
		c.NamePrefix = DefaultNamePrefix
	}
	if c.Ports == (driver.PortRange{}) {
		c.Ports = DefaultPorts
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	switch {
	case c.Hosts < 1 || c.Hosts > MaxHosts:
		return fmt.Errorf("local: Hosts is %d; it must be from 1 to %d", c.Hosts, MaxHosts)
	case c.HostsPerRack < 0:
		return fmt.Errorf("local: HostsPerRack is %d; it must not be negative", c.HostsPerRack)
	case c.Ports.First == 0 || int(c.Ports.Last)-int(c.Ports.First)+1 < c.Hosts:
		return fmt.Errorf("local: Ports %d-%d hold no port for each of %d hosts", c.Ports.First, c.Ports.Last, c.Hosts)
	}
	names := new(resource.Names)
	for name, quantity := range c.Capacity {
		if _, builtin := names.Lookup(name); !builtin {
			if err := resource.CheckName(name); err != nil {
				return fmt.Errorf("local: Capacity: %w", err)
			}
		}
		if quantity < 0 || quantity > resource.MaxQuantity {
			return fmt.Errorf("local: Capacity of %s is %d; it must be from 0 to %d", name, quantity, resource.MaxQuantity)
		}
	}
	return nil
}

// hosts makes the virtual hosts. why says what is not enforced; "": limits are.
func (c *Config) hosts(why string) ([]driver.Host, error) {
	machine, err := machineCapacity(c.Root)
	if err != nil {
		return nil, err
	}
	message := ""
	if why != "" {
		message = "limits not enforced: " + why
	}
	names := new(resource.Names)
	capacity := map[string]int64{}
	for kind, quantity := range machine {
		capacity[names.Name(kind)] = quantity / int64(c.Hosts)
	}
	for _, d := range c.Devices {
		capacity[names.Name(resource.GPU)] += d.Milli
	}
	maps.Copy(capacity, c.Capacity)
	ports := (int(c.Ports.Last) - int(c.Ports.First) + 1) / c.Hosts
	hosts := make([]driver.Host, c.Hosts)
	for i := range hosts {
		attributes := map[string]string{}
		if c.HostsPerRack > 0 {
			attributes["rack"] = "rack-" + strconv.Itoa(i/c.HostsPerRack)
		}
		maps.Copy(attributes, c.Attributes)
		first := int(c.Ports.First) + i*ports
		hosts[i] = driver.Host{
			Name: c.NamePrefix + strconv.Itoa(i), Attributes: execution.WithFeatures(attributes, execution.FeatureCommand), Pool: c.Pool, Capacity: maps.Clone(capacity), Devices: c.Devices,
			Ports: []driver.PortRange{{First: uint16(first), Last: uint16(first + ports - 1)}}, Ready: true, Message: message,
		}
	}
	return hosts, nil
}

// machineCapacity measures this machine: processors, memory, and the file system that the runs live on.
func machineCapacity(root string) (map[resource.Kind]int64, error) {
	const mib = 1 << 20
	var memory unix.Sysinfo_t
	if err := unix.Sysinfo(&memory); err != nil {
		return nil, fmt.Errorf("measure the memory: %w", err)
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(filepath.Clean(root), &disk); err != nil {
		return nil, fmt.Errorf("measure the disk under %s: %w", root, err)
	}
	return map[resource.Kind]int64{
		resource.CPU:    int64(runtime.NumCPU()) * 1000,
		resource.Memory: int64(memory.Totalram) * int64(memory.Unit) / mib,
		resource.Disk:   int64(disk.Blocks) * disk.Bsize / mib,
	}, nil
}
