package simulated

import (
	"bufio"
	"compress/gzip"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/resource"
)

const (
	// maxInventoryBytes bounds an inventory file, unpacked.
	maxInventoryBytes = 256 << 20
	// maxDevices is the most GPUs of one host that placement can tell apart.
	maxDevices = 16
)

// DefaultPorts are the ports of hosts whose source does not say.
var DefaultPorts = []driver.PortRange{{First: 20000, Last: 31999}}

// Scale turns the fractions of an inventory that is relative to its largest host into quantities.
type Scale struct {
	CPUMilli  int64 // of a host with cpus = 1
	MemoryMiB int64 // of a host with memory = 1
}

// DefaultScale is a plausible largest host of such an inventory: 64 cores and 256 GiB.
var DefaultScale = Scale{CPUMilli: 64_000, MemoryMiB: 256 << 10}

// The kinds of inventory that are read, by their header lines.
const (
	openbHeader  = "sn,cpu_milli,memory_mib,gpu,model"
	googleHeader = "machine_id,platform,cpus,memory"
)

// ReadInventory reads hosts from CSV, plain or gzip. Its header tells the kind: absolute quantities with GPUs (sn, cpu_milli, memory_mib, gpu,
// model), or fractions of the largest host (machine_id, platform, cpus, memory), which scale turns into quantities.
func ReadInventory(r io.Reader, scale Scale) ([]driver.Host, error) {
	buffered := bufio.NewReader(r)
	if magic, err := buffered.Peek(2); err == nil && magic[0] == 0x1f && magic[1] == 0x8b {
		unpacked, err := gzip.NewReader(buffered)
		if err != nil {
			return nil, fmt.Errorf("unpack the inventory: %w", err)
		}
		defer func() { _ = unpacked.Close() }()
		buffered = bufio.NewReader(unpacked)
	}
	rows := csv.NewReader(io.LimitReader(buffered, maxInventoryBytes))
	rows.ReuseRecord = true
	header, err := rows.Read()
	if err != nil {
		return nil, fmt.Errorf("read the inventory's header: %w", err)
	}
	var parse func([]string) (driver.Host, error)
	switch line := strings.Join(header, ","); line {
	case openbHeader:
		parse = parseOpenb
	case googleHeader:
		parse = func(row []string) (driver.Host, error) { return parseGoogle(row, scale) }
	default:
		return nil, fmt.Errorf("the inventory's header is %.120q; it must be %q or %q", line, openbHeader, googleHeader)
	}
	var hosts []driver.Host
	for {
		row, err := rows.Read()
		if errors.Is(err, io.EOF) {
			return hosts, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read the inventory: %w", err)
		}
		if len(hosts) == MaxHosts {
			return nil, fmt.Errorf("the inventory has more than %d hosts", MaxHosts)
		}
		h, err := parse(row)
		if err != nil {
			line, _ := rows.FieldPos(0)
			return nil, fmt.Errorf("the inventory's line %d: %w", line, err)
		}
		hosts = append(hosts, h)
	}
}

func parseOpenb(row []string) (driver.Host, error) {
	var n [3]int64
	for i, name := range []string{"cpu_milli", "memory_mib", "gpu"} {
		v, err := strconv.ParseInt(row[i+1], 10, 64)
		if err != nil || v < 0 || v > resource.MaxQuantity {
			return driver.Host{}, fmt.Errorf("%s is %.40q; it must be a whole number from 0 to %d", name, row[i+1], resource.MaxQuantity)
		}
		n[i] = v
	}
	if n[2] > maxDevices {
		return driver.Host{}, fmt.Errorf("gpu is %d; a host has at most %d", n[2], maxDevices)
	}
	h, err := newHost(row[0], n[0], n[1])
	if err != nil {
		return driver.Host{}, err
	}
	if n[2] > 0 {
		model := strings.Clone(row[4])
		h.Attributes["gpu_model"] = model
		h.Capacity["gpu_milli"] = n[2] * 1000
		h.Devices = slices.Repeat([]driver.Device{{Model: model, Milli: 1000}}, int(n[2]))
	}
	return h, nil
}

