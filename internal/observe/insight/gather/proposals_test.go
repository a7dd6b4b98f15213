//go:build !race

package gather

import (
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/insight/snapshot"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/scripted"
)

// watched lets a scripted world go on behind a limiter, and calls look after each judgement.
func watched(t *testing.T, s *scripted.Script, seed uint64, o Options, look func(b *bench, after time.Duration)) {
	t.Helper()
	world := s.NewWorld(seed, false)
	o.Seed, o.Known, o.Text = seed+1, []string{"user"}, func(string) string { return s.Rules }
	b := startBench(t, o, time.UnixMicro(scripted.Beginning), "", s.Rules)
	until := func(at int64) {
		for at >= (b.µs.Load()/1e6+1)*1e6 { // as Run does, if more seldom
			b.µs.Store((b.µs.Load()/1e6 + 1) * 1e6)
			if minute := b.gather(true); minute || b.unjudged() {
				b.judge()
				look(b, time.Duration(b.µs.Load()-scripted.Beginning)*time.Microsecond)
			}
		}
		b.µs.Store(at)
	}
	world.Send = func(r *scripted.Request) (allowed bool, retry time.Duration) {
		until(r.At)
		q := weir.Request{Attributes: attributesOf(r)}
		if b.send(q) {
			b.limiter.Phases().Answered(&q, &b.d, weir.Answer{Status: r.Status})
		} else {
			retry, _ = b.d.Retry()
		}
		select {
		case <-b.woken:
			b.gather(false)
		default:
		}
		return b.d.Allowed, retry
	}
	world.Run()
	until(world.End)
}

var proposedRate = regexp.MustCompile(`^(\d+)/min would refuse`)

// proposed returns the limit that the verdicts on a rule propose to raise it to; "" if they propose
// none.
func proposed(b *bench, rule string) (limit string) {
	for _, state := range b.rules {
		if state.name != rule {
			continue
		}
		for _, v := range state.verdicts {
			if v.Proposal == nil {
				continue
			}
			m := proposedRate.FindStringSubmatch(v.Proposal.Sentence)
			if m == nil && (v.Proposal.Patch != "" || strings.Contains(v.Proposal.Sentence, "/min")) {
				b.t.Errorf("%s has a proposal of another kind: %+v", rule, v.Proposal)
			}
			if m != nil {
				limit = m[1]
			}
		}
	}
	return limit
}

// moves are the instants at which a proposal changed, and what it was from then on.
type moves struct {
	at   []time.Duration
	what []string // "" is none
}

func (m *moves) last() string { return m.what[len(m.what)-1] }

func (m *moves) note(after time.Duration, what string) {
	if len(m.what) == 0 || m.last() != what {
		m.at, m.what = append(m.at, after), append(m.what, what)
	}
}

func (m *moves) String() string {
	var list []string
	for i, what := range m.what {
		if what == "" {
			what = "none"
		}
		list = append(list, fmt.Sprintf("%s from %v on", what, m.at[i].Round(time.Second)))
	}
	return strings.Join(list, ", ")
}

// A number is proposed when it has stayed for an hour, and so it moves at most once an hour; two
// rules that see the same requests propose the same at each moment.
func TestProposalsStay(t *testing.T) {
	lasts := effort.Of(3*time.Hour, 24*time.Hour)
	for seed := range effort.Of(uint64(2), 4) {
		t.Run(fmt.Sprint("seed_", seed), func(t *testing.T) {
			t.Parallel()
			var m moves
			watched(t, scripted.Eager(lasts), seed, Options{}, func(b *bench, after time.Duration) {
				m.note(after, proposed(b, "search"))
				if too := proposed(b, "search-too"); too != m.last() {
					t.Fatalf("after %v one rule proposes %q, and one that sees the same %q", after, m.last(), too)
				}
			})
			t.Logf("over %v: %s", lasts, &m)
			proposedAt := time.Duration(0)
			for i, what := range m.what {
				if what == "" {
					continue
				}
				if m.at[i] < proposedAt+time.Hour {
					t.Errorf("%s is proposed after %v", what, m.at[i])
				}
				proposedAt = m.at[i]
			}
			if proposedAt == 0 {
				t.Error("nothing is ever proposed")
			}
		})
	}
}

// A ring of addresses that behave alike never raises a limit, whatever they do and however many
// they are. Good clients beside it do, and as far as they need.
func TestRingsRaiseNothing(t *testing.T) {
	for _, addresses := range []int{3, 40, 1000} {
		for _, polite := range []bool{false, true} {
			for _, good := range []bool{false, true} {
				t.Run(fmt.Sprintf("%d/polite_%t/good_%t", addresses, polite, good), func(t *testing.T) {
					if addresses > 40 {
						effort.Long(t, "a thousand addresses ask for two hours")
					}
					t.Parallel()
					var m moves
					var first string
					watched(t, scripted.Ring(addresses, polite, good, 2*time.Hour), 1, Options{},
						func(b *bench, after time.Duration) {
							m.note(after, proposed(b, "signup"))
							if list := b.rules[0].verdicts; len(list) > 0 {
								first = list[0].Verdict
							}
							if what := m.last(); what != "" && (!good || what != "8") {
								t.Fatalf("after %v %s is proposed: %+v", after, what, b.rules[0].verdicts)
							}
						})
					t.Logf("%s; %s", &m, first)
					if good && addresses <= 40 && m.last() != "8" {
						t.Errorf("%s, and good clients need 7", &m)
					}
					if !good && !polite && first != insight.Ignored {
						t.Errorf("a ring that knocks is %s first", first)
					}
				})
			}
		}
	}
}

// Rules that see the same requests know the same of them, also where only some can be looked at.
func TestTwinsKnowTheSame(t *testing.T) {
	b := newBench(t, Options{Known: []string{"user"}}, `
domain: shop
limits:
  - { name: one, per: [user], allow: 1000/min }
  - { name: two, per: [user], allow: 1000/min }
`)
	for range 100 {
		for i := range 20 * 30 {
			b.ask(fmt.Sprint("u", i%30))
			if i%10 == 0 {
				b.gather(false)
			}
		}
		b.pass(100 * time.Millisecond)
	}
	s := b.Snapshot(snapshot.Want{Samples: true, Top: true})
	one, two := s.Facts(0), s.Facts(1)
	if b.Thinned() == 0 {
		t.Fatal("each decision was looked at")
	}
	if len(one.RefusedSample) != 30 || !reflect.DeepEqual(one.Sample, two.Sample) ||
		!reflect.DeepEqual(one.RefusedSample, two.RefusedSample) {
		t.Errorf("%+v\n%+v", one.RefusedSample, two.RefusedSample)
	}
}
