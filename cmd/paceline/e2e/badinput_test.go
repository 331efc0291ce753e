package e2e_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"

	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

// bad is one thing that a user may get wrong.
type bad struct {
	name   string
	verb   string // what is done with file: "job run" and the like
	file   string // its content
	args   string // a whole command line instead
	code   int    // the documented exit code
	stderr string // what is wrong, where, and how to mend it
}

// job is a file of a job with some lines more.
func job(lines ...string) string {
	return "name: wrong\nbatch: {}\ntask:\n  command: [\"true\"]\n" + strings.Join(lines, "\n") + "\n"
}

var badJobs = []bad{
	{name: "unknown field", file: job("instnces: 3"), code: 2, stderr: `^Error: in.yaml:5: instnces: JobSpec has no field "instnces"\nHint: did you mean "instances"\?`},
	{name: "unknown nested field", file: job("  resources: {cpu: 1}"), code: 2, stderr: `in.yaml:5: task.resources.cpu: TaskResources has no field "cpu"\nHint: .*cpu_milli`},
	{name: "field given twice", file: job("instances: 1", "instances: 2"), code: 2, stderr: `in.yaml:6: instances: is given twice, first on line 5`},
	{name: "negative cpu", file: job("  resources:", "    cpu_milli: -1"), code: 2, stderr: `in.yaml:6: task.resources.cpu_milli: must be greater than or equal to 0 and less than or equal to 1099511627776`},
	{name: "negative extended", file: job("  resources:", "    extended: {fpga: -1}"), code: 2, stderr: `in.yaml:6: task.resources.extended.*must be greater than or equal to 0`},
	{name: "overflowing memory", file: job("  resources:", "    memory_mib: 9223372036854775808"), code: 2, stderr: `in.yaml:6: task.resources.memory_mib: .*too large`},
	{name: "memory beyond the bound", file: job("  resources:", "    memory_mib: 1099511627777"), code: 2, stderr: `in.yaml:6: task.resources.memory_mib: must be .*less than or equal to 1099511627776`},
	{name: "fraction of a milli", file: job("  resources:", "    cpu_milli: 1.5"), code: 2, stderr: `in.yaml:6: task.resources.cpu_milli: invalid integer`},
	{name: "one and a half devices", file: job("  resources:", "    gpu_milli: 1500"), code: 2, stderr: `in.yaml:6: task.resources.gpu_milli: must be below 1000 \(a share of one device\) or a multiple of 1000`},
	{name: "unknown resource", file: job("  resources:", "    extended: {fpga: 1}"), code: 2, stderr: `in.yaml:6: task.resources.extended\["fpga"\]: no host of this cell has offered it: check the name`},
	{name: "two kinds", file: job("service: {}"), code: 2, stderr: `in.yaml:5: service: field batch is already set`},
	{name: "no kind", file: "name: wrong\ntask: {command: [x]}\n", code: 2, stderr: `in.yaml:1: kind: exactly one field is required`},
	{name: "no command", file: "name: wrong\nbatch: {}\ntask: {}\n", code: 2, stderr: `in.yaml:3: task: command is required`},
	{name: "bad name", file: "name: Not_A_Label\nbatch: {}\ntask: {command: [x]}\n", code: 2, stderr: `in.yaml:1: name: `},
	{name: "no instances", file: job("instances: 0"), code: 2, stderr: `in.yaml:5: instances: must be greater than or equal to 1`},
	{name: "too many instances", file: job("instances: 4194305"), code: 2, stderr: `in.yaml:5: instances: must be .*less than or equal to 4194304`},
	{name: "reserved variable", file: job("  env: {PACELINE_INSTANCE: '7'}"), code: 2, stderr: `in.yaml:5: task.env.*variables that start with PACELINE_ are given by Paceline`},
	{name: "NUL in an argument", file: "name: wrong\nbatch: {}\ntask:\n  command: [sh, \"a\\0b\"]\n", code: 2, stderr: `in.yaml:4: task.command\[1\]: must not contain a NUL byte`},
	{name: "argument of 2 MiB", file: "name: wrong\nbatch: {}\ntask:\n  command:\n    - echo\n    - " + strings.Repeat("x", 2<<20) + "\n", code: 2, stderr: `^Error: in.yaml:6: task.command\[1\]: must be at most 131072 bytes\n$`},
	{name: "command of 2 MiB in small pieces", file: "name: wrong\nbatch: {}\ntask:\n  command:\n" + strings.Repeat("    - "+strings.Repeat("x", 1000)+"\n", 2100), code: 2, stderr: `^Error: in.yaml:\d: .*(is \d+ bytes long.*at most \d+ are accepted: .*)\n`},
	{name: "file of 9 MiB", file: job("# " + strings.Repeat("x", 9<<20)), code: 2, stderr: `in.yaml: is over 8 MiB`},
	{name: "override of no instance", file: job("instances: 2", "overrides:", "  - instances: 1-2"), code: 2, stderr: `in.yaml:7: overrides\[0\].instances: instance 2 does not exist: the job has 2, from 0 to 1`},
	{name: "instance overridden twice", file: job("instances: 2", "overrides:", "  - {instances: 0-1}", "  - {instances: '1'}"), code: 2, stderr: `in.yaml:8: overrides\[1\].instances: instance 1 is in overrides\[0\] already`},
	{
		name: "a million with more overrides than there may be", file: job("instances: 1000000", "overrides:", "  - {instances: 0-10000, env: {A: b}}"), code: 2,
		stderr: `in.yaml:7: overrides\[0\].instances: more than 10000 instances differ from the template: let tasks tell themselves apart by PACELINE_INSTANCE`,
	},
	{
		name: "a million with overrides that spread too wide", file: job("instances: 1000000", "overrides:", "  - {instances: 0-9999, env: {A: "+strings.Repeat("b", 200)+"}}"), code: 2,
		stderr: `in.yaml:7: overrides\[0\].instances: the spec takes more than \d+ bytes .*: shorten them`,
	},
	{name: "pool that is not there", file: job("pool: /nowhere"), code: 3, stderr: `in.yaml:5: pool: pool /nowhere does not exist, or you may not see it\nHint: list the pools`},
	{name: "pool with children", file: job("pool: /team"), code: 4, stderr: `in.yaml:5: pool: pool /team .*\nHint: choose a pool without children`},
	{name: "name of a live job", file: "name: lasting\nbatch: {}\ntask: {command: [other]}\n", code: 4, stderr: `^Error: (in.yaml:1: )?job lasting in pool /default is running with another spec .*\nHint: stop it first, or submit under another name`},
	{name: "name twice in a file", file: "name: twin\nbatch: {}\ntask: {command: [x]}\n---\nname: twin\nbatch: {}\ntask: {command: [y]}\n", code: 2, stderr: `in.yaml:5: name: job /default/twin is in in.yaml:1 already`},
	{name: "broken YAML", file: "name: wrong\nbatch: {}\ntask: {command: [x}\n", code: 2, stderr: `^Error: in.yaml:3: did not find expected`},
	{name: "broken YAML on its first line", file: "name: [wrong\n", code: 2, stderr: `^Error: in.yaml:[12]: did not find expected`},
	{name: "tab", file: "name: wrong\n\tbatch: {}\n", code: 2, stderr: `in.yaml:2: .*tab`},
	{name: "YAML bomb", file: "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nname: *b\n", code: 2, stderr: `^Error: in.yaml:\d: `},
	{name: "no text", file: "\xff\xfe\x00", code: 2, stderr: `in.yaml: is not UTF-8 text`},
	{name: "empty file", file: "# nothing\n", code: 2, stderr: `in.yaml: holds no document`},
	{name: "a pool's file", file: "path: /a\n", code: 2, stderr: `in.yaml:1: path: JobSpec has no field "path"`},
}

