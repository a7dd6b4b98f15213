package line

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// comer is one request of a random run. All times are from the start, and no two kinds of them ever
// coincide.
type comer struct {
	at     time.Duration
	key    string
	hangUp time.Duration // 0 if it is patient
	work   time.Duration // how long it is handled
}

func comers(t *rapid.T) []comer {
	var all []comer
	at := time.Duration(0)
	for i := range rapid.IntRange(1, 25).Draw(t, "requests") {
		at += time.Duration(rapid.SampledFrom([]int{0, 1, 7, 50, 300, 1100}).Draw(t, "pause")) * time.Millisecond
		c := comer{at: at + time.Duration(i)*time.Microsecond,
			key: rapid.SampledFrom([]string{"ada", "ada", "bob"}).Draw(t, "key")}
		if n := rapid.IntRange(-3, 3).Draw(t, "patience"); n > 0 {
			c.hangUp = at + time.Duration(n*n*100)*time.Millisecond + time.Duration(250+i)*time.Microsecond
		}
		c.work = time.Duration(rapid.IntRange(0, 900).Draw(t, "work"))*time.Millisecond + 750*time.Microsecond
		all = append(all, c)
	}
	return all
}

// run sees all through in virtual time. The outcomes are in the order of arrival.
func run(t *testing.T, yaml string, all []comer) (out []outcome, stats Stats) {
	out = make([]outcome, len(all))
	synctest.Test(t, func(t *testing.T) {
		d := newDoor(New(0), newLimiter(t, yaml))
		for i, c := range all {
			time.Sleep(c.at - time.Since(d.start))
			ctx, cancel := context.WithCancel(t.Context())
			if c.hangUp > 0 {
				time.AfterFunc(c.hangUp-c.at, cancel)
			}
			go func() {
				defer cancel()
				out[i] = d.pass(ctx, fmt.Sprint(i), 1, func() { time.Sleep(c.work) }, user(c.key))
			}()
			synctest.Wait()
		}
		time.Sleep(time.Minute)
		synctest.Wait() // and synctest.Test fails if somebody is left
		stats = d.lines.Stats()
	})
	return out, stats
}

// expected are the outcomes of the requests of one key under a sliding log of n per second, said in
// the plainest way.
func expected(all []comer, n int, wait time.Duration) []string {
	const window = time.Second
	type waiting struct {
		i        int
		deadline time.Duration
	}
	var (
		out   = make([]string, len(all))
		log   []time.Duration
		queue []waiting
		until time.Duration // when the first of the queue is admitted
	)
	free := func(now time.Duration) time.Duration { // after which one is admitted
		if len(log) < n {
			return now
		}
		return max(now, log[len(log)-n]+window)
	}
	// ask lets the first ask until one has to wait.
	ask := func(now time.Duration) {
		for len(queue) > 0 {
			first := queue[0]
			switch until = free(now); {
			case until <= now:
				log = append(log, now)
				out[first.i] = fmt.Sprintf("%d@%v", first.i, now)
			case until > first.deadline:
				out[first.i] = fmt.Sprintf("%d@%v refused by q for %v", first.i, now, until-now)
			default:
				return
			}
			queue = queue[1:]
		}
	}
	// pass lets the time go by up to now, without it.
	pass := func(now time.Duration) {
		for len(queue) > 0 {
			next, what := until, -1
			for i, w := range queue {
				if c := all[w.i]; c.hangUp > 0 && c.hangUp < next {
					next, what = c.hangUp, i
				}
				if w.deadline < next {
					next, what = w.deadline, i
				}
			}
			if next >= now {
				return
			}
			if what >= 0 {
				w := queue[what]
				queue = slices.Delete(queue, what, what+1)
				out[w.i] = fmt.Sprintf("%d@%v gone", w.i, next)
				if next == w.deadline {
					out[w.i] = fmt.Sprintf("%d@%v refused by q for %v", w.i, next, until-next)
				}
				if what > 0 {
					continue
				}
			}
			ask(next)
		}
	}
	for i, c := range all {
		pass(c.at)
		w := waiting{i, c.at + wait}
		if len(queue) > 0 && until > w.deadline {
			out[i] = fmt.Sprintf("%d@%v refused by q for %v", i, c.at, until-c.at)
			continue
		}
		if queue = append(queue, w); len(queue) == 1 {
			ask(c.at)
		}
	}
	pass(time.Hour)
	return out
}

