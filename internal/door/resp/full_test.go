package resp

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/redis/rueidis"

	"github.com/weir-rl/weir"
)

const fullRules = `
domain: shop
limits:
  - {name: soft, when: {path: /soft}, allow: 1/hour, algorithm: sliding_log, throttle: {soft: 100%}}
  - {name: near, when: {path: /near}, allow: 5/hour, algorithm: sliding_log}
  - {name: slots, when: {path: /slots}, allow: 1 concurrent}
`

// With FULL a client learns all that other doors tell, and can give back its slot; without, nothing
// is otherwise.
func TestLimitFull(t *testing.T) {
	d := openDoor(t, fullRules, Options{Trusted: func(string) bool { return true }})
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{d.address}, ForceSingleClient: true,
		DisableCache: true})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ask := func(args ...string) []rueidis.RedisMessage {
		t.Helper()
		answer, err := client.Do(t.Context(), client.B().Arbitrary("WEIR.LIMIT",
			"shop").Args(args...).Build()).ToArray()
		if err != nil {
			t.Fatal(args, err)
		}
		return answer
	}
	// marks spells what stands behind the six: soft, near, whether there is an id, and how many
	// slots.
	marks := func(answer []rueidis.RedisMessage) string {
		t.Helper()
		if len(answer) != 11 {
			t.Fatalf("%d parts: %v", len(answer), answer)
		}
		allowed, _ := answer[0].AsInt64()
		soft, _ := answer[6].AsInt64()
		near, _ := answer[7].AsInt64()
		id, _ := answer[8].ToString()
		if id != "" {
			if _, err := weir.ParseDecisionID(id); err != nil {
				t.Error(err)
			}
		}
		slots, _ := answer[9].AsStrSlice()
		return fmt.Sprintf("%d soft=%d near=%d id=%v slots=%d", allowed, soft, near, id != "", len(slots))
	}
	for i, c := range []struct{ path, want string }{
		{"/soft", "1 soft=0 near=1 id=false slots=0"},
		{"/soft", "1 soft=1 near=1 id=false slots=0"},
		{"/soft", "0 soft=0 near=0 id=true slots=0"},
		{"/near", "1 soft=0 near=0 id=false slots=0"},
		{"/nothing", "1 soft=0 near=0 id=false slots=0"},
	} {
		if got := marks(ask("1", "path", c.path, "full")); got != c.want {
			t.Errorf("%d: %s: %s, want %s", i, c.path, got, c.want)
		}
	}
	if got := len(ask("1", "path", "FULL")); got != 6 { // a value
		t.Errorf("the value FULL gives %d parts", got)
	}
	held := ask("1", "path", "/slots", "FULL")
	if got := marks(held); got != "1 soft=0 near=1 id=false slots=1" {
		t.Fatal(got)
	}
	if got := marks(ask("1", "path", "/slots", "FULL")); !strings.HasPrefix(got, "0 ") {
		t.Fatalf("a second slot: %s", got)
	}
	slots, _ := held[9].AsStrSlice()
	for i, want := range []int64{1, 0} {
		if got, err := client.Do(t.Context(), client.B().Arbitrary("WEIR.RELEASE", slots[0]).Build()).AsInt64(); err != nil || got != want {
			t.Errorf("release %d: %d %v", i+1, got, err)
		}
	}
	if got := marks(ask("1", "path", "/slots", "FULL")); !strings.HasPrefix(got, "1 ") {
		t.Errorf("after the release: %s", got)
	}
	if got, err := client.Do(t.Context(), client.B().Arbitrary("WEIR.RELEASE", "nonsense").Build()).AsInt64(); err != nil || got != 0 {
		t.Errorf("nonsense: %d %v", got, err)
	}
}

// redis-cli prints the five more, and gives a slot back.
func TestLimitFullByCLI(t *testing.T) {
	cli, err := exec.LookPath("redis-cli")
	if err != nil {
		t.Skip("redis-cli is not installed; on Debian: apt-get install redis-tools")
	}
	d := openDoor(t, fullRules, Options{Trusted: func(string) bool { return true }})
	run := func(args ...string) string {
		t.Helper()
		port := netip.MustParseAddrPort(d.address).Port()
		out, err := exec.CommandContext(t.Context(), cli,
			append([]string{"-h", "127.0.0.1", "-p", fmt.Sprint(port)}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return strings.TrimSpace(string(out))
	}
	lines := strings.Split(run("WEIR.LIMIT", "shop", "1", "path", "/slots", "FULL"), "\n")
	slot := lines[len(lines)-2]
	if got := run("WEIR.RELEASE", slot); got != "1" {
		t.Errorf("released %q of %q: %s", slot, lines, got)
	}
}

// Strangers give nothing back.
func TestReleaseNeedsTrust(t *testing.T) {
	d := openDoor(t, fullRules, Options{})
	if got := d.dial(t).do("WEIR.RELEASE", "x"); got != "-"+errRelease {
		t.Error(got)
	}
}
