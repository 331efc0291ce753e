package policyabi

import (
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Capability is what a policy says of itself in its custom section, before any of its code has run. The section is text, so that C and Rust can
// write it as a string: the line "paceline.policy 1", then lines of a word and what it says.
//
//	paceline.policy 1
//	name best-fit
//	version 1.2.0
//	abi 1.0
//	kinds place
//	columns leftover free.* topology:rack
//	features scan_topk
//	scratch 4096 8
//	sdk go 0.1.0
//	config weight float 1.5
//
// name, abi and kinds must be there; no line but config may be there twice. Lines with a word that a reader does not know are passed over. Zeros at the end are none
// of the text.
type Capability struct {
	Name    string
	Version string // the author's, "" for none
	// Major and Minor are the version of the ABI that the policy is written for. A host takes it when Major is the same and Minor is not above its own.
	Major, Minor uint16
	Kinds        []Kind // ascending
	Columns      []Want
	Features     []string // ascending; FeatureScan
	// Scratch is the bytes of scratch that the policy wants, and ScratchPerRow more for every row of capacity.
	Scratch, ScratchPerRow int
	SDK                    string
	Config                 []Value // what can be configured, with defaults, in the order of the keys
}

const capabilityTitle = "paceline.policy 1"

// Append appends the text of the section to b. It fails on what DecodeCapability would refuse.
func (c *Capability) Append(b []byte) ([]byte, error) {
	if strings.ContainsAny(c.Name+c.Version+c.SDK+strings.Join(c.Features, ""), "\n") {
		return nil, fault("section "+SectionName, "", -1, "a word has a line end in it")
	}
	start := len(b)
	line := func(words ...string) { b = append(append(b, strings.Join(words, " ")...), '\n') }
	line(capabilityTitle)
	line("name", c.Name)
	if c.Version != "" {
		line("version", c.Version)
	}
	line("abi", itoa(c.Major)+"."+itoa(c.Minor))
	words := []string{"kinds"}
	for _, k := range c.Kinds {
		words = append(words, k.String())
	}
	line(words...)
	if len(c.Columns) > 0 {
		words = []string{"columns"}
		for _, w := range c.Columns {
			words = append(words, w.String())
		}
		line(words...)
	}
	if len(c.Features) > 0 {
		line("features", strings.Join(c.Features, " "))
	}
	if c.Scratch != 0 || c.ScratchPerRow != 0 {
		line("scratch", itoa(c.Scratch), itoa(c.ScratchPerRow))
	}
	if c.SDK != "" {
		line("sdk", c.SDK)
	}
	for i := range c.Config {
		v := &c.Config[i]
		line("config", v.Key, v.Type.String(), v.text())
	}
	if _, err := DecodeCapability(b[start:]); err != nil {
		return nil, err
	}
	return b, nil
}

func (v *Value) text() string {
	switch v.Type {
	case Bool:
		return strconv.FormatBool(v.Bool)
	case Int:
		return strconv.FormatInt(v.Int, 10)
	case Float:
		return strconv.FormatFloat(v.Float, 'g', -1, 64)
	default:
		return strconv.Quote(v.Text)
	}
}

// DecodeCapability reads the section.
func DecodeCapability(b []byte) (Capability, error) {
	var c Capability
	if len(b) > MaxCapability {
		return c, fault("section "+SectionName, "", -1, itoa(len(b))+" bytes are more than "+itoa(MaxCapability))
	}
	text := strings.TrimRight(string(b), "\x00")
	if !utf8.ValidString(text) {
		return c, fault("section "+SectionName, "", -1, "it is not UTF-8 text")
	}
	seen := map[string]bool{}
	for n, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		if n == 0 {
			if line != capabilityTitle {
				return c, fault("section "+SectionName, "", 1, `the first line must be "`+capabilityTitle+`"`)
			}
			continue
		}
		word, rest, _ := strings.Cut(line, " ")
		if seen[word] && word != "config" {
			return c, fault("section "+SectionName, word, n+1, "it is said twice")
		}
		seen[word] = true
		if why := c.read(word, rest); why != "" {
			return c, fault("section "+SectionName, word, n+1, why)
		}
	}
	for _, word := range []string{"name", "abi", "kinds"} {
		if !seen[word] {
			return c, fault("section "+SectionName, word, -1, "the line is missing")
		}
	}
	return c, c.check()
}

