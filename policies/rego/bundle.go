package rego

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/bundle"

	"github.com/paceline-sched/paceline/core/api/admit"
)

// rulesPackage is where the rules of a bundle stand.
var rulesPackage = ast.MustParseRef("data.paceline.admission")

// ruleNames are the rules that are asked for.
var ruleNames = []string{"deny", "mutate", "warn"}

// program is one version of a bundle, ready to be evaluated. It is immutable and may be used concurrently.
type program struct {
	info  admit.Info
	reads reads
	query *queries
}

// compile reads an archive and prepares its rules.
func compile(archive []byte, keys Keys) (p *program, err error) {
	defer contain(&err)
	read, err := open(archive, keys)
	if err != nil {
		return nil, err
	}
	p = &program{info: admit.Info{Revision: clip(read.Manifest.Revision), Modules: len(read.Modules)}}
	if p.info.FailOpen, err = failOpen(&read.Manifest); err != nil {
		return nil, err
	}
	if len(keys.byID) > 0 {
		p.info.SignedBy = signer(&read.Signatures)
	}
	if p.info.Rules, err = rulesOf(read); err != nil {
		return nil, err
	}
	if p.query, err = newQueries(read); err != nil {
		return nil, err
	}
	p.reads = readsOf(p.query.compiler)
	p.info.Inputs = p.reads.names()
	return p, nil
}

// open reads and verifies an archive. Tests that are in it are left out: they are for whoever writes the rules.
func open(archive []byte, keys Keys) (*bundle.Bundle, error) {
	if err := checkArchive(archive); err != nil {
		return nil, err
	}
	reader := bundle.NewReader(bytes.NewReader(archive)).WithSizeLimitBytes(maxFileBytes + 1).WithCapabilities(capabilities()).
		WithRegoVersion(ast.RegoV1)
	if len(keys.byID) > 0 {
		reader = reader.WithBundleVerificationConfig(bundle.NewVerificationConfig(keys.byID, "", "", nil))
	} else {
		reader = reader.WithSkipBundleVerification(true)
	}
	read, err := reader.Read()
	if err != nil {
		return nil, fmt.Errorf("read it: %w", plain(err))
	}
	if read.Type() != bundle.SnapshotBundleType || len(read.WasmModules) > 0 || len(read.PlanModules) > 0 {
		return nil, errors.New("it holds more than Rego and data: rules are Rego, and each version of a bundle is whole")
	}
	read.Modules = slices.DeleteFunc(read.Modules, func(m bundle.ModuleFile) bool { return isTest(m.Path) })
	return &read, nil
}

// rulesOf lists the rules of a bundle that anybody will ask for. One without any would seem to be in force and judge nothing.
func rulesOf(b *bundle.Bundle) ([]string, error) {
	var found []string
	for _, m := range b.Modules {
		if !m.Parsed.Package.Path.Equal(rulesPackage) {
			continue
		}
		for _, rule := range m.Parsed.Rules {
			head, _ := rule.Head.Ref()[0].Value.(ast.Var)
			name := string(head)
			if slices.Contains(ruleNames, name) && !slices.Contains(found, name) {
				found = append(found, name)
			}
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("it has no rule that is asked for: define deny, warn or mutate in the package %s", strings.TrimPrefix(rulesPackage.String(), "data."))
	}
	slices.Sort(found)
	return found, nil
}

// failOpen reads what a bundle's manifest says of jobs that it cannot judge: {"metadata": {"paceline": {"failure": "open"}}}.
func failOpen(m *bundle.Manifest) (bool, error) {
	settings, ok := m.Metadata["paceline"]
	if !ok {
		return false, nil
	}
	raw, err := json.Marshal(settings)
	if err != nil {
		return false, err
	}
	var known struct {
		Failure string `json:"failure"`
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&known); err != nil {
		return false, fmt.Errorf("its manifest's metadata.paceline is wrong: %w", err)
	}
	switch known.Failure {
	case "", "closed":
		return false, nil
	case "open":
		return true, nil
	}
	return false, fmt.Errorf("its manifest's metadata.paceline.failure is %q: use closed or open", clip(known.Failure))
}

// signer is the id of the key that a bundle is signed with; the signature has been verified under that key.
func signer(s *bundle.SignaturesConfig) string {
	if len(s.Signatures) != 1 {
		return ""
	}
	head, rest, _ := strings.Cut(s.Signatures[0], ".")
	body, _, _ := strings.Cut(rest, ".")
	for _, part := range []string{head, body} {
		raw, err := base64.RawURLEncoding.DecodeString(part)
		var named struct{ Kid, KeyID string }
		if err == nil && json.Unmarshal(raw, &named) == nil && named.Kid+named.KeyID != "" {
			return clip(named.Kid + named.KeyID)
		}
	}
	return ""
}

// contain turns a panic of the library into an error: what it reads comes from outside.
func contain(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("the rules' engine gave up on it: %s", clip(fmt.Sprint(r)))
	}
}

// plain makes one line of what the library says, and keeps it short.
func plain(err error) error {
	var many ast.Errors
	text := err.Error()
	if errors.As(err, &many) {
		text = ""
		for i, one := range many {
			if i == 4 {
				text += fmt.Sprintf("; and %d more", len(many)-i)
				break
			}
			if i > 0 {
				text += "; "
			}
			text += one.Error()
		}
	}
	return errors.New(clipTo(strings.Join(strings.Fields(text), " "), maxMessageBytes))
}
