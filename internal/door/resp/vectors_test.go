package resp

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/patience"
)

// step is one command of a vector: at an instant after its beginning, and what is answered.
type step struct {
	at      time.Duration
	command string
	want    string
}

// vectors are answers of redis-cell and throttlecrab. Those at which Weir answers otherwise say so.
var vectors = []struct {
	name  string
	steps []step
}{
	{"a burst of 15 at 30 a minute", append(repeated(14, "CL.THROTTLE a 15 30 60", func(i int) string { return fmt.Sprintf("[0 16 %d -1 %d]", 15-i, 2+2*i) }),
		step{0, "CL.THROTTLE a 15 30 60", "[0 16 1 -1 30]"}, step{0, "CL.THROTTLE a 15 30 60", "[0 16 0 -1 32]"},
		step{0, "CL.THROTTLE a 15 30 60", "[1 16 0 2 32]"})},
	{"no burst", []step{
		{0, "CL.THROTTLE a 0 1 2", "[0 1 0 -1 2]"},
		{0, "CL.THROTTLE a 0 1 2", "[1 1 0 2 2]"},
		{2 * time.Second, "CL.THROTTLE a 0 1 2", "[0 1 0 -1 2]"},
	}},
	{"more than the burst", []step{{0, "CL.THROTTLE a 4 1 1 6", "[1 5 5 -1 0]"}}},
	{"a peek at a fresh key", []step{{0, "CL.THROTTLE a 4 1 1 0", "[0 5 5 -1 0]"}}},
	{"a peek at a key that is used up", []step{
		{0, "CL.THROTTLE a 4 1 1 5", "[0 5 0 -1 5]"},
		{0, "CL.THROTTLE a 4 1 1 1", "[1 5 0 1 5]"},
		{0, "CL.THROTTLE a 4 1 1 0", "[0 5 0 -1 5]"},
	}},
	{"parts of a second", []step{
		{0, "CL.THROTTLE a 2 10 1", "[0 3 2 -1 1]"},
		{0, "CL.THROTTLE a 2 10 1", "[0 3 1 -1 1]"},
		{0, "CL.THROTTLE a 2 10 1", "[0 3 0 -1 1]"},
		{0, "CL.THROTTLE a 2 10 1", "[1 3 0 1 1]"},
		{99600 * time.Microsecond, "CL.THROTTLE a 2 10 1", "[1 3 0 0 1]"},
		{100 * time.Millisecond, "CL.THROTTLE a 2 10 1", "[0 3 0 -1 1]"},
	}},
	{"no tokens at all", []step{{0, "CL.THROTTLE a -1 1 1", "[1 0 0 -1 0]"}, {0, "CL.THROTTLE a -1 1 1 0", "[0 0 0 -1 0]"}, {0, "CL.THROTTLE a -7 1 1 0", "[1 -6 0 -1 0]"}}},
	{"arguments of redis-cell", []step{
		{0, "CL.THROTTLE a 1 1", "-Cell error: Store error: Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]"},
		{0, "CL.THROTTLE a 1 1 1 1 1", "-Cell error: Store error: Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]"},
		{0, "CL.THROTTLE a abc 1 1", "-Cell error: Store error: Couldn't parse as integer: abc"},
		{0, "CL.THROTTLE a 1 1 1 9223372036854775808", "-Cell error: Store error: Couldn't parse as integer: 9223372036854775808"},
		{0, "CL.THROTTLE a 1 0 1", "-Cell error: Store error: Zero rates are not supported"},
		{0, "CL.THROTTLE a 1 1 0", "-Cell error: Store error: Zero rates are not supported"},
		{0, "CL.THROTTLE a 1 -1 1", "-Cell error: Store error: Negative rates are not supported"},
		{0, "CL.THROTTLE a 1 1 -60", "-Cell error: Store error: Negative rates are not supported"},
		{0, "cl.throttle a +1 +1 +1", "[0 2 1 -1 1]"},
	}},
	{"refunds", []step{
		{0, "CL.THROTTLE a 4 1 1 5", "[0 5 0 -1 5]"},
		{0, "CL.THROTTLE a 4 1 1 -2", "[0 5 2 -1 3]"},
		// redis-cell answers an error here, and may forget to expire the key
		{0, "CL.THROTTLE a 4 1 1 -9223372036854775808", "[0 5 5 -1 0]"},
		{0, "CL.THROTTLE a 4 1 1 -1", "[0 5 5 -1 0]"},
		{0, "CL.THROTTLE a 4 1 1 5", "[0 5 0 -1 5]"},
	}},
	// redis-cell overflows with all of these.
	{"the largest numbers", []step{
		{0, "CL.THROTTLE a 9223372036854775807 9223372036854775807 9223372036854775807 9223372036854775807", "[1 9223372036854775807 9223372036854775807 -1 0]"},
		{0, "CL.THROTTLE a 9223372036854775807 1 9223372036854775807", "[0 9223372036854775807 9223372036854775806 -1 31622400]"},
		{0, "CL.THROTTLE b 0 1 9223372036854775807", "[0 1 0 -1 31622400]"},
		{0, "CL.THROTTLE c 9 9223372036854775807 1", "[0 10 9 -1 0]"},
		{0, "CL.THROTTLE d -9223372036854775808 1 1", "[1 -9223372036854775807 0 -1 0]"},
	}},
	{"ten of a hundred a minute", []step{{0, "THROTTLE a 10 100 60", "[1 10 9 5 0]"}, {0, "THROTTLE b 10 100 60 5", "[1 10 5 7 0]"}}},
	{"three of ten a minute", []step{
		{0, "THROTTLE a 3 10 60", "[1 3 2 12 0]"},
		{0, "THROTTLE a 3 10 60", "[1 3 1 18 0]"},
		{0, "THROTTLE a 3 10 60", "[1 3 0 24 0]"},
		{0, "THROTTLE a 3 10 60", "[0 3 0 24 6]"},
		{0, "THROTTLE b 3 10 60 0", "[1 3 3 6 0]"},
		// throttlecrab truncates this to 0, and a client that comes back at once is refused again.
		{5500 * time.Millisecond, "THROTTLE a 3 10 60", "[0 3 0 18 1]"},
		{6 * time.Second, "THROTTLE a 3 10 60", "[1 3 0 24 0]"},
	}},
	// throttlecrab never limits this.
	{"a burst of one", []step{
		{0, "THROTTLE a 1 1 10", "[1 1 0 10 0]"},
		{0, "THROTTLE a 1 1 10", "[0 1 0 10 10]"},
		{10 * time.Second, "THROTTLE a 1 1 10", "[1 1 0 10 0]"},
	}},
	{"arguments of throttlecrab", []step{
		{0, "THROTTLE a 1 1", "-ERR wrong number of arguments for 'throttle' command"},
		{0, "THROTTLE a x 1 1", "-ERR invalid max_burst"},
		{0, "THROTTLE a 1 x 1", "-ERR invalid count_per_period"},
		{0, "THROTTLE a 1 1 x", "-ERR invalid period"},
		{0, "THROTTLE a 1 1 1 x", "-ERR invalid quantity"},
		{0, "THROTTLE a 1 1 1 -1", "-ERR negative quantity: -1"},
		{0, "THROTTLE a 0 1 1", "-ERR invalid rate limit parameters: max_burst, count_per_period and period must be above 0"},
		{0, "THROTTLE a 1 1 1 2", "[0 1 1 0 1]"},
		{0, "throttle a 9223372036854775807 9223372036854775807 9223372036854775807", "[1 9223372036854775807 9223372036854775806 9223372036854 0]"},
	}},
	{"both commands on one key", []step{
		{0, "CL.THROTTLE a 0 1 2", "[0 1 0 -1 2]"}, {0, "THROTTLE a 1 1 2", "[1 1 0 2 0]"}, {0, "CL.THROTTLE a 0 1 2", "[1 1 0 2 2]"}, {0, "THROTTLE a 1 1 2", "[0 1 0 2 2]"},
	}},
}

