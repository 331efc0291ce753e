package tracefile_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/paceline-sched/paceline/cmd/paceline/internal/tracefile"
)

type row struct {
	name  string
	count int64
	part  float64
	note  string
}

func read(in io.Reader, name string) ([]row, error) {
	t, err := tracefile.Open(in, name, []string{"name", "count", "part"}, []string{"note"})
	if err != nil {
		return nil, err
	}
	var rows []row
	for t.Next() {
		rows = append(rows, row{strings.Clone(t.Text("name")), t.Number("count", 9), t.Fraction("part"), strings.Clone(t.Text("note"))})
		if t.Text("name") == "" {
			t.Fail("name", "a name must not be empty")
		}
	}
	return rows, t.Err()
}

func TestColumnsGoByName(t *testing.T) {
	t.Parallel()
	got, err := read(strings.NewReader("more,part,name,count\nx,0.5,a,9\ny,1,\"b,c\",0\n"), "f.csv")
	if want := []row{{"a", 9, 0.5, ""}, {"b,c", 0, 1, ""}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
}

func TestFaultsAreLocated(t *testing.T) {
	t.Parallel()
	const header = "name,count,part,note\n"
	cases := []struct{ input, want string }{
		{"", "f.csv:1:1: the file is empty, its first line must name the columns name, count, part"},
		{"name,part\n", "f.csv:1:1: column count is missing"},
		{"\"name\n", "f.csv:"},
		{header + "a,1,1,\nb,x,1,\n", `f.csv:3:3: column count: "x" must be a whole number from 0 to 9`},
		{header + "a,10,1,\n", "f.csv:2:3: column count"},
		{header + "a,-1,1,\n", "f.csv:2:3: column count"},
		{header + "a,1,1.01,\n", "f.csv:2:5: column part"},
		{header + "\"a\n\n\",1,NaN,\n", "f.csv:4:5: column part"},
		{header + ",1,1,\n,x,1,\n", "f.csv:2:1: column name: a name must not be empty"},
		{header + "a,1,1\n", "f.csv:2:1: wrong number of fields"},
		{header + "a\"b,1,1,\n", "f.csv:2:2: bare"},
	}
	for _, c := range cases {
		if _, err := read(strings.NewReader(c.input), "f.csv"); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%q\n got %v\nwant %s", c.input, err, c.want)
		}
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, os.ErrDeadlineExceeded }

func TestReaderFails(t *testing.T) {
	t.Parallel()
	for _, before := range []string{"", "name,count,part\n", "name,count,part\na,1,1\n"} {
		_, err := read(io.MultiReader(strings.NewReader(before), broken{}), "f.csv")
		if !errors.Is(err, os.ErrDeadlineExceeded) || !strings.HasPrefix(err.Error(), "f.csv:") {
			t.Errorf("after %q: %v", before, err)
		}
	}
}

func TestFiles(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write([]byte("name,count,part\na,1,1\n")); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	good, bad := filepath.Join(folder, "good.csv.gz"), filepath.Join(folder, "bad.csv.gz")
	for path, content := range map[string][]byte{good: packed.Bytes(), bad: []byte("name,count,part\n")} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if rows, err := tracefile.ReadFile(good, read); err != nil || len(rows) != 1 {
		t.Errorf("%v, %v", rows, err)
	}
	if _, err := tracefile.ReadFile(bad, read); err == nil || !strings.HasPrefix(err.Error(), bad+": unpack") {
		t.Errorf("a plain file under a packed name: %v", err)
	}
	if _, err := tracefile.ReadFile(filepath.Join(folder, "none.csv"), read); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte("name,count,part\na,1,1\n\"b\n\",2,0\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		rows, err := read(bytes.NewReader(data), "f.csv")
		if err != nil && !strings.HasPrefix(err.Error(), "f.csv:") {
			t.Errorf("an error without a place: %v", err)
		}
		for _, r := range rows {
			if r.count < 0 || r.count > 9 || !(r.part >= 0 && r.part <= 1) {
				t.Errorf("read %+v", r)
			}
		}
	})
}