var badPools = []bad{
	{name: "unknown field", file: "path: /a\nquota: 3\n", code: 2, stderr: `in.yaml:2: quota: PoolSpec has no field "quota"`},
	// The place of a pool is its path alone, so a pool below its own descendant cannot be written down.
	{name: "cycle", file: "path: /team\nparent: /team/x\n", code: 2, stderr: `in.yaml:2: parent: PoolSpec has no field "parent"`},
	{name: "path above the root", file: "path: /team/../..\n", code: 2, stderr: `in.yaml:1: path: `},
	{name: "root", file: "path: /\n", code: 2, stderr: `in.yaml:1: path: `},
	{name: "deeper than pools go", file: "path: " + strings.Repeat("/a", 9) + "\n", code: 2, stderr: `in.yaml:1: path: `},
	{name: "no parent", file: "path: /none/a\n", code: 4, stderr: `^Error: in.yaml:1: .*pool /none/a: its parent /none does not exist\nHint: apply the parent first`},
	{name: "path twice in a file", file: "path: /team/x\nshare: 2\n---\npath: /team/x\nshare: 3\n", code: 2, stderr: `in.yaml:4: path: pool /team/x is in in.yaml:1 already`},
	{name: "negative reservation", file: "path: /team\nreservation:\n  cpu_milli: -5\n", code: 2, stderr: `in.yaml:3: reservation.cpu_milli: must be greater than or equal to 0`},
	{name: "overflowing limit", file: "path: /team\nlimit:\n  cpu_milli: 92233720368547758080\n", code: 2, stderr: `in.yaml:3: limit.cpu_milli: .*too large`},
	{name: "reservation over limit", file: "path: /team\nreservation: {cpu_milli: 2000}\nlimit: {cpu_milli: 1000}\n", code: 2, stderr: `in.yaml:2: reservation: cpu_milli=2000 is over the limit of 1000: raise the limit or lower the reservation`},
	{name: "children over their parent", file: "path: /team/x\nreservation: {cpu_milli: 99999}\n", code: 4, stderr: `^Error: in.yaml:1: .*reserv`},
	{name: "child of a pool with jobs", file: "path: /default/x\n", code: 4, stderr: `pool x cannot stand below /default, which holds .*choose another parent`},
	{name: "unknown kind", file: "path: /team\nkind: rubber\n", code: 2, stderr: `in.yaml:2: kind: .*elastic, static`},
	{name: "negative share", file: "path: /team\nshare: -1\n", code: 2, stderr: `in.yaml:2: share: `},
	{name: "second that reserves the rest", file: "path: /rest\nreserve_rest: true\n", code: 4, stderr: `pools /default and /rest both reserve the rest of /: give one of them a reservation`},
	{name: "broken YAML", file: "path: /team\nlimit: {cpu_milli: 1\n", code: 2, stderr: `in.yaml:\d: did not find expected`},
}

