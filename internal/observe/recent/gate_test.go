package recent

import (
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/rule"
)

const perUser = "limits: [{name: a, per: [user], allow: 0/min}]"

// thinnedOf says in words what Thinned says. What came is estimated past 4,095, and is within 6
// standard errors: then it is shown as came has it, by second.
func thinnedOf(t *testing.T, b *Buffer, c *clock, came ...int) (text string) {
	t.Helper()
	for _, s := range b.Thinned(time.UnixMicro(c.now)) {
		second, shown := s.Time.Unix()-epoch/1e6, s.Came
		if int(second) < len(came) && came[second] > 4095 && math.Abs(float64(shown)/float64(came[second])-1) < 0.1 {
			shown = came[second]
		}
		text += fmt.Sprintf("%d: %d of %d; ", second, s.Kept, shown)
	}
	return text
}

// A client who is refused again and again neither pushes out what happened to others, nor keeps
// what happens to them from being kept, nor fills the buffer.
func TestFloodOfOneKey(t *testing.T) {
	b, c := newBuffer(t, Options{Sample: -1}), new(clock)
	l := newLimiter(t, b, c, perUser)
	var others []weir.DecisionID
	for second := range 20 {
		c.now = epoch + int64(second)*1e6
		for i := range 3000 {
			c.now += 300
			ask(t, l, rule.Map{"user": "flood"})
			if i%100 == 0 { // each of 10 others three times a second
				others = append(others, ask(t, l, rule.Map{"user": fmt.Sprint("user-", i/100%10)}).ID)
			}
		}
	}
	for i, id := range others {
		if _, ok := b.Find(id); !ok {
			t.Fatalf("refusal %d of %d of other clients is gone", i, len(others))
		}
	}
	if n := len(b.List(Query{})) - len(others); n != 20*perKey {
		t.Errorf("%d entries of the flood in 20 s, want %d a second", n, perKey)
	}
	if got, want := b.Thinned(time.UnixMicro(c.now)), (Second{time.Unix(epoch/1e6+19, 0).UTC(), 3030, 30 + perKey}); len(got) != 20 || got[0] != want {
		t.Errorf("Thinned says %v of %d seconds, want %v", got[0], len(got), want)
	}
	want := "it may have been pushed out by newer ones, or been made by another node; or it is one of a flood, of which a part is kept: " +
		"in the second from 00:00:19 UTC on there were 3,030 refusals, of which 38 were kept, and 19 more seconds of the last 5 minutes were like it"
	if got := b.WhyMissing(time.UnixMicro(c.now)); got != want {
		t.Errorf("%s", got)
	}
}

// Of a flood of many clients the budget is kept, and Thinned says of how many: past the first
// second spread over all of it. A calm second behind it soon keeps all again.
func TestFloodOfManyKeys(t *testing.T) {
	b, c := newBuffer(t, Options{Entries: 40_000, Bytes: 40_000 << 10, Sample: -1}), new(clock)
	l := newLimiter(t, b, c, perUser)
	const flood = 24_000 // thinned to one in 16, and not at the border to one in 8 or 32
	user := 0
	var kept [4][4]int // by second and quarter
	for second := range kept {
		n := flood
		if second == 3 {
			n = 1000
		}
		for i := range n {
			user++
			c.now = epoch + int64(second)*1e6 + int64(i)*1e6/int64(n)
			ask(t, l, rule.Map{"user": fmt.Sprint(user)})
		}
	}
	for _, e := range b.List(Query{}) {
		at := e.Time.UnixMicro() - epoch
		kept[at/1e6][at%1e6/250e3]++
	}
	sum := func(n [4]int) int { return n[0] + n[1] + n[2] + n[3] }
	if first := sum(kept[0]); first < refusalsPerSecond || first > 4*refusalsPerSecond {
		t.Errorf("of the first second %v are kept", kept[0])
	}
	for _, quarters := range kept[1:3] {
		for _, n := range quarters {
			if n < refusalsPerSecond/12 || n > refusalsPerSecond/3 {
				t.Errorf("of a second in the flood %v are kept", quarters)
			}
		}
	}
	if calm := sum(kept[3]); calm < 800 || calm == 1000 {
		t.Errorf("of the calm second behind the flood %v are kept", kept[3])
	}
	want := ""
	came := []int{flood, flood, flood, 1000}
	for second, n := range came {
		want = fmt.Sprintf("%d: %d of %d; ", second, sum(kept[second]), n) + want
	}
	if got := thinnedOf(t, b, c, came...); got != want {
		t.Errorf("Thinned says %s, want %s", got, want)
	}
	c.now = epoch + 4e6
	for i := range 1000 {
		c.now++
		id := ask(t, l, rule.Map{"user": fmt.Sprint("calm", i)}).ID
		if _, ok := b.Find(id); !ok {
			t.Fatalf("refusal %d of a calm second is not kept", i)
		}
	}
	// After five minutes nobody speaks of it.
	if c.now += 301e6; thinnedOf(t, b, c) != "" {
		t.Errorf("Thinned says %s", thinnedOf(t, b, c))
	}
}

