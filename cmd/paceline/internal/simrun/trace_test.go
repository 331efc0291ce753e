package simrun_test

import (
	"bytes"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/paceline-sched/paceline/cmd/paceline/internal/simrun"
)

const (
	hostHeader  = "machine_id,platform,cpus,memory\n"
	taskHeader  = "job_id,task_index,user,priority,cpu_request,memory_request,different_machines,submit_us,first_schedule_us,end_us,end_event\n"
	eventHeader = "time_us,machine_id,event_type,platform_id,cpus,memory\n"
)

func discard[T any](read func(io.Reader, string) ([]T, error)) func(io.Reader) error {
	return func(r io.Reader) error {
		_, err := read(r, "f.csv")
		return err
	}
}

func TestBadInputIsLocated(t *testing.T) {
	t.Parallel()
	hosts, tasks, events := discard(simrun.ReadHosts), discard(simrun.ReadTasks), discard(simrun.ReadHostEvents)
	cases := []struct {
		read        func(io.Reader) error
		input, want string
	}{
		{hosts, "", "f.csv:1:1: the file is empty"},
		{hosts, "machine_id,platform,cpus\n", "f.csv:1:1: column memory is missing"},
		{hosts, hostHeader + "1,A,0.5,0.5\n2,A,one,1\n", `f.csv:3:5: column cpus: "one" must be a fraction`},
		{hosts, hostHeader + "1,A,0.5,1.5\n", "f.csv:2:9: column memory"},
		{hosts, hostHeader + "1,A,NaN,1\n", "f.csv:2:5: column cpus"},
		{hosts, hostHeader + "1,A,1,1\n1,A,1,1\n", `f.csv:3:1: column machine_id: "1" appears twice`},
		{hosts, hostHeader + ",A,1,1\n", "f.csv:2:1: column machine_id"},
		{hosts, hostHeader + "1,A,1\n", "f.csv:2:1: wrong number of fields"},
		{hosts, hostHeader + "1,\"A,1,1\n", "f.csv:"},
		{tasks, taskHeader + "1,0,u,12,1,1,0,0,,,\n", "f.csv:2:7: column priority"},
		{tasks, taskHeader + "1,0,u,9,2,1,0,0,,,\n", "f.csv:2:9: column cpu_request"},
		{tasks, taskHeader + "1,0,u,9,1,1,2,0,,,\n", "f.csv:2:13: column different_machines"},
		{tasks, taskHeader + "1,0,a/b,9,1,1,0,0,,,\n", `f.csv:2:5: column user: "a/b" names a pool`},
		{tasks, taskHeader + "1,0,-a,9,1,1,0,0,,,\n", "f.csv:2:5: column user"},
		{tasks, taskHeader + "1,0,u,9,1,1,0,500,,400,KILL\n", "f.csv:2:20: column end_us: 400 is before"},
		{tasks, taskHeader + ",0,u,9,1,1,0,0,,,\n", "f.csv:2:1: column job_id"},
		{tasks, taskHeader + "1,-1,u,9,1,1,0,0,,,\n", "f.csv:2:3: column task_index"},
		{events, eventHeader + "5,1,3,x,1,1\n", "f.csv:2:5: column event_type"},
		{events, eventHeader + "5,1,0,x,1,1\n4,1,1,x,1,1\n", "f.csv:3:1: column time_us: events must be in the order"},
		{events, eventHeader + "5,,0,x,1,1\n", "f.csv:2:3: column machine_id"},
	}
	for _, c := range cases {
		if err := c.read(strings.NewReader(c.input)); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%q\n got %v\nwant %s", c.input, err, c.want)
		}
	}
}

func FuzzRead(f *testing.F) {
	for _, path := range []string{"testdata/hosts.csv", "testdata/tasks.csv", "testdata/events.csv"} {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(taskHeader + "\"1\n\",0,u,9,,,1,0,7,,\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		hosts, hostErr := simrun.ReadHosts(bytes.NewReader(data), "f.csv")
		tasks, taskErr := simrun.ReadTasks(bytes.NewReader(data), "f.csv")
		_, eventErr := simrun.ReadHostEvents(bytes.NewReader(data), "f.csv")
		for _, err := range []error{hostErr, taskErr, eventErr} {
			if err != nil && !strings.HasPrefix(err.Error(), "f.csv:") {
				t.Errorf("an error without a place: %v", err)
			}
		}
		if taskErr != nil {
			tasks = nil
		}
		for _, task := range tasks {
			if task.CPU < 0 || task.CPU > 1 || task.Priority < 0 || task.User == "" || task.End != -1 && task.End < task.Submit {
				t.Errorf("read %+v", task)
			}
		}
		if hostErr == nil && len(hosts) > 0 && len(hosts) < 50 { // what was read can be run
			o := simrun.Options{Hosts: hosts, Tasks: []simrun.Task{{Job: "1", User: "u", CPU: 0.1, Scheduled: -1, End: -1}}}
			if _, err := simrun.Run(t.Context(), o); err != nil {
				t.Errorf("run %+v: %v", hosts, err)
			}
		}
	})
}