var badLines = []bad{
	{args: "frobnicate", code: 2, stderr: `Error: paceline has no verb "frobnicate"`},
	{args: "job gt x", code: 2, stderr: `did you mean get\?`},
	{args: "job list --frobnicate", code: 2, stderr: `unknown flag: --frobnicate\nHint: see 'paceline job list --help'`},
	{args: "job list -o xml", code: 2, stderr: `output format "xml" is unknown: it is one of table`},
	{args: "job list --state flying", code: 2, stderr: `--state: "flying" is not one of pending`},
	{args: "job list --timeout -1s", code: 2, stderr: `must be positive`},
	{args: "job run", code: 2, stderr: `the form is: paceline job run FILE`},
	{args: "job run none.yaml", code: 2, stderr: `open none.yaml: no such file`},
	{args: "job get none", code: 3, stderr: `job "none" does not exist`},
	{args: "job stop none", code: 3, stderr: `job "none" does not exist`},
	{args: "job stop lasting --expected-version 99", code: 4, stderr: `version`},
	{args: "job delete lasting", code: 4, stderr: `(?i)job lasting is running\nHint: stop it first`},
	{args: "job plan none.yaml", code: 255, stderr: `open none.yaml: no such file`},
	{args: "task get lasting 99", code: 3, stderr: `job lasting has no instance 99: it has 1`},
	{args: "task get lasting minus", code: 2, stderr: `instance "minus" is not a number`},
	{args: "pool get /none", code: 3, stderr: `/none`},
	{args: "pool delete /", code: 2, stderr: `the root is the cell itself`},
	{args: "pool delete /default", code: 4, stderr: `pool /default holds \d+ jobs`},
	{args: "pool delete /team", code: 4, stderr: `/team`},
	{args: "host get none", code: 3, stderr: `none`},
	{args: "events --cursor rubbish", code: 2, stderr: `the cursor is damaged\nHint: leave it out`},
	{args: "events --kind sound", code: 2, stderr: `--kind: "sound" is not one of`},
	{args: "job list --token-file none", code: 2, stderr: `read the token: open none: no such file`},
	{args: "job list --address nowhere", code: 2, stderr: `"nowhere" must be a URL or host:port`},
	{args: "job list --address 127.0.0.1:1 --timeout 2m", code: 5, stderr: `the server cannot be reached: .*\nHint: start one here with 'paceline dev'`},
	{args: "job list --address http://192.0.2.1:7411", code: 2, stderr: `refusing to send a token to 192.0.2.1:7411 in plain text: use https`},
	{args: "job list --context none", code: 2, stderr: `there is no context "none"`},
	{args: "backup address", code: 2, stderr: `address is there already\nHint: .*--force`},
	{args: "dev extra", code: 2, stderr: `the form is: paceline dev\n`},
	{args: "server extra", code: 2, stderr: `the form is: paceline server\n`},
	{args: "server restore", code: 2, stderr: `the form is: paceline server restore FILE`},
	{args: "server --frobnicate", code: 2, stderr: `unknown flag: --frobnicate`},
	{args: "sim pack --frobnicate", code: 2, stderr: `unknown flag: --frobnicate`},
}