func repeated(n int, command string, want func(i int) string) []step {
	var steps []step
	for i := range n {
		steps = append(steps, step{0, command, want(i)})
	}
	return steps
}

// asking sends a command and returns the reply as client.reply does.
type asking func(t *testing.T, args []string) string

// TestVectors: the answers equal redis-cell's and throttlecrab's, in whatever way and protocol a
// client asks.
func TestVectors(t *testing.T) {
	d := openDoor(t, "", Options{Trusted: func(string) bool { return true }})
	clients := map[string]asking{"raw": rawClient(t, d), "rueidis, RESP3": rueidisClient(t, d, false),
		"rueidis, RESP2": rueidisClient(t, d, true)}
	if cli, err := exec.LookPath("redis-cli"); err != nil {
		t.Run("redis-cli",
			func(t *testing.T) { t.Skip("redis-cli is not installed; on Debian: apt-get install redis-tools") })
	} else {
		clients["redis-cli"] = redisCLI(cli, d)
	}
	for client, ask := range clients {
		t.Run(client, func(t *testing.T) {
			for _, v := range vectors {
				begun := d.clock.now()
				steps := v.steps
				if client == "redis-cli" { // which is started anew for each
					steps = steps[:min(len(steps), effort.Of(2, len(steps)))]
				}
				for i, s := range steps {
					d.clock.Store(begun + s.at.Microseconds())
					args := strings.Fields(s.command)
					args[1] = client + "/" + v.name + "/" + args[1] // its own keys
					want := s.want
					if strings.HasPrefix(client, "rueidis") {
						want = strings.Replace(want, "-ERR ", "-", 1) // it leaves that out
					}
					if got := ask(t, args); got != want {
						t.Errorf("%s, step %d: %s at %v: %s, want %s", v.name, i, s.command, s.at, got, want)
					}
				}
				d.clock.Store(begun)
			}
		})
	}
}

func rawClient(t *testing.T, d *served) asking {
	c := d.dial(t)
	return func(t *testing.T, args []string) string { return c.do(args...) }
}

func rueidisClient(t *testing.T, d *served, resp2 bool) asking {
	c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{d.address}, AlwaysRESP2: resp2,
		DisableCache: resp2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return func(t *testing.T, args []string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience.Left(t))
		defer cancel()
		list, err := c.Do(ctx, c.B().Arbitrary(args...).Build()).AsIntSlice()
		if err != nil {
			return "-" + err.Error()
		}
		return fmt.Sprint(list)
	}
}

func redisCLI(path string, d *served) asking {
	return func(t *testing.T, args []string) string {
		t.Helper()
		host, port, err := net.SplitHostPort(d.address)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience.Left(t))
		defer cancel()
		out, err := exec.CommandContext(ctx, path,
			append([]string{"-h", host, "-p", port, "--no-raw"}, args...)...).CombinedOutput()
		text := strings.TrimSpace(string(out))
		if err != nil && text == "" {
			t.Fatal(err)
		}
		if failure, ok := strings.CutPrefix(text, "(error) "); ok {
			return "-" + failure
		}
		var list []string
		for line := range strings.Lines(text) {
			_, value, ok := strings.Cut(line, ") (integer) ")
			if _, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64); !ok || err != nil {
				t.Fatalf("redis-cli says %q", text)
			}
			list = append(list, strings.TrimSpace(value))
		}
		return "[" + strings.Join(list, " ") + "]"
	}
}
