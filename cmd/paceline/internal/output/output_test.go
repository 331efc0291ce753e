package output_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/paceline-sched/paceline/cmd/paceline/internal/output"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

type device = *pacelinev1.Device

var layout = output.Columns[device]{
	Name: device.GetModel,
	Columns: []output.Column[device]{
		{Header: "MODEL", Value: device.GetModel},
		{Header: "MILLI", Value: func(d device) string { return output.Quantity("gpu_milli", d.GetMilli()) }},
		{Header: "NOTE", Wide: true, Value: func(device) string { return output.OrDash("") }},
	},
}

func envelope(devices []device) proto.Message { return &pacelinev1.Host{Devices: devices} }

func TestFormats(t *testing.T) {
	t.Parallel()
	devices := []device{{Model: "Größe", Milli: 1000}, {Model: "G2", Milli: 500}}
	for format, want := range map[output.Format]string{
		output.Table: "MODEL  MILLI\nGröße  1\nG2     0.5\n",
		output.Wide:  "MODEL  MILLI  NOTE\nGröße  1      -\nG2     0.5    -\n",
		output.Name:  "Größe\nG2\n",
		output.JSON:  "{\n  \"devices\": [\n    {\n      \"model\": \"Größe\",\n      \"milli\": \"1000\"\n    },\n    {\n      \"model\": \"G2\",\n      \"milli\": \"500\"\n    }\n  ]\n}\n",
		output.YAML:  "devices:\n  - model: Größe\n    milli: \"1000\"\n  - model: G2\n    milli: \"500\"\n",
	} {
		var b strings.Builder
		if err := output.List(&output.Printer{Out: &b, Format: format}, devices, layout, envelope); err != nil || b.String() != want {
			t.Errorf("%s: got\n%s\nwant\n%s(%v)", format, b.String(), want, err)
		}
	}
	var b strings.Builder
	if err := output.One(&output.Printer{Out: &b, Format: output.Table, NoHeaders: true}, devices[1], layout); err != nil || b.String() != "G2  0.5\n" {
		t.Errorf("one without headers: %q, %v", b.String(), err)
	}
	b.Reset()
	if err := (&output.Printer{Out: &b, Format: output.JSON}).Line(devices[1]); err != nil || b.String() != "{\"model\":\"G2\",\"milli\":\"500\"}\n" {
		t.Errorf("a line: %q, %v", b.String(), err)
	}
	if _, err := output.ParseFormat("xml"); err == nil {
		t.Error("xml was taken")
	}
}

func TestText(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for got, want := range map[string]string{
		output.Enum(pacelinev1.InstanceState_INSTANCE_STATE_BACKING_OFF): "backing-off",
		output.Enum(pacelinev1.JobState(0)):                              "-",
		output.Enum(pacelinev1.JobState(99)):                             "99",
		output.Age(now, timestamppb.New(now.Add(-59*time.Second))):       "59s",
		output.Age(now, timestamppb.New(now.Add(-61*time.Second))):       "1m1s",
		output.Age(now, timestamppb.New(now.Add(-10*time.Minute))):       "10m",
		output.Age(now, timestamppb.New(now.Add(-25*time.Hour))):         "1d1h",
		output.Age(now, timestamppb.New(now.Add(time.Hour))):             "0s",
		output.Age(now, nil): "-",
		output.Clock(now, timestamppb.New(now.Add(-time.Hour))):       "11:00:00",
		output.Clock(now, timestamppb.New(now.Add(-24*time.Hour))):    "2026-02-28 12:00:00",
		output.Quantity("cpu_milli", 1500):                            "1.5",
		output.Quantity("cpu_milli", -1):                              "-0.001",
		output.Quantity("memory_mib", 1023):                           "1023Mi",
		output.Quantity("memory_mib", 1536):                           "1.5Gi",
		output.Quantity("disk_mib", 3<<20):                            "3Ti",
		output.Quantity("licence", 7):                                 "7",
		output.Pairs(map[string]string{"b": "2", "a": "1"}):           "a=1,b=2",
		output.Plural(1, "host") + " " + output.Plural(2, "instance"): "1 host 2 instances",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestEnumsRoundTrip: what tables show, filters take.
func TestEnumsRoundTrip(t *testing.T) {
	t.Parallel()
	d := pacelinev1.RunState(0).Descriptor()
	for _, name := range output.EnumNames(d) {
		n, err := output.ParseEnum(d, strings.ToUpper(name))
		if err != nil || output.Enum(pacelinev1.RunState(n)) != name {
			t.Errorf("%s is read as %d (%v)", name, n, err)
		}
	}
	if _, err := output.ParseEnum(d, "unspecified"); err == nil {
		t.Error("the unspecified value was taken")
	}
}
