package rego_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/paceline-sched/paceline/core/api/admit"
	"github.com/paceline-sched/paceline/policies/rego"
)

const endless = `deny contains "odd" if { count([1 | some i in numbers.range(1, 20000); some k in numbers.range(1, 20000); i == k * 7]) < 0 }`

const openManifest = `{"metadata": {"paceline": {"failure": "open"}}}`

// A rule without end is stopped, and what becomes of the job is up to its bundle. The others are judged by all the same.
func TestRunawayRules(t *testing.T) {
	open := rules(endless)
	open[".manifest"] = openManifest
	other := stored(t, "b", rules(`deny contains "no" if input.job.labels.team != "ads"`))
	t.Run("closed", func(t *testing.T) {
		v := judge(t, limitedJudge(t, rego.TimeLimit, stored(t, "a", rules(endless))), request(t, plainJob))
		if v.Failure == nil || v.Failure.Bundle != "a" || !v.Failure.Passing || !strings.Contains(v.Failure.Reason, "longer than") {
			t.Fatalf("got %s", said(v))
		}
	})
	t.Run("open", func(t *testing.T) {
		j := limitedJudge(t, time.Second, stored(t, "a", open), other)
		if got := said(judge(t, j, request(t, plainJob))); !strings.HasPrefix(got, "warn a: it could not judge the job, which passes") {
			t.Fatalf("got %s", got)
		}
		denied := request(t, strings.Replace(plainJob, `"team": "ads"`, `"team": "x"`, 1))
		if got := said(judge(t, j, denied)); !strings.HasPrefix(got, "deny b: no") {
			t.Fatalf("got %s", got)
		}
	})
}

// A bundle that is in the store and cannot be used refuses every job: nobody took it out of force.
func TestBrokenStoredBundle(t *testing.T) {
	j, err := rego.New(rego.Config{})
	if err != nil {
		t.Fatal(err)
	}
	broken := admit.Bundle{Name: "a", Digest: sha256.Sum256([]byte("x")), Archive: []byte("x")}
	if err := j.Load(1, []admit.Bundle{broken}); err == nil || !strings.Contains(err.Error(), "bundle a: it is no gzip file") {
		t.Fatalf("got %v", err)
	}
	if got := said(judge(t, j, request(t, plainJob))); !strings.HasPrefix(got, "fail a: it is no gzip file") {
		t.Fatalf("got %s", got)
	}
	if _, status, _ := j.Report(0); len(status) != 1 || status[0].Error == "" {
		t.Fatalf("got %+v", status)
	}
	if err := j.Load(2, nil); err != nil {
		t.Fatal(err)
	}
	if err := j.Load(1, []admit.Bundle{broken}); err != nil { // a slower call
		t.Fatal(err)
	}
	if got := said(judge(t, j, request(t, plainJob))); got != "" {
		t.Fatalf("an older revision came in force: %s", got)
	}
}

func TestInspect(t *testing.T) {
	for name, c := range map[string]struct {
		files files
		want  string
	}{
		"network":        {rules(`deny contains "x" if http.send({"method": "get", "url": "http://x"}).status_code == 200`), "undefined function http.send"},
		"clock":          {rules(`deny contains "x" if time.now_ns() > 0`), "undefined function time.now_ns"},
		"randomness":     {rules(`deny contains "x" if rand.intn("x", 2) > 0`), "undefined function rand.intn"},
		"environment":    {rules(`deny contains opa.runtime().env.HOME`), "undefined function opa.runtime"},
		"wrong package":  {files{"a.rego": "package admission\n\ndeny contains \"x\""}, "it has no rule that is asked for"},
		"misspelt rule":  {rules(`denied contains "x"`), "it has no rule that is asked for"},
		"syntax":         {rules(`deny contains`), "rego_parse_error"},
		"manifest":       {files{"a.rego": "package paceline.admission\ndeny contains \"x\"", ".manifest": `{"metadata": {"paceline": {"failure": "ajar"}}}`}, `"ajar": use closed or open`},
		"manifest field": {files{"a.rego": "package paceline.admission\ndeny contains \"x\"", ".manifest": `{"metadata": {"paceline": {"fail": "open"}}}`}, `unknown field "fail"`},
		"only tests":     {files{"a_test.rego": "package paceline.admission\ndeny contains \"x\""}, "it has no rule that is asked for"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := newJudge(t).Inspect(pack(t, c.files))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %q in it", err, c.want)
			}
		})
	}
	info, err := newJudge(t).Inspect(pack(t, files{
		"a/rules.rego": "package paceline.admission\n\nimport data.quota\n\nwarn contains \"x\" if input.job.labels.team in quota\n\ndeny contains \"y\" if { job := input.job; job.task.env[\"X\"] }\n",
		"a/data.json":  `{"quota": ["a"]}`, ".manifest": openManifest[:1] + `"revision": "r7", ` + openManifest[1:], "README.md": "no part of it",
	}))
	if got := fmt.Sprintf("%+v %v", info, err); got != "{Revision:r7 FailOpen:true Rules:[deny warn] SignedBy: Inputs:[input.job] Modules:1} <nil>" {
		t.Fatalf("got %s", got)
	}
}

