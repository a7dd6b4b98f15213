package gather

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/insight/snapshot"
)

// The episodes of a rule are counted as they end: they never fall, however many keys the sample
// leaves and however long ago they came, and not when the rules are loaded anew. A rule that
// changes begins anew.
func TestEpisodesAreCounted(t *testing.T) {
	const rules = "domain: shop\nlimits: [{name: search, per: [user], algorithm: fixed_window, allow: %d/min}]"
	b := newBench(t, Options{}, fmt.Sprintf(rules, 10))
	told := func() (e insight.Episodes) {
		for _, j := range b.Judged() {
			if j.Rule == "search" {
				e = j.Episodes
			}
		}
		return e
	}
	last := insight.Episodes{}
	grown := func(when string) {
		now := told()
		if now.Obeyed < last.Obeyed || now.Early < last.Early || now.GaveUp < last.GaveUp {
			t.Fatalf("%s: %+v, and %+v before", when, now, last)
		}
		last = now
	}
	// Always new clients, each of which knocks once; and one client that comes when it is told.
	early, obeyed := uint64(0), uint64(0)
	for minute := range 60 {
		for i := range 20 {
			for range 12 {
				b.ask(fmt.Sprint("user-", minute, "-", i))
				b.gather(false)
			}
			early++
			b.pass(time.Second)
		}
		for range 11 {
			b.ask("ada")
		}
		if minute > 0 {
			obeyed++
		}
		b.pass(40 * time.Second)
		grown(fmt.Sprint("minute ", minute))
		// So far all of them are in the sample.
		if minute == 9 && last != (insight.Episodes{Early: early, Obeyed: obeyed}) {
			t.Errorf("%+v; %d knocked, %d came when told", last, early, obeyed)
		}
	}
	r := b.Snapshot(snapshot.Want{}).Rules[0].Summary.Episodes
	if last.Early <= r.Early || last.Early > early || r.Early == 0 {
		t.Errorf("%+v; %d knocked, and of these %d are in the sample", last, early, r.Early)
	}
	for hour := range 40 { // until no sample knows of them
		b.µs.Add(time.Hour.Microseconds())
		b.gather(true)
		b.judge()
		grown(fmt.Sprint("hour ", hour))
	}
	if n := b.Snapshot(snapshot.Want{}).Rules[0].Summary.Episodes; n != (insight.Episodes{}) || last.GaveUp > 1 ||
		last.Early == 0 {
		t.Errorf("%+v, and %+v in the samples", last, n)
	}
	b.limiter.SetRules(load(t, fmt.Sprintf(rules, 10)))
	b.pass(time.Minute)
	grown("loaded anew")
	b.limiter.SetRules(load(t, fmt.Sprintf(rules, 9)))
	b.pass(time.Minute)
	if n := told(); n != (insight.Episodes{}) {
		t.Errorf("the rule changed, and has %+v", n)
	}
}

// While a rush goes on that a rule does not hold, its end is the last minute; afterwards it stays,
// as the verdict does.
func TestLooseUntil(t *testing.T) {
	rush := false
	b := newBench(t, Options{Saturated: func() (string, bool) { return "cpu", rush }},
		"domain: shop\nlimits: [{name: each, per: [user], allow: 5000/min}]")
	for minute := range 60 {
		clients := 20
		if rush = minute >= 15 && minute < 20; rush {
			clients = 200
		}
		for i := range clients {
			b.ask(fmt.Sprint("u", i))
			b.gather(false)
		}
		b.pass(time.Minute)
		want := int64(0)
		if minute >= 17 {
			want = begun.Unix() + int64(min(minute+1, 20))*60
		}
		j := b.Judged()[0]
		if j.Rule != "each" || j.LooseUntil[insight.LooseCrowd] != want || len(j.LooseUntil) > 1 ||
			(want > 0) != slices.Contains(j.Verdicts, insight.LooseCrowd) {
			t.Fatalf("minute %d: until %v, want %d: %+v", minute, j.LooseUntil, want, j)
		}
	}
}
