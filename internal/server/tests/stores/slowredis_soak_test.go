//go:build soak && unix

package stores

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// hammerSetting is one of how long and how hard the hammer runs.
func hammerSetting(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil && n >= 0 {
		return n
	}
	return otherwise
}

// busy lets the machine have more to do than processors.
func busy(t *testing.T, loops int) {
	for range loops {
		cmd := exec.Command("sh", "-c", "while :; do :; done")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	}
}

// TestHammerSoak: nothing is admitted beyond a limit, however little of the machine is left for
// Redis and the servers. Where that is so little that Redis does not answer within the longest
// deadline, what goes beyond is counted. WEIR_HAMMER_ROUNDS says how often, WEIR_HAMMER_SIZE how
// large the limits are, WEIR_HAMMER_BUSY with how many busy loops beside.
func TestHammerSoak(t *testing.T) {
	redis := redistest.Start(t)
	h := startHammer(t, redis, hammerSetting("WEIR_HAMMER_SIZE", hammerSize))
	rounds := hammerSetting("WEIR_HAMMER_ROUNDS", 10)
	busy(t, hammerSetting("WEIR_HAMMER_BUSY", 2))
	for range rounds {
		h.round()
	}
	t.Logf("%d rounds\n%s", rounds, h.told())
	missed := 0
	for _, n := range h.nodes {
		missed += n.Number("weir_store_deadline_misses_total")
	}
	if missed > 0 {
		t.Logf("the machine was too busy for the longest deadline, %d times", missed)
		h.accounted()
	} else if h.over() > 0 {
		t.Errorf("%d were admitted beyond limits", h.over())
	}
}

// TestHammerPausesSoak: while Redis stands still for 20 to 200 ms again and again, what goes beyond
// limits is within the bound of docs/operating/redis.md, and all of it is counted as excess.
func TestHammerPausesSoak(t *testing.T) {
	for name, args := range map[string][]string{"by default": nil, "waiting 20 ms": {"--store-max-deadline=20ms"}} {
		t.Run(name, func(t *testing.T) {
			redis := redistest.Start(t)
			h := startHammer(t, redis, hammerSetting("WEIR_HAMMER_SIZE", hammerSize), args...)
			h.calls = 4 * h.size // more than the bound
			rounds := hammerSetting("WEIR_HAMMER_ROUNDS", 10)
			busy(t, hammerSetting("WEIR_HAMMER_BUSY", 2))
			stop, stopped := make(chan struct{}), make(chan struct{})
			pid := redis.PID()
			go func() {
				defer close(stopped)
				for {
					select {
					case <-stop:
						return
					case <-time.After(time.Duration(20+rand.IntN(400)) * time.Millisecond):
					}
					_ = syscall.Kill(pid, syscall.SIGSTOP)
					time.Sleep(time.Duration(20+rand.IntN(180)) * time.Millisecond)
					_ = syscall.Kill(pid, syscall.SIGCONT)
				}
			}()
			for range rounds {
				h.round()
			}
			close(stop)
			<-stopped
			t.Logf("%d rounds\n%s", rounds, h.told())
			h.accounted()
			for k, c := range h.counts {
				if c.most > 2*h.limit(k)+hammerNodes {
					t.Errorf("%v: %d were admitted of a limit of %d", k, c.most, h.limit(k))
				}
			}
		})
	}
}

// accounted checks that what went beyond limits is counted as excess, when nothing is open any
// more.
func (h *hammer) accounted() {
	h.t.Helper()
	for _, n := range h.nodes {
		servertest.Eventually(h.t, "nothing is open", func() bool { _, _, open := n.Fates(); return open == 0 })
	}
	excess, lost := 0, 0
	for _, n := range h.nodes {
		_, e, _ := n.Fates()
		excess += e
		lost += n.Number(`weir_store_fallback_units_total{outcome="lost"}`)
	}
	h.t.Logf("an excess of %d, %d lost", excess, lost)
	over := map[string]int{}
	for k, c := range h.counts {
		over[k.algorithm] += c.over
	}
	delete(over, "slots")  // they are not counted as units
	delete(over, "margin") // it is held to a bound of its own
	counted := h.excess()
	for rule, beyond := range over {
		// An answer that never comes, on a machine that stands still for a second, may hide some.
		if beyond > counted[rule]+lost {
			h.t.Errorf("%s: %d went beyond the limit, %d are counted, and %d lost of all", rule, beyond, counted[rule],
				lost)
		}
	}
}

// excess is what the nodes say that each rule has admitted beyond its limit.
func (h *hammer) excess() map[string]int {
	h.t.Helper()
	units := map[string]int{}
	told := regexp.MustCompile(`(?m)^weir_store_excess_units_total{domain="doors",rule="(\w+)"} (\d+)$`)
	for _, n := range h.nodes {
		_, _, body := servertest.Get(h.t, n.Admin+"/metrics")
		for _, m := range told.FindAllStringSubmatch(body, -1) {
			u, err := strconv.Atoi(m[2])
			if err != nil {
				h.t.Fatal(err)
			}
			units[m[1]] += u
		}
	}
	return units
}