// Whoever adds built-ins to the library adds none to rules.
func TestCapabilities(t *testing.T) {
	want, err := os.ReadFile("testdata/builtins.txt")
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(rego.Builtins(), "\n") + "\n"; got != string(want) {
		t.Fatalf("rules may call\n%s\nsee which of them give one answer for one input, and bring testdata/builtins.txt up to date", got)
	}
}

type tarEntry struct {
	name string
	kind byte
	body string
}

func archiveOf(entries ...tarEntry) []byte {
	var out bytes.Buffer
	packed := gzip.NewWriter(&out)
	w := tar.NewWriter(packed)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Typeflag: e.kind, Size: int64(len(e.body)), Mode: 0o600}
		if e.kind == tar.TypeSymlink {
			h.Linkname, h.Size = "/etc/passwd", 0
		}
		_ = w.WriteHeader(h)
		_, _ = w.Write([]byte(e.body))
	}
	_, _ = w.Close(), packed.Close()
	return out.Bytes()
}

func TestArchiveBounds(t *testing.T) {
	rule := tarEntry{"a.rego", tar.TypeReg, "package paceline.admission\ndeny contains \"x\""}
	many := []tarEntry{rule}
	for i := range 1100 {
		many = append(many, tarEntry{fmt.Sprintf("d%d/data.json", i), tar.TypeReg, "{}"})
	}
	big := func(n int) string { return `{"x": "` + strings.Repeat("y", n) + `"}` }
	for name, c := range map[string]struct {
		archive []byte
		want    string
	}{
		"no gzip":         {[]byte("package x"), "it is no gzip file"},
		"too long":        {bytes.Repeat([]byte{0}, rego.MaxArchiveBytes+1), "at most"},
		"cut":             {archiveOf(rule)[:60], "it cannot be unpacked"},
		"link":            {archiveOf(rule, tarEntry{"b.rego", tar.TypeSymlink, ""}), "neither a file nor a directory"},
		"out of it":       {archiveOf(rule, tarEntry{"../b.rego", tar.TypeReg, ""}), "leaves the bundle"},
		"twice":           {archiveOf(rule, tarEntry{"/a.rego", tar.TypeReg, "package x"}), "in it twice"},
		"many files":      {archiveOf(many...), "more than 1024 entries"},
		"a large file":    {archiveOf(rule, tarEntry{"data.json", tar.TypeReg, big(3 << 20)}), "bytes long"},
		"large together":  {archiveOf(rule, tarEntry{"a/data.json", tar.TypeReg, big(2_000_000)}, tarEntry{"b/data.json", tar.TypeReg, big(2_000_000)}, tarEntry{"c/data.json", tar.TypeReg, big(2_000_000)}, tarEntry{"d/data.json", tar.TypeReg, big(2_000_000)}, tarEntry{"e/data.json", tar.TypeReg, big(2_000_000)}), "unpacks to more than"},
		"a WASM module":   {archiveOf(rule, tarEntry{"policy.wasm", tar.TypeReg, "x"}), "rules are Rego"},
		"a delta":         {archiveOf(tarEntry{"patch.json", tar.TypeReg, `{"data": []}`}), "each version of a bundle is whole"},
		"a broken number": {archiveOf(rule, tarEntry{"data.json", tar.TypeReg, "{1}"}), "read it: "},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := newJudge(t).Inspect(c.archive)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %q in it", err, c.want)
			}
		})
	}
}

