package judge

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/observe/insight"
	"pgregory.net/rapid"
)

// judgedFor judges facts at the beginning and after each of some minutes, in which one request came
// each, and returns the last verdicts.
func judgedFor(f *Facts, minutes int) (list []insight.Verdict) {
	var m Memory
	for range minutes + 1 {
		list, m = m.Judge(f, Thresholds{})
		f.To, f.Met = f.To.Add(time.Minute), f.Met+1
	}
	return list
}

// strictly returns facts of a rule that refuses good clients, who ask for so much at most.
func strictly(most int64) *Facts {
	f := &Facts{Mode: "enforce", Per: []string{"user"},
		Windows: []WindowFacts{{Rate: "20/min", Limit: 20, Window: time.Minute}},
		From:    time.Unix(1e9, 0), To: time.Unix(1e9+60, 0), Met: 2000, Known: 2000, Refused: 60, Alone: 60, Keys: 10,
		KeysRefused: 4, OKShare: -1}
	for i := range 4 {
		f.RefusedSample = append(f.RefusedSample,
			KeyFacts{Hash: uint64(i), Known: true, Refused: 15, OK: -1, Demand: []int64{most - int64(i)}})
	}
	return f
}

// proposedLimit returns the number that a strict verdict proposes; "" if it proposes none.
func proposedLimit(list []insight.Verdict) string {
	for _, v := range list {
		if v.Verdict == insight.Strict && v.Proposal != nil {
			limit, _, _ := strings.Cut(v.Proposal.Sentence, "/min would refuse")
			return limit
		}
	}
	return ""
}

// A limit is proposed when the same one, or the next round number, has held for an hour in which
// requests came; and stays for as long as what would do is no further away than that.
func TestSteady(t *testing.T) {
	f := strictly(33)
	var m Memory
	var list []insight.Verdict
	look := func(after time.Duration, requests uint64, most int64) string {
		for i := range f.RefusedSample {
			f.RefusedSample[i].Demand[0] = most - int64(i)
		}
		f.To, f.Met, f.Known = f.To.Add(after), f.Met+requests, f.Known+requests
		list, m = m.Judge(f, Thresholds{})
		return proposedLimit(list)
	}
	looks := func(n int, after time.Duration, requests uint64, most ...int64) (limits []string) {
		for i := range n {
			if limit := look(after, requests, most[i%len(most)]); len(limits) == 0 || limits[len(limits)-1] != limit {
				limits = append(limits, limit)
			}
		}
		return limits
	}
	for _, c := range []struct {
		what     string
		n        int
		after    time.Duration
		requests uint64
		most     []int64
		want     []string
	}{
		{"an hour begins", 60, time.Minute, 1, []int64{33}, []string{""}},
		{"and is over", 1, time.Minute, 1, []int64{33}, []string{"40"}},
		{"one round number more or less", 600, time.Minute, 1, []int64{33, 41, 29}, []string{"40"}},
		{"two more", 1, time.Minute, 1, []int64{51}, []string{""}},
		{"two apart again and again", 200, time.Minute, 1, []int64{51, 40}, []string{""}},
		{"on two neighbours", 60, time.Minute, 1, []int64{51, 45}, []string{""}},
		{"for an hour: the larger one", 1, time.Minute, 1, []int64{45}, []string{"60"}},
		{"two less", 1, time.Minute, 1, []int64{31}, []string{""}},
		{"nobody asks", 600, time.Minute, 0, []int64{31}, []string{""}},
		{"one judgement a day says little", 5, 24 * time.Hour, 1, []int64{31}, []string{""}},
		{"six of them", 1, 24 * time.Hour, 1, []int64{31}, []string{"40"}},
		{"moving all the time", 500, time.Minute, 1, []int64{24, 31, 55}, []string{""}},
	} {
		if got := looks(c.n, c.after, c.requests, c.most...); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q: %+v", c.what, got, c.want, list)
		}
	}
	if v := list[0]; !strings.Contains(v.Sentence,
		"A change is proposed once the same one has held for an hour of requests.") {
		t.Errorf("%q does not say why nothing is proposed", v.Sentence)
	}
	look(time.Minute, 1, 55)
	look(12*time.Minute, 1, 55)
	if v := list[0]; !strings.HasSuffix(v.Sentence, "for an hour of requests; so far it has for 10 minutes.") {
		t.Errorf("%q does not say for how long it has held", v.Sentence)
	}
}

// The count of the requests that are judged falls at noon and at midnight, without a request.
func TestSteadyOverFewerRequests(t *testing.T) {
	f := strictly(33)
	var m Memory
	var list []insight.Verdict
	for range 120 {
		f.To, f.Met, f.Known = f.To.Add(time.Minute), f.Met-1, f.Known-1
		list, m = m.Judge(f, Thresholds{})
	}
	if got := proposedLimit(list); got != "" || list[0].Verdict != insight.Strict {
		t.Errorf("%q is proposed, though no request came: %+v", got, list)
	}
}

// A verdict at its bound comes and goes; what is proposed with it stays.
func TestSteadyOverGaps(t *testing.T) {
	f := strictly(33)
	var m Memory
	var list []insight.Verdict
	for minute := range 130 {
		f.To, f.Met, f.Known = f.To.Add(time.Minute), f.Met+1, f.Known+1
		f.Keys = 10
		away := minute >= 100 && minute%2 == 0
		if away {
			f.Known = 0
		}
		list, m = m.Judge(f, Thresholds{})
		if got := proposedLimit(list); (got == "40") != (minute >= 60 && !away) {
			t.Fatalf("minute %d: %q", minute, got)
		}
		f.Known = f.Met
	}
}

// Nothing is proposed to raise where nothing but conduct tells who is good, however long it lasts.
func TestConductRaisesNothing(t *testing.T) {
	f := strictly(33)
	f.Known = 0
	for i := range f.RefusedSample {
		k := &f.RefusedSample[i]
		k.Known, k.OK, k.Fill, k.Episodes = false, 1, 1.6, insight.Episodes{Obeyed: 9}
	}
	list := judgedFor(f, 200)
	if list[0].Verdict != insight.Strict || list[0].Confidence != insight.Low {
		t.Fatalf("%+v", list)
	}
	for _, v := range list {
		if v.Proposal != nil && (v.Proposal.Patch != "" || strings.ContainsAny(v.Proposal.Sentence, "0123456789")) {
			t.Errorf("%+v", v.Proposal)
		}
	}
}

// A log is over: what it shows is proposed at once.
func TestReplayIsSteady(t *testing.T) {
	f := strictly(33)
	f.Replay = true
	if got := proposedLimit(Judge(f, Thresholds{})); got != "40" {
		t.Errorf("%q", got)
	}
}

func TestNotches(t *testing.T) {
	for i := 1; i < len(notches); i++ {
		if a, b := notches[i-1], notches[i]; b <= a || i > 3 && 3*b > 4*a+1 {
			t.Errorf("%d after %d", b, a)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Float64Range(0, 1e17).Draw(t, "n")
		up, down := notchUp(n), notchDown(n)
		if float64(up) < n*(1-1e-12)-1e-6 || float64(down) > max(n*(1+1e-12), 1) ||
			notch(float64(up))-notch(float64(down)) > 1 {
			t.Fatalf("%v: %d and %d", n, down, up)
		}
		if notchUp(float64(up)) != up || notchDown(float64(up)) != up {
			t.Fatalf("%d is no round number", up)
		}
	})
}