func parseGoogle(row []string, scale Scale) (driver.Host, error) {
	var n [2]int64
	for i, largest := range []int64{scale.CPUMilli, scale.MemoryMiB} {
		v, err := strconv.ParseFloat(row[i+2], 64)
		if err != nil || !(v >= 0 && v <= 1) {
			return driver.Host{}, fmt.Errorf("%.40q must be a fraction from 0 to 1", row[i+2])
		}
		n[i] = int64(math.Round(v * float64(largest)))
	}
	h, err := newHost("machine-"+row[0], n[0], n[1])
	if err != nil {
		return driver.Host{}, err
	}
	h.Attributes["platform"] = strings.Clone(row[1])
	return h, nil
}

func newHost(name string, cpuMilli, memoryMiB int64) (driver.Host, error) {
	if name == "" || len(name) > 253 {
		return driver.Host{}, fmt.Errorf("a host's name must have 1 to 253 characters, not %d", len(name))
	}
	return driver.Host{
		Name: strings.Clone(name), Attributes: map[string]string{}, Ready: true, Ports: DefaultPorts,
		Capacity: map[string]int64{"cpu_milli": cpuMilli, "memory_mib": memoryMiB},
	}, nil
}

// Fleet describes hosts to be generated.
type Fleet struct {
	Hosts      int
	NamePrefix string // default "sim-"
	// Shapes are dealt out at random by weight. Default: one of 32 cores, 128 GiB and 1 TiB.
	Shapes []Shape
	// HostsPerRack and RacksPerZone give the attributes "rack" and "zone"; 0: none.
	HostsPerRack, RacksPerZone int
	Seed                       uint64
}

// Shape is a kind of machine.
type Shape struct {
	Weight     uint64 // 0 counts as 1
	Capacity   map[string]int64
	Devices    []driver.Device // their sum is added to Capacity
	Attributes map[string]string
}

// Generate makes hosts. The same fleet is always made of the same hosts.
func Generate(f Fleet) ([]driver.Host, error) {
	if f.Hosts < 1 || f.Hosts > MaxHosts {
		return nil, fmt.Errorf("simulated: a fleet of %d hosts; there must be from 1 to %d", f.Hosts, MaxHosts)
	}
	if f.NamePrefix == "" {
		f.NamePrefix = "sim-"
	}
	if len(f.Shapes) == 0 {
		f.Shapes = []Shape{{Capacity: map[string]int64{"cpu_milli": 32_000, "memory_mib": 128 << 10, "disk_mib": 1 << 20}}}
	}
	capacities, total := make([]map[string]int64, len(f.Shapes)), uint64(0)
	for i, s := range f.Shapes {
		total += max(s.Weight, 1)
		capacities[i] = maps.Clone(s.Capacity) // one map for all hosts of the shape: nobody writes to it
		for _, d := range s.Devices {
			if capacities[i] == nil {
				capacities[i] = map[string]int64{}
			}
			capacities[i]["gpu_milli"] += d.Milli
		}
	}
	hosts := make([]driver.Host, f.Hosts)
	for i := range hosts {
		chosen, rest := 0, draw(f.Seed, forShape, uint64(i))%total
		for rest >= max(f.Shapes[chosen].Weight, 1) {
			rest -= max(f.Shapes[chosen].Weight, 1)
			chosen++
		}
		attributes := maps.Clone(f.Shapes[chosen].Attributes)
		if attributes == nil {
			attributes = map[string]string{}
		}
		if f.HostsPerRack > 0 {
			rack := i / f.HostsPerRack
			attributes["rack"] = "rack-" + strconv.Itoa(rack)
			if f.RacksPerZone > 0 {
				attributes["zone"] = "zone-" + strconv.Itoa(rack/f.RacksPerZone)
			}
		}
		hosts[i] = driver.Host{
			Name: f.NamePrefix + strconv.Itoa(i), Attributes: attributes, Capacity: capacities[chosen], Devices: f.Shapes[chosen].Devices,
			Ports: DefaultPorts, Ready: true,
		}
	}
	return hosts, nil
}
