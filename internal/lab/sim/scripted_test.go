package sim

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/weir-rl/weir/internal/lab/accesslog"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/insight/judge"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/scripted"
)

// replayed is a scripted world behind a replay. What is known of the world is the truth that Judge
// is told.
type replayed struct {
	*scripted.World
	t       testing.TB
	replay  replay
	rule    string            // the judged one
	clients map[uint64]*truth // by hash of the judged rule's key
	minutes []judge.Minute
	keys    map[uint64]int // admitted in this minute, by key
}

// truth is what became of one client of the judged rule.
type truth struct {
	episodes insight.Episodes
	until    int64 // told to wait until then; 0 for nothing
	knocked  bool  // came before that
}

// note takes in a request. A client that knocks has one episode, however often it knocks.
func (c *truth) note(at int64, refused bool, retryAfter int64) {
	begins := refused
	switch {
	case c.until == 0:
	case at >= c.until:
		if !c.knocked {
			c.episodes.Obeyed++
		}
		c.until = 0
	default:
		if !c.knocked {
			c.knocked = true
			c.episodes.Early++
		}
		if begins = false; refused {
			c.until = at + retryAfter
		} else {
			c.until = 0
		}
	}
	if begins {
		c.knocked, c.until = false, at+retryAfter
	}
}

func newReplayed(t testing.TB, s *scripted.Script, seed uint64, half bool) *replayed {
	w := &replayed{World: s.NewWorld(seed, half), t: t, rule: s.Judged, clients: map[uint64]*truth{},
		keys: map[uint64]int{}}
	w.Send = w.send
	w.replay = replay{clients: newTally(clientBound), paths: newTally(pathBound)}
	w.replay.requests = w.replay.timeline.column()
	set := load(t, s.Rules)
	if err := w.replay.addSet(0, RuleSet{Name: "rules", Domain: set.Domains()[0], Set: set, Texts: map[string]string{"rules.yaml": s.Rules}}); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *replayed) send(r *scripted.Request) (allowed bool, retry time.Duration) {
	e := accesslog.Entry{Time: r.At, Fields: []accesslog.Field{{Name: "ip", Value: []byte(r.IP)},
		{Name: "method", Value: []byte("GET")},
		{Name: "path", Value: []byte(r.Path)}, {Name: "status", Value: fmt.Append(nil, r.Status)}}}
	if r.User != "" {
		e.Fields = append(e.Fields, accesslog.Field{Name: "user", Value: []byte(r.User)})
	}
	if err := w.replay.step(&e); err != nil {
		w.t.Fatal(err)
	}
	d := &w.replay.sets[0].decision
	m := w.minute(r.At)
	refused := false
	for i := range d.Limits {
		if d.Limits[i].Window.Rule.Name != w.rule {
			continue
		}
		if i == 0 || d.Limits[i-1].Window.Rule.Name != w.rule {
			m.Met++
		}
		refused = refused || d.Refuses(&d.Limits[i])
	}
	for i := range d.Limits {
		if d.Limits[i].Window.Rule.Name != w.rule {
			continue
		}
		hash := xxhash.Sum64(d.Matches.Hits[i].Key)
		c := w.clients[hash]
		if c == nil {
			c = &truth{}
			w.clients[hash] = c
		}
		c.note(r.At, refused, d.RetryAfter)
		if refused {
			m.Refused++
		}
		w.keys[hash] += 0
		if d.Allowed {
			m.Admitted++
			w.keys[hash]++
		}
		break
	}
	after, _ := d.Retry()
	return d.Allowed, after
}

// minute returns the minute of an instant.
func (w *replayed) minute(at int64) *judge.Minute {
	t := at / 60e6 * 60
	if n := len(w.minutes); n == 0 || w.minutes[n-1].T != t {
		w.endMinute()
		w.minutes = append(w.minutes, judge.Minute{T: t, Saturated: w.Saturated(at)})
	}
	return &w.minutes[len(w.minutes)-1]
}

func (w *replayed) endMinute() {
	if len(w.minutes) == 0 {
		return
	}
	m := &w.minutes[len(w.minutes)-1]
	m.Keys = float64(len(w.keys))
	var counts []int
	for _, n := range w.keys {
		counts = append(counts, n)
	}
	slices.Sort(counts)
	top := max(len(counts)/100, 1)
	sum := 0
	for _, n := range counts[max(len(counts)-top, 0):] {
		sum += n
	}
	m.TopKeys, m.TopShare = float64(top), float64(sum)/float64(max(m.Admitted, 1))
	clear(w.keys)
}

// run lets the world go on until its end, and returns the facts of the judged rule.
func (w *replayed) run() *judge.Facts {
	w.Run()
	w.endMinute()
	x := w.replay.sets[0]
	defer x.engine.Close()
	w.replay.from, w.replay.to = scripted.Beginning, w.End
	for r, tally := range x.tallies {
		if r.Name != w.rule {
			continue
		}
		f := tally.finish(&w.replay, x.Texts[r.Pos.File])
		f.Replay, f.Minutes = false, w.minutes
		for hash, c := range w.clients {
			f.Episodes.Obeyed += c.episodes.Obeyed
			f.Episodes.Early += c.episodes.Early
			if c.until > 0 && !c.knocked {
				f.Episodes.GaveUp++
			}
			for _, sample := range [][]judge.KeyFacts{f.Sample, f.RefusedSample} {
				for i := range sample {
					if sample[i].Hash == hash {
						sample[i].Episodes = c.episodes
					}
				}
			}
		}
		return f
	}
	w.t.Fatalf("there is no rule %s", w.rule)
	return nil
}

// Each verdict is given if it is deserved, and alone. It is not given at half of what it takes.
// This holds in each of some worlds. TestVerdictsOfManyWorlds has more of them.
func TestVerdictsOfScriptedTraffic(t *testing.T) {
	testVerdicts(t, effort.Of(uint64(1), 10))
}

func testVerdicts(t *testing.T, worlds uint64) {
	for i := range scripted.Scripts {
		s := &scripted.Scripts[i]
		t.Run(s.Verdict, func(t *testing.T) {
			t.Parallel()
			for _, half := range []bool{false, true} {
				want := s.Verdict
				if half {
					want = s.Quiet
				}
				want, unsure := strings.CutSuffix(want, "/low")
				for seed := range worlds {
					f := newReplayed(t, s, seed, half).run()
					list := judge.Judge(f, judge.Thresholds{})
					alarming := 0
					for _, v := range list {
						if insight.Alarming(v.Verdict) {
							alarming++
						}
					}
					if len(list) == 0 || list[0].Verdict != want || unsure && list[0].Confidence != insight.Low ||
						alarming > 1 || !insight.Alarming(want) && alarming > 0 {
						t.Fatalf("seed %d, half %t: want %s, got %+v", seed, half, want, list)
					}
					if seed == 0 {
						t.Logf("half %t: %s %+v", half, list[0].Sentence, list[0].Proposal)
					}
				}
			}
		})
	}
}
