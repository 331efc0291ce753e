package wire_test

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"strings"
	"testing"

	"github.com/mesos/mesos-go/api/v1/lib/scheduler"

	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator/wire"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/recordings"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/recordio"
)

// records calls f with every record of every recorded subscription in one of the forms.
func records(t testing.TB, enc string, f func(stage string, record []byte)) {
	t.Helper()
	archive, err := recordings.Load()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range archive.Names(enc + "/") {
		if !strings.HasSuffix(name, ".events.recordio.bin") || strings.Contains(name, "operator-subscribe") {
			continue
		}
		in := recordio.NewReader(bytes.NewReader(archive.File(name)))
		for {
			record, err := in.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			f(name, record)
		}
	}
}

// stamp is a time; a master's last digit may be another that reads as the same number.
var stamp = regexp.MustCompile(`("timestamp":\d+\.\d{1,5})\d*`)

// TestJSONIsWrittenAsAMasterDoes reads every recorded event and writes it again: the bytes must be the same.
func TestJSONIsWrittenAsAMasterDoes(t *testing.T) {
	seen := 0
	records(t, "json", func(stage string, record []byte) {
		parsed, err := wire.ParseJSON(record)
		if err != nil {
			t.Fatalf("%s: %v", stage, err)
		}
		event := new(scheduler.Event)
		if err := wire.Assign(event, parsed); err != nil {
			t.Fatalf("%s: %v: %s", stage, err, record)
		}
		if again := wire.AppendJSON(nil, event); !bytes.Equal(stamp.ReplaceAll(again, []byte("$1")), stamp.ReplaceAll(record, []byte("$1"))) {
			t.Fatalf("%s: wrote\n%s\nwant\n%s", stage, again, record)
		}
		seen++
	})
	if seen < 400 {
		t.Errorf("only %d events were read", seen)
	}
}

// TestProtobufAndJSONSayTheSame turns every recorded protobuf event into JSON and back.
func TestProtobufAndJSONSayTheSame(t *testing.T) {
	records(t, "protobuf", func(stage string, record []byte) {
		event, again := new(scheduler.Event), new(scheduler.Event)
		if err := event.Unmarshal(record); err != nil {
			t.Fatalf("%s: %v", stage, err)
		}
		text := wire.AppendJSON(nil, event)
		parsed, err := wire.ParseJSON(text)
		if err != nil {
			t.Fatalf("%s: %v", stage, err)
		}
		if err := wire.Assign(again, parsed); err != nil {
			t.Fatalf("%s: %v", stage, err)
		}
		if twice := wire.AppendJSON(nil, again); !bytes.Equal(text, twice) {
			t.Fatalf("%s: %s\nbecame\n%s", stage, text, twice)
		}
		if !wire.WellFormed(record) {
			t.Fatalf("%s: a recorded event counts as malformed", stage)
		}
	})
}

func TestRefusalsAreInAMastersWords(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{`{"type": "REVIVE", `, "syntax error at line 1 near: "},
		{"{\"type\":\n x}", "syntax error at line 2 near: }"},
		{`[]`, "Expecting a JSON object"},
		{`{"type": 1}`, "Not expecting a JSON number for field 'type'"},
		{`{"framework_id": "x"}`, "Not expecting a JSON string for field 'framework_id'"},
		{`{"subscribe": {"framework_info": {"name": "x"}}}`, "Missing required fields: subscribe.framework_info.user"},
		{`{"accept": {"offer_ids": [{}, {}]}}`, "Missing required fields: accept.offer_ids[0].value, accept.offer_ids[1].value"},
		{`{"type": "no such", "unknown": 1, "framework_id": null}`, ""},
	} {
		parsed, err := wire.ParseJSON([]byte(test.text))
		if err == nil {
			err = wire.Assign(new(scheduler.Call), parsed)
		}
		if got := errorText(err); got != test.want {
			t.Errorf("%s is refused with %q, want %q", test.text, got, test.want)
		}
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// FuzzCall reads calls in both forms: what is accepted can be written and read again.
func FuzzCall(f *testing.F) {
	archive, err := recordings.Load()
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range archive.Names("json/03") {
		if strings.HasSuffix(name, ".request.json") {
			f.Add(archive.File(name))
		}
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		wire.WellFormed(body)
		call := new(scheduler.Call)
		if call.Unmarshal(body) != nil {
			call = new(scheduler.Call)
			parsed, err := wire.ParseJSON(body)
			if err != nil || wire.Assign(call, parsed) != nil {
				return
			}
		}
		text := wire.AppendJSON(nil, call)
		parsed, err := wire.ParseJSON(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if err := wire.Assign(new(scheduler.Call), parsed); err != nil && !strings.HasPrefix(err.Error(), "Missing") {
			t.Fatalf("%s: %v", text, err)
		}
	})
}