// What happens to each of a random lot of requests, some of which hang up, is what happens in a
// plain queue before the limit: to the microsecond, for each key by itself.
func TestHoldsAsAQueueDoes(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		all := comers(rt)
		n := rapid.IntRange(1, 3).Draw(rt, "n")
		wait := time.Duration(rapid.IntRange(1, 40).Draw(rt, "wait"))*100*time.Millisecond + 500*time.Microsecond
		got, stats := run(t,
			fmt.Sprintf("limits: [{name: q, per: [user], algorithm: sliding_log, allow: %d/s, on_limit: {wait: %v}}]",
				n, wait), all)
		for _, key := range []string{"ada", "bob"} {
			var mine []comer
			var place []int
			for i, c := range all {
				if c.key == key {
					mine, place = append(mine, c), append(place, i)
				}
			}
			for j, want := range expected(mine, n, wait) {
				_, want, _ = strings.Cut(want, "@")
				if _, s, _ := strings.Cut(got[place[j]].String(), "@"); s != want {
					rt.Fatalf("request %d of %s: %s, want %s", place[j], key, s, want)
				}
			}
		}
		if stats.Held != 0 || stats.Lines != 0 || stats.Total < stats.HungUp+stats.Expired {
			rt.Fatalf("%+v", stats)
		}
	})
}

// With any algorithm, nobody is admitted while one who came before to the same key still waits,
// nobody waits for longer than its wait, and there are never more than the limit admits.
func TestNobodyOvertakes(t *testing.T) {
	rules := []string{"algorithm: token_bucket, allow: {rate: 2/s, burst: 2}",
		"algorithm: token_bucket, refill: interval, allow: 2/s",
		"algorithm: fixed_window, allow: 2/s", "allow: 2/s", "allow: 4/s, buckets: 4", "algorithm: sliding_log, allow: 2/s, throttle: {soft: 50%}",
		"allow: 2 concurrent, timeout: 20s", "algorithm: leaky_bucket, allow: {rate: 3/s, burst: 3}"}
	rapid.Check(t, func(rt *rapid.T) {
		all := comers(rt)
		r := rapid.SampledFrom(rules).Draw(rt, "rule")
		wait := time.Duration(rapid.IntRange(1, 40).Draw(rt, "wait"))*100*time.Millisecond + 500*time.Microsecond
		got, stats := run(t, fmt.Sprintf("limits: [{name: q, per: [user], %s, on_limit: {wait: %v}}]", r, wait), all)
		if stats.Held != 0 || stats.Lines != 0 {
			rt.Fatalf("%+v", stats)
		}
		for j, o := range got {
			if o.at-all[j].at > wait || !o.allowed && !o.hungUp && o.retry <= 0 {
				rt.Fatalf("request %d came at %v: %v", j, all[j].at, o)
			}
			if !o.allowed {
				continue
			}
			inFlight := 0
			for i, before := range got[:j] {
				if all[i].key != all[j].key || !before.allowed && strings.HasPrefix(r, "algorithm: leaky") {
					continue
				}
				if before.at > o.at || before.at == o.at && before.left > o.left && o.left > 0 {
					rt.Fatalf("request %d, which came at %v: %v; it overtook %d, which came at %v: %v", j, all[j].at, o,
						i, all[i].at, before)
				}
				if before.allowed && before.at+all[i].work > o.at {
					inFlight++
				}
			}
			if strings.HasPrefix(r, "allow: 2 concurrent, timeout") && inFlight > 1 {
				rt.Fatalf("request %d was admitted beside %d others", j, inFlight)
			}
		}
	})
}
