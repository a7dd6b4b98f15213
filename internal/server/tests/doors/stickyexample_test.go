//go:build unix

package doors

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/envoytest"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// The command of examples/sticky/README.md, in small: a balancer before nodes that share nothing,
// of which one dies.
func TestStickyExample(t *testing.T) {
	t.Parallel()
	program := servertest.BuildProgram(t)
	root := servertest.RepositoryRoot(t)
	readme := servertest.Blocks(t, filepath.Join(root, "examples", "sticky", "README.md"))[0].Text
	command := strings.Fields(readme)
	if len(command) != 3 || command[0] != "go" || command[1] != "run" {
		t.Fatalf("the README says to run %q", readme)
	}
	built := filepath.Join(t.TempDir(), "sticky")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-C", root, "-o", built, command[2]).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	row := regexp.MustCompile(`(?m)^ +\d+ +(\d+) +(\d+) +(\d+) +\d+ +(\d+) +(\d+) +\S+(  a node dies)?$`)
	for _, c := range []struct {
		name    string
		balance func(t *testing.T) []string
	}{
		{"nginx", func(t *testing.T) []string { return []string{"-program", nginxPath(t)} }},
		{"envoy", func(t *testing.T) []string { return []string{"-program", envoytest.Program(t)} }},
		{"any", func(t *testing.T) []string { return []string{"-balancer", "nginx", "-program", nginxPath(t), "-any"} }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			balance := c.balance(t)
			seconds := 3 // of a window
			run := func() (rows [][]string, out []byte) {
				args := append(slices.Clone(balance), "-weir", program, "-users", "10", "-limit", "8", "-window",
					fmt.Sprint(seconds, "s"),
					"-duration", fmt.Sprint(2*seconds, "s"), "-dies", fmt.Sprint(seconds+1, "s"), "-back", "0")
				if c.name != "any" {
					args = append(args, "-balancer", c.name)
				}
				cmd := exec.CommandContext(t.Context(), built, args...)
				cmd.Env = servertest.PlainEnvironment()
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
				rows = row.FindAllStringSubmatch(string(out), -1)
				if len(rows) != 2 || rows[0][6] != "" || rows[1][6] == "" {
					t.Fatalf("the table:\n%s", out)
				}
				return rows, out
			}
			rows, out := run()
			// On a busy machine too little may be asked in a window, which is then made longer.
			few := func() bool {
				return rows[0][1] == "0" || rows[1][1] == "0" || c.name == "any" && strings.TrimSpace(rows[0][3]) == "0"
			}
			for end := patience.End(t); few() && (end.IsZero() || time.Now().Before(end)); rows, out = run() {
				seconds *= 2
			}
			for _, r := range rows {
				n := func(i int) int { v, _ := strconv.Atoi(r[i]); return v }
				admitted, tooMany, most := n(1), n(3), n(4)
				// On each of three nodes a user has 8. Admitted are at most 8 of each user, and
				// those beyond.
				if admitted == 0 || most > 3*8 || admitted > 10*8+tooMany {
					t.Errorf("%s", out)
				}
			}
			if c.name == "any" && strings.TrimSpace(rows[0][3]) == "0" {
				t.Errorf("users on any node do not exceed their limit:\n%s", out)
			}
		})
	}
}