func FuzzInspect(f *testing.F) {
	j, err := rego.New(rego.Config{})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(archiveOf(tarEntry{"a.rego", tar.TypeReg, "package paceline.admission\ndeny contains \"x\" if input.job.name == \"y\""}))
	f.Add(archiveOf(tarEntry{"data.json", tar.TypeReg, `{"a": 1e999}`}, tarEntry{".manifest", tar.TypeReg, `{"roots": ["a"]}`}))
	f.Add(archiveOf(tarEntry{".signatures.json", tar.TypeReg, `{"signatures": ["a.b.c"]}`}))
	f.Add([]byte{0x1f, 0x8b})
	examples, err := os.ReadDir(exampleRules)
	if err != nil {
		f.Fatal(err)
	}
	for _, e := range examples { // what users really push
		if !e.IsDir() {
			continue
		}
		archive, err := rego.Pack(os.DirFS(exampleRules + "/" + e.Name()))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(archive)
		f.Add(archive[:len(archive)/2])
	}
	f.Fuzz(func(t *testing.T, archive []byte) {
		if len(archive) > 64<<10 {
			return
		}
		info, err := j.Inspect(archive)
		if err == nil && len(info.Rules) == 0 {
			t.Fatal("a bundle without rules was taken")
		}
		if err != nil && (len(err.Error()) > 2048 || strings.Contains(err.Error(), "\n")) {
			t.Fatalf("an error for a page, not a line: %q", err)
		}
	})
}

// signed adds a signature.
func signed(t *testing.T, f files, key ed25519.PrivateKey, id string) files {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	signatures, err := rego.Sign(f.fs(), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), id)
	if err != nil {
		t.Fatal(err)
	}
	out := files{rego.SignaturesFile: string(signatures)}
	for name, text := range f {
		out[name] = text
	}
	return out
}

func TestSignatures(t *testing.T) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, stranger, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := rego.ReadKeys(fstest.MapFS{"ops.pem": {Data: pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})}})
	if err != nil {
		t.Fatal(err)
	}
	j, err := rego.New(rego.Config{Keys: keys})
	if err != nil {
		t.Fatal(err)
	}
	body := rules(`deny contains "x"`)
	body["data.json"], body["rules_test.rego"] = `{"b": 1, "a": [1.50, "x"]}`, "package paceline.admission_test"
	if info, err := j.Inspect(pack(t, signed(t, body, private, "ops"))); err != nil || info.SignedBy != "ops" {
		t.Fatalf("got %+v, %v", info, err)
	}
	altered := signed(t, body, private, "ops")
	altered["rules.rego"] += "\n\ndeny contains \"y\""
	added := signed(t, body, private, "ops")
	added["more.rego"] = "package paceline.admission\nwarn contains \"z\""
	missing := signed(t, files{"rules.rego": body["rules.rego"], "more.rego": "package paceline.admission\nwarn contains \"z\""}, private, "ops")
	delete(missing, "more.rego")
	for name, c := range map[string]struct {
		files files
		want  string
	}{
		"unsigned": {body, "missing .signatures.json"}, "another's key": {signed(t, body, stranger, "ops"), "failed to verify JWT signature"},
		"unknown key": {signed(t, body, private, "me"), "corresponding to ID me not found"}, "altered": {altered, "digest mismatch"},
		"added": {added, "not included in bundle signature"}, "missing": {missing, "not found in the target bundle"},
	} {
		if _, err := j.Inspect(pack(t, c.files)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q in it", name, err, c.want)
		}
	}
	for name, dir := range map[string]fs.FS{"empty": fstest.MapFS{}, "private": fstest.MapFS{"a.pem": {Data: []byte("-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----\n")}}} {
		if _, err := rego.ReadKeys(dir); err == nil {
			t.Errorf("%s: a directory of keys without one was taken", name)
		}
	}
}

// While bundles are swapped, every job is judged by one version of all of them.
func TestHotSwap(t *testing.T) {
	version := func(n int) []admit.Bundle {
		var out []admit.Bundle
		for _, name := range []string{"a", "b", "c"} {
			out = append(out, stored(t, name, rules(fmt.Sprintf(`warn contains "%d"`, n))))
		}
		return out
	}
	versions := [][]admit.Bundle{version(0), version(1)}
	j := newJudge(t, versions[0]...)
	stop := make(chan struct{})
	var callers sync.WaitGroup
	for range 4 {
		r := request(t, plainJob)
		callers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				v, err := j.Judge(t.Context(), r)
				if err != nil || len(v.Warnings) != 3 || v.Warnings[0].Text != v.Warnings[1].Text || v.Warnings[1].Text != v.Warnings[2].Text {
					t.Errorf("half a version judged: %v %+v", err, v)
					return
				}
			}
		})
	}
	for n := range 50 {
		if err := j.Load(uint64(n+2), versions[n%2]); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	callers.Wait()
	want := versions[1]
	if _, status, _ := j.Report(0); len(status) != 3 || status[0].Digest != want[0].Digest {
		t.Fatalf("the last version is not in force: %+v", status)
	}
}
