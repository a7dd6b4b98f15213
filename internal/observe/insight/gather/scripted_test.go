//go:build !race

package gather

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/scripted"
	"github.com/weir-rl/weir/rule"
)

// lives lets a scripted world go on behind a limiter that a Collector watches, and returns the
// verdicts on the script's rule. Each request of a client comes times over, up to the first that is
// refused, and the limits are as many times as large; see thinned.
func lives(t *testing.T, s *scripted.Script, seed uint64, half bool, times int, thin uint8) []insight.Verdict {
	t.Helper()
	text := allowed.ReplaceAllStringFunc(s.Rules, func(allow string) string {
		n, _ := strconv.Atoi(allowed.FindStringSubmatch(allow)[1])
		return "allow: " + strconv.Itoa(n*times) + "/min"
	})
	world, saturated := s.NewWorld(seed, half), false
	b := startBench(t, Options{
		Seed: seed + 1, Known: []string{"user"}, Text: func(string) string { return text },
		Saturated: func() (string, bool) { return "cpu", saturated },
	}, time.UnixMicro(scripted.Beginning), "", text)
	until := func(at int64) {
		for at >= (b.µs.Load()/1e6+1)*1e6 { // as Run does, if more seldom
			b.µs.Store((b.µs.Load()/1e6 + 1) * 1e6)
			saturated = world.Saturated(b.µs.Load())
			b.gather(true)
			thinned(b, thin)
		}
		b.µs.Store(at)
	}
	thinned(b, thin)
	world.Send = func(r *scripted.Request) (allowed bool, retry time.Duration) {
		until(r.At)
		for range times {
			q := weir.Request{Attributes: attributesOf(r)}
			if !b.send(q) {
				retry, _ = b.d.Retry()
				break
			}
			b.limiter.Phases().Answered(&q, &b.d, weir.Answer{Status: r.Status})
			select {
			case <-b.woken:
				b.gather(false)
			default:
			}
		}
		return b.d.Allowed, retry
	}
	world.Run()
	until(world.End)
	b.gather(true)
	b.judge()
	for _, state := range b.rules {
		if state.name == s.Judged {
			return state.verdicts
		}
	}
	t.Fatalf("there is no rule %s", s.Judged)
	return nil
}

// thinned makes a Collector look at no more than one event in 2^thin. Events of refused keys are
// left out: there are at most 256 such keys, and each is thinned by itself to 64 events a second,
// so that together they are never thinned by more than 16.
func thinned(b *bench, thin uint8) {
	for _, g := range []*governor{&b.pace.refused, &b.pace.quiet, &b.pace.keys} {
		g.power = max(g.power, thin)
	}
	b.storePace()
}

var allowed = regexp.MustCompile(`allow: (\d+)/min`)

func attributesOf(r *scripted.Request) rule.Pairs {
	path, query, _ := strings.Cut(r.Path, "?")
	list := rule.Pairs{{Name: "ip", Value: r.IP}, {Name: "method", Value: "GET"}, {Name: "path", Value: path}}
	if name, value, ok := strings.Cut(query, "="); ok {
		list = append(list, rule.Pair{Name: "query." + name, Value: value})
	}
	if r.User != "" {
		list = append(list, rule.Pair{Name: "user", Value: r.User})
	}
	return list
}

// A server that runs comes to the verdict that each script deserves, and to it alone; also where a
// flood of 64 times as much makes it look at one event in 64. TestVerdictsLiveInManyWorlds has more
// worlds. The race detector would find nothing in one goroutine.
func TestVerdictsLive(t *testing.T) { testVerdictsLive(t, 1) }

func testVerdictsLive(t *testing.T, worlds uint64) {
	for i := range scripted.Scripts {
		s := &scripted.Scripts[i]
		for name, c := range map[string]struct {
			times int
			thin  uint8
		}{"whole": {1, 0}, "thinned": {64, 6}} {
			t.Run(s.Verdict+"_"+name, func(t *testing.T) {
				if worlds == 1 && s.Verdict != insight.Works {
					effort.Long(t, "lets a day of traffic go by for each verdict")
				}
				t.Parallel()
				for _, half := range []bool{false, true} {
					want := s.Verdict
					if half {
						want = s.Quiet
					}
					want, unsure := strings.CutSuffix(want, "/low")
					if c.times > 1 && (want == insight.TooEarly || unsure) {
						continue // of so many requests enough is known
					}
					times := c.times
					if s.Verdict == insight.Ignored {
						times = 1 // to wait for a 64th of the time is to obey
					}
					for seed := range worlds {
						list := lives(t, s, seed, half, times, c.thin)
						alarming := 0
						for _, v := range list {
							if insight.Alarming(v.Verdict) {
								alarming++
							}
						}
						if len(list) == 0 || list[0].Verdict != want || unsure && list[0].Confidence != insight.Low ||
							alarming > 1 || !insight.Alarming(want) && alarming > 0 {
							t.Errorf("seed %d, half %t: want %s, got %+v", seed, half, want, list)
						}
					}
				}
			})
		}
	}
}