// A limit that all clients share has no key that could be refused most.
func TestFloodWithoutKey(t *testing.T) {
	b, c := newBuffer(t, Options{Sample: -1}), new(clock)
	l := newLimiter(t, b, c, "limits: [{name: a, allow: 0/min}]")
	for i := range 100 {
		if id := ask(t, l, nil).ID; i < 100 {
			if _, ok := b.Find(id); !ok {
				t.Fatalf("refusal %d is not kept", i)
			}
		}
	}
}

// Admissions near a limit may be as many as requests. They are thinned like refusals, and take no
// place from them.
func TestFloodNearLimit(t *testing.T) {
	b, c := newBuffer(t, Options{Sample: -1}), new(clock)
	l := newLimiter(t, b, c, "limits: [{name: a, per: [user], allow: 100/min, warn: 1%}]")
	for i := range 100 {
		c.now++
		ask(t, l, rule.Map{"user": "ada"})
		for range 10 {
			ask(t, l, rule.Map{"user": fmt.Sprint("user-", i)})
		}
	}
	if n := len(b.List(Query{Outcome: "near_limit", Limit: "a"})); n < markedPerSecond || n > 2*markedPerSecond {
		t.Errorf("%d admissions near the limit are kept", n)
	}
	if _, ok := b.Find(ask(t, l, rule.Map{"user": "ada"}).ID); !ok || thinnedOf(t, b, c) != "" {
		t.Errorf("a refusal is not kept; thinned: %s", thinnedOf(t, b, c))
	}
}

// A clock that goes back, or stands still for years, changes nothing.
func TestFloodClockGoesBack(t *testing.T) {
	b, c := newBuffer(t, Options{Sample: -1}), new(clock)
	l := newLimiter(t, b, c, perUser)
	for _, now := range []int64{0, 5e6, 4e6, -3600e6, 80 * 365 * 86400e6, 10e6} {
		for i := range 100 {
			c.now = epoch + now + int64(i)
			id := ask(t, l, rule.Map{"user": "flood"}).ID
			if _, ok := b.Find(id); ok != (i < perKey && now != 4e6) {
				t.Errorf("at %d: refusal %d is kept: %v", now, i, ok)
			}
		}
	}
}

// Many at once keep to the bounds.
func TestFloodConcurrent(t *testing.T) {
	b, c := newBuffer(t, Options{Sample: -1, Entries: 20_000, Bytes: 20_000 << 10}), new(clock)
	l := newLimiter(t, b, c, perUser)
	const each = 5000
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for k := range each {
				ask(t, l, rule.Map{"user": "flood"})
				ask(t, l, rule.Map{"user": fmt.Sprint(i, "-", k)})
			}
		})
	}
	all.Wait()
	n := len(b.List(Query{}))
	if n < refusalsPerSecond || n > 3*refusalsPerSecond {
		t.Errorf("%d are kept", n)
	}
	if got, want := thinnedOf(t, b, c, 8*each), fmt.Sprintf("0: %d of %d; ", n, 8*each); got != want {
		t.Errorf("Thinned says %s, want %s", got, want)
	}
}