// read takes in one line and says what is wrong with it, "" for nothing.
func (c *Capability) read(word, rest string) string {
	fields := strings.Split(rest, " ")
	switch word {
	case "name":
		c.Name = rest
		if !validName(rest) {
			return "a name is 1 to " + itoa(MaxName) + " letters, digits or one of _ - . /"
		}
	case "version", "sdk":
		if rest == "" || len(rest) > MaxName || strings.TrimSpace(rest) != rest {
			return "it is 1 to " + itoa(MaxName) + " bytes, without blanks at its ends"
		}
		if word == "sdk" {
			c.SDK = rest
		} else {
			c.Version = rest
		}
	case "abi":
		major, minor, ok := strings.Cut(rest, ".")
		a, err1 := strconv.ParseUint(major, 10, 16)
		i, err2 := strconv.ParseUint(minor, 10, 16)
		if !ok || err1 != nil || err2 != nil || itoa(uint32(a))+"."+itoa(uint32(i)) != rest {
			return `it is two numbers with a dot between them, such as "1.0"`
		}
		c.Major, c.Minor = uint16(a), uint16(i)
	case "kinds":
		return c.readKinds(fields)
	case "columns":
		return c.readColumns(fields)
	case "features":
		c.Features = fields
		if !slices.IsSorted(fields) || len(slices.Compact(slices.Clone(fields))) != len(fields) || slices.Contains(fields, "") {
			return "features stand in the order of the alphabet, each once"
		}
	case "scratch":
		return c.readScratch(fields)
	case "config":
		return c.readConfig(rest)
	}
	return ""
}

func (c *Capability) readKinds(fields []string) string {
	for _, f := range fields {
		k := Place
		for k <= Route && kindNames[k] != f {
			k++
		}
		if k > Route {
			return strconv.Quote(f) + " is none of place, preempt, quota, route"
		}
		if n := len(c.Kinds); n > 0 && c.Kinds[n-1] >= k {
			return "kinds stand in the order place, preempt, quota, route, each once"
		}
		c.Kinds = append(c.Kinds, k)
	}
	return ""
}

func (c *Capability) readColumns(fields []string) string {
	if len(fields) > MaxColumns {
		return itoa(len(fields)) + " columns are more than " + itoa(MaxColumns)
	}
	for _, f := range fields {
		w, err := ParseWant(f)
		if err != nil {
			return err.Error()
		}
		if slices.Contains(c.Columns, w) {
			return strconv.Quote(f) + " is wanted twice"
		}
		c.Columns = append(c.Columns, w)
	}
	return ""
}

func (c *Capability) readScratch(fields []string) string {
	if len(fields) != 2 {
		return "it is two numbers: bytes, and bytes for each row"
	}
	for i, to := range []*int{&c.Scratch, &c.ScratchPerRow} {
		n, err := strconv.ParseUint(fields[i], 10, 31)
		if err != nil || n > MaxScratch || itoa(uint32(n)) != fields[i] {
			return strconv.Quote(fields[i]) + " is no number from 0 to " + itoa(MaxScratch)
		}
		*to = int(n)
	}
	return ""
}

func (c *Capability) readConfig(rest string) string {
	fields := strings.SplitN(rest, " ", 3)
	if len(fields) != 3 {
		return "it is a key, a type and a default"
	}
	v := Value{Key: fields[0], Type: Bool}
	for v.Type <= Text && v.Type.String() != fields[1] {
		v.Type++
	}
	var err error
	switch v.Type {
	case Bool:
		v.Bool, err = strconv.ParseBool(fields[2])
	case Int:
		v.Int, err = strconv.ParseInt(fields[2], 10, 64)
	case Float:
		v.Float, err = strconv.ParseFloat(fields[2], 64)
	case Text:
		v.Text, err = strconv.Unquote(fields[2])
	default:
		return strconv.Quote(fields[1]) + " is none of bool, int, float, text"
	}
	if err != nil {
		return strconv.Quote(fields[2]) + " is no " + v.Type.String()
	}
	if err := v.check(); err != nil {
		return err.Error()
	}
	if n := len(c.Config); n >= MaxConfigKeys || n > 0 && c.Config[n-1].Key >= v.Key {
		return "keys stand in the order of the alphabet, each once, at most " + itoa(MaxConfigKeys)
	}
	c.Config = append(c.Config, v)
	return ""
}

func (c *Capability) check() error {
	for _, w := range c.Columns {
		if !slices.ContainsFunc(c.Kinds, w.Serves) {
			return fault("section "+SectionName, "columns", -1, w.String()+" is no column for a policy of these kinds")
		}
	}
	return nil
}

// With returns the configuration of a policy: its defaults with the given values in their place. It fails on a key that the policy does not know and on a value of
// another type; an int is taken where a float is wanted.
func (c *Capability) With(values Config) (Config, error) {
	full := Config(slices.Clone(c.Config))
	for _, v := range values {
		i := slices.IndexFunc(full, func(d Value) bool { return d.Key == v.Key })
		if i < 0 {
			return nil, fault("configuration", v.Key, -1, "policy "+c.Name+" has no such value")
		}
		if v.Type == Int && full[i].Type == Float {
			v = Value{Key: v.Key, Type: Float, Float: float64(v.Int)}
		}
		if v.Type != full[i].Type {
			return nil, fault("configuration", v.Key, -1, "it is a "+v.Type.String()+", policy "+c.Name+" wants a "+full[i].Type.String())
		}
		if err := v.check(); err != nil {
			return nil, err
		}
		full[i] = v
	}
	return full, nil
}
