package stores

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// The command of examples/regions/README.md, in small: real servers in three regions, of which one
// is cut off meanwhile, never admit more than the bound together. Without regions in the rule they
// do, and it says so.
func TestRegionsExample(t *testing.T) {
	t.Parallel()
	program := servertest.BuildProgram(t)
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip("redis-server is not installed; on Debian: apt-get install redis-server")
	}
	root := servertest.RepositoryRoot(t)
	readme := servertest.Blocks(t, filepath.Join(root, "examples", "regions", "README.md"))[0].Text
	command := strings.Fields(readme)
	if len(command) != 3 || command[0] != "go" || command[1] != "run" {
		t.Fatalf("the README says to run %q", readme)
	}
	built := filepath.Join(t.TempDir(), "regions")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-C", root, "-o", built, command[2]).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, c := range []struct {
		name, flags string
		status      int
		verdict     string
	}{
		{"regions", "-cut ap", 0, "never above the bound, N + 20 % = 72: yes"},
		{"each", "-each -cut ap", 1, "never above the bound, N + 20 % = 72: no"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			plot := filepath.Join(t.TempDir(), "regions.svg")
			seconds := 3 // of a window
			run := func() (status int, out []byte) {
				args := append(strings.Fields(c.flags), "-weir", program, "-plot", plot, "-limit", "60", "-rate", "60",
					"-window", fmt.Sprint(seconds, "s"), "-duration", fmt.Sprint(3*seconds, "s"))
				cmd := exec.CommandContext(t.Context(), built, args...)
				// A machine that is busy is not to be taken for a Redis that is away: what a node
				// decides alone for that comes on top of the bound.
				cmd.Env = append(servertest.PlainEnvironment(), "WEIR_STORE_DEADLINE=30s", "WEIR_STORE_TIMEOUT=30s")
				out, err := cmd.CombinedOutput()
				if exit, ok := errors.AsType[*exec.ExitError](err); ok {
					return exit.ExitCode(), out
				} else if err != nil {
					t.Fatal(err)
				}
				return 0, out
			}
			status, out := run()
			// On a busy machine too little may be asked in a window, which is then made longer.
			few := func() bool { return regexp.MustCompile(`window \d: 0 `).Match(out) || c.status != 0 && status == 0 }
			for end := patience.End(t); few() && (end.IsZero() || time.Now().Before(end)); status, out = run() {
				seconds *= 2
			}
			if few() || status != c.status || !strings.Contains(string(out), c.verdict) {
				t.Errorf("exit status %d\n%s", status, out)
			}
			if rows := regexp.MustCompile(`(?m)^ +\d+ +(whole|cut) .* \d+\.\d %`).FindAll(out, -1); len(
				rows) != 3*seconds || !bytes.Contains(rows[0], []byte("whole")) ||
				!bytes.Contains(rows[3*seconds/2], []byte("cut")) {
				t.Errorf("the table has %d rows\n%s", len(rows), out)
			}
			svg, err := os.ReadFile(plot)
			if err != nil {
				t.Fatal(err)
			}
			for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
				if _, err := d.Token(); err == io.EOF {
					break
				} else if err != nil {
					t.Fatalf("%s is no picture: %v", plot, err)
				}
			}
			if !bytes.Contains(svg, []byte("ap is cut off")) {
				t.Errorf("%s", svg)
			}
		})
	}
}
