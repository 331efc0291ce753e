package guest_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/paceline-sched/paceline/sdk/guest"
	"github.com/paceline-sched/paceline/sdk/policyabi"
)

// TestColumnsAreTheirNumbers holds the columns that all the files name against those of the ABI.
func TestColumnsAreTheirNumbers(t *testing.T) {
	want := map[string]policyabi.ColumnID{
		"FREE": policyabi.ColumnFree, "TOTAL": policyabi.ColumnTotal, "DEVICE_WHOLE": policyabi.ColumnDeviceWhole, "DEVICE_LARGEST": policyabi.ColumnDeviceLargest,
		"FLAGS": policyabi.ColumnFlags, "TASKS": policyabi.ColumnTasks, "LEFTOVER": policyabi.ColumnLeftover, "FREE_SHARE": policyabi.ColumnFreeShare,
		"PORTS": policyabi.ColumnPorts, "SLACK": policyabi.ColumnSlack, "USAGE": policyabi.ColumnUsage, "TOPOLOGY": policyabi.ColumnTopology,
	}
	for _, language := range guest.Languages() {
		var all bytes.Buffer
		list, err := fs.Glob(guest.Files(language), "*")
		if err != nil || len(list) == 0 {
			t.Fatal(language, list, err)
		}
		for _, name := range list {
			raw, err := fs.ReadFile(guest.Files(language), name)
			if err != nil {
				t.Fatal(err)
			}
			all.Write(raw)
		}
		for name, id := range want {
			m := regexp.MustCompile(`(?m)\b` + name + `(?:: u32)? = (\d+)[,;]`).FindStringSubmatch(all.String())
			if m == nil {
				t.Errorf("%s does not say what %s is", language, name)
				continue
			}
			if n, err := strconv.Atoi(m[1]); err != nil || policyabi.ColumnID(n) != id {
				t.Errorf("%s: %s is %s, it should be %d", language, name, m[1], id)
			}
		}
	}
}

// TestFieldsStandInOrder holds the fields of the header against the page: each language has all that it names, in this order.
func TestFieldsStandInOrder(t *testing.T) {
	order := strings.Fields("magic major minor epoch base generation seed time rows capacity directory columns requests request results result config config mix mix dirty dirty extension extension")
	for _, language := range guest.Languages() {
		list, err := fs.Glob(guest.Files(language), "paceline.*")
		if err != nil || len(list) != 1 {
			t.Fatal(list, err)
		}
		raw, err := fs.ReadFile(guest.Files(language), list[0])
		if err != nil {
			t.Fatal(err)
		}
		_, body, ok := strings.Cut(string(raw), "magic")
		if !ok {
			t.Fatal(language)
		}
		body = "magic" + body
		at := 0
		for i, field := range order {
			found := regexp.MustCompile(fmt.Sprintf(`\b%s`, field)).FindStringIndex(body[at:])
			if found == nil || found[0] > 60 {
				t.Fatalf("%s: field %d, %s, does not follow the one before it", language, i, field)
			}
			at += found[1]
		}
	}
}