// state is everything that bad input must leave alone: each job and pool with its version and spec.
func (c *cell) state() map[string]string {
	c.t.Helper()
	ctx := context.Background()
	list, err := c.jobs()
	if err != nil {
		c.t.Fatal(err)
	}
	state := map[string]string{}
	for path, j := range list {
		whole, err := c.client().Jobs.GetJob(ctx, connect.NewRequest(&pacelinev1.GetJobRequest{Job: j.GetId()}))
		if err != nil {
			c.t.Fatal(err)
		}
		spec, err := protojson.Marshal(whole.Msg.GetJob().GetSpec())
		if err != nil {
			c.t.Fatal(err)
		}
		var canonical bytes.Buffer // protojson varies its white space on purpose
		canonical.WriteString(strings.ReplaceAll(string(spec), " ", ""))
		state["job "+path] = fmt.Sprintf("%s version %d/%d %v %s", j.GetId(), j.GetVersion(), j.GetConfigVersion(), j.GetGoal(), &canonical)
	}
	pools, err := c.client().Pools.ListPools(ctx, connect.NewRequest(&pacelinev1.ListPoolsRequest{PageSize: 1000}))
	if err != nil {
		c.t.Fatal(err)
	}
	for _, p := range pools.Msg.GetPools() {
		state["pool "+p.GetSpec().GetPath()] = fmt.Sprintf("%s version %d share %d", p.GetId(), p.GetVersion(), p.GetSpec().GetShare())
	}
	return state
}

func differences(before, after map[string]string) string {
	var b strings.Builder
	all := maps.Clone(before)
	maps.Copy(all, after)
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if before[key] != after[key] {
			fmt.Fprintf(&b, "%s\n  was: %s\n  is:  %s\n", key, before[key], after[key])
		}
	}
	return b.String()
}

// furnish gives a cell work that lasts: what bad input could harm.
func (c *cell) furnish() {
	c.t.Helper()
	c.must("pool", "apply", write(c.t, c.dir, "pools.yaml", "path: /team\nreservation: {cpu_milli: 1000}\n---\npath: /team/x\n"))
	c.must("job", "run", write(c.t, c.dir, "ended.yaml", "name: ended\nbatch: {}\ninstances: 5\ntask: {simulation: {duration: 0.01s}}\n"), "--wait")
	c.must("job", "run", write(c.t, c.dir, "lasting.yaml", "name: lasting\nbatch: {}\ntask: {simulation: {duration: 1000s}}\n"))
	c.must("job", "run", write(c.t, c.dir, "million.yaml",
		"name: million\nbatch: {max_running: 5}\ninstances: 1000000\ntask: {simulation: {duration: 1000s}}\noverrides: [{instances: 0-4999, env: {A: b}}, {instances: '999999', resources: {cpu_milli: 7}}]\n"))
	c.await("the lasting job runs", func() error {
		list, err := c.jobs()
		if err == nil && list["/default/lasting"].GetRunCounts().GetRunning() != 1 {
			err = fmt.Errorf("it is %v", list["/default/lasting"])
		}
		return err
	})
}

