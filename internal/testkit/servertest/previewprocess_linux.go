package servertest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/observe/insight"
)

const PreviewedRules = "domain: shop\nlimits: [{ name: api, per: [ip], allow: 2/hour }]\n"

// QuickPreview is over at once; SlowPreview goes on until somebody ends it.
func QuickPreview() map[string]string {
	return map[string]string{"shop.yaml": strings.Replace(PreviewedRules, "2/hour", "1/hour", 1)}
}

func SlowPreview() map[string]string {
	tests := "tests:\n" + strings.Repeat("  - name: many\n    steps: [{ send: { ip: 192.0.2.1, times: 10000000 }, expect: { allowed: true } }]\n", 100)
	files := QuickPreview()
	files["shop_test.yaml"] = tests
	return files
}

// BeginPreview starts a preview, and returns where it is asked for; "" if another one runs.
func (p *Process) BeginPreview(files map[string]string) string {
	p.T.Helper()
	body, err := json.Marshal(map[string]any{"files": files})
	if err != nil {
		p.T.Fatal(err)
	}
	res, err := http.Post("http://"+p.Addr("admin")+"/api/v1/preview", "application/json", bytes.NewReader(body))
	if err != nil {
		p.T.Fatal(err)
	}
	defer res.Body.Close()
	switch res.StatusCode {
	case http.StatusConflict:
		return ""
	case http.StatusAccepted:
		return "http://" + p.Addr("admin") + res.Header.Get("Location")
	}
	text, _ := io.ReadAll(res.Body)
	p.T.Fatalf("%d %s", res.StatusCode, text)
	return ""
}

// Slow starts a preview that goes on, as soon as the last one has ended, and returns where it is
// asked for and its process.
func (p *Process) Slow() (at string, pid int) {
	p.T.Helper()
	Eventually(p.T, "a preview begins", func() bool {
		at = p.BeginPreview(SlowPreview())
		return at != ""
	})
	return at, p.Child()
}

// Outcome waits for a preview, and returns the answer.
func Outcome(t *testing.T, at string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, at, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", "application/json")
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(text)
}

// Previews checks that a preview has the result that it must have.
func (p *Process) Previews() {
	p.T.Helper()
	var result insight.PreviewResult
	status, text := Outcome(p.T, p.BeginPreview(QuickPreview()))
	SkipIfStarved(p.T, text)
	if err := json.Unmarshal([]byte(text), &result); err != nil || status != 200 || result.Requests != 4 || result.Now.Refused != 2 || result.Then.Refused != 3 {
		p.T.Errorf("%d %s\n%s", status, text, p.Stderr)
	}
}

// Child waits for the process that the program has started.
func (p *Process) Child() (pid int) {
	p.T.Helper()
	Eventually(p.T, "a process replays", func() bool {
		stats, err := filepath.Glob("/proc/[0-9]*/stat")
		if err != nil {
			p.T.Fatal(err)
		}
		for _, name := range stats {
			// The fields after the name: state, and the process that started it.
			if fields := StatOf(name); len(fields) > 1 && fields[1] == strconv.Itoa(p.Cmd.Process.Pid) && fields[0] != "Z" {
				pid, _ = strconv.Atoi(filepath.Base(filepath.Dir(name)))
			}
		}
		return pid != 0
	})
	return pid
}

// StatOf reads the fields of a stat file of /proc from the state on; none if it is gone.
func StatOf(name string) []string {
	data, _ := os.ReadFile(name)
	return strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
}

// HasNoFile reports whether the program itself does not have a file open, so that it would show in
// no process that it starts.
func (p *Process) HasNoFile(name string) bool {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", p.Cmd.Process.Pid))
	return !slices.ContainsFunc(files, func(fd string) bool {
		file, _ := os.Readlink(fd)
		return file == name && filepath.Base(fd) == "3"
	})
}