func TestBadInput(t *testing.T) { //nolint:tparallel // the parts share one cell, so they take turns
	t.Parallel()
	c := startCell(t, simulates...)
	c.furnish()
	before := c.state()
	try := func(t *testing.T, b *bad) {
		args := strings.Fields(b.args)
		if b.args == "" {
			write(t, c.dir, "in.yaml", b.file)
			args = append(strings.Fields(b.verb), "in.yaml")
		}
		r := c.paceline(args...)
		want(t, r, b.code, b.stderr)
		if r.stdout != "" {
			t.Errorf("%v\nwant nothing on standard output", r)
		}
		if len(r.stderr) > 8<<10 {
			t.Errorf("the error is %d bytes long", len(r.stderr))
		}
		if diff := differences(before, c.state()); diff != "" {
			t.Errorf("%v\nchanged the cell:\n%s", r, diff)
			before = c.state()
		}
	}
	for verb, list := range map[string][]bad{"job run": badJobs, "pool apply": badPools, "": badLines} {
		for i := range list {
			b := &list[i]
			b.verb = verb
			t.Run(strings.TrimSpace(verb+" "+b.name+b.args), func(t *testing.T) { try(t, b) })
		}
	}
	t.Run("over the wire", func(t *testing.T) { c.badRequests(t, before) })
	// What was acknowledged outlives all this, and a restart.
	c.kill()
	c.start()
	if diff := differences(before, c.state()); diff != "" {
		t.Errorf("the restart changed the cell:\n%s", diff)
	}
	if j, err := c.jobs(); err != nil || j["/default/ended"].GetInstanceCounts().GetDone() != 5 || j["/default/million"].GetInstances() != 1_000_000 {
		t.Errorf("after the restart: %v, %v", j, err)
	}
	c.must("job", "delete", "lasting", "million", "--force")
	c.stop()
}

// badRequests sends what no client of ours would.
func (c *cell) badRequests(t *testing.T, before map[string]string) {
	raw, err := os.ReadFile(filepath.Join(c.data, "token"))
	if err != nil {
		t.Fatal(err)
	}
	token := "Bearer " + strings.TrimSpace(string(raw))
	create := "/paceline.v1.JobService/CreateJob"
	for _, b := range []struct {
		name, path, token, host, origin, body string
		status                                int
		says                                  string
	}{
		{name: "unknown field", path: create, token: token, body: `{"spec": {"name": "w", "batch": {}, "task": {"command": ["x"]}, "prio": 1}}`, status: 400, says: `prio`},
		{name: "2 MiB command", path: create, token: token, body: `{"spec": {"name": "w", "batch": {}, "task": {"command": ["` + strings.Repeat("x", 2<<20) + `"]}}}`, status: 400, says: `must be at most 131072 bytes`},
		{name: "larger than any message", path: create, token: token, body: `{"spec": {"name": "` + strings.Repeat("x", 5<<20) + `"}}`, status: 429, says: `larger`},
		{name: "negative need", path: create, token: token, body: `{"spec": {"name": "w", "batch": {}, "task": {"command": ["x"], "resources": {"cpuMilli": "-1"}}}}`, status: 400, says: `spec.task.resources.cpu_milli: must be greater`},
		{name: "no JSON", path: create, token: token, body: `{"spec": `, status: 400, says: `invalid_argument`},
		{name: "no message", path: create, token: token, body: `{}`, status: 400, says: `spec`},
		{name: "page token of nobody", path: "/paceline.v1.JobService/ListJobs", token: token, body: `{"pageToken": "AAAA"}`, status: 400, says: `the page token is damaged`},
		{name: "no token", path: create, body: `{}`, status: 401, says: `the call carries no valid token`},
		{name: "wrong token", path: create, token: "Bearer wrong", body: `{}`, status: 401, says: `the call carries no valid token`},
		{name: "metrics without a token", path: "/metrics", status: 405, says: ``},
		{name: "page of another site", path: create, token: token, origin: "https://example.com", body: `{}`, status: 403, says: `pages of other sites`},
		{name: "rebound name", path: create, token: token, host: "example.com", body: `{}`, status: 403, says: `loopback names only`},
		{name: "no such method", path: "/paceline.v1.JobService/Frobnicate", token: token, body: `{}`, status: 404},
	} {
		t.Run(b.name, func(t *testing.T) {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, c.address()+b.path, strings.NewReader(b.body))
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("Content-Type", "application/json")
			for name, value := range map[string]string{"Authorization": b.token, "Origin": b.origin} {
				if value != "" {
					request.Header.Set(name, value)
				}
			}
			if b.host != "" {
				request.Host = b.host
			}
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			answer, err := io.ReadAll(response.Body)
			if err != nil {
				t.Fatal(err)
			}
			if response.StatusCode != b.status || !strings.Contains(string(answer), b.says) || len(answer) > 16<<10 {
				t.Errorf("status %d: %.2000s\nwant %d and %q", response.StatusCode, answer, b.status, b.says)
			}
			if diff := differences(before, c.state()); diff != "" {
				t.Errorf("changed the cell:\n%s", diff)
			}
		})
	}
}
