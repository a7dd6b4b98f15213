//go:build soak && linux

package browser

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/soaktest"
)

// thousand are 1,000 rules.
func thousand() map[string]string { return map[string]string{"rules/shop.yaml": soaktest.ManyRules()} }

// TestSoak keeps the page open for WEIR_SOAK (10m by default) with 1,000 rules and traffic: the
// heap stays below 60 MB and does not grow. It is read after a collection. The first quarter of the
// time is left out: there the lists and the chart fill. Where it grows, the log tells which objects
// did.
func TestSoak(t *testing.T) {
	long := 10 * time.Minute
	if text := os.Getenv("WEIR_SOAK"); text != "" {
		var err error
		if long, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	d := chromium(t)
	s := serve(t, thousand())
	b := d.open(t, s.admin, desktop)
	b.visit("/")
	var readings []float64 // in MB, after the first quarter
	var before map[string]float64
	begun, next := time.Now(), time.Now()
	for n := 0; time.Since(begun) < long; n++ {
		s.ask("path", fmt.Sprintf("/p%d", n%1000), "ip", fmt.Sprintf("192.0.2.%d", n/7%50))
		time.Sleep(5 * time.Millisecond)
		if time.Now().Before(next) {
			continue
		}
		at := time.Since(begun)
		var bytes float64
		b.do(&bytes, "heap")
		t.Logf("%v: %.2f MB after %d requests", at.Round(time.Second), bytes/1e6, n)
		if bytes > 60e6 {
			t.Errorf("the heap has %.1f MB after %v", bytes/1e6, at)
		}
		if at > long/4 {
			if before == nil {
				b.do(&before, "objects")
			}
			readings = append(readings, bytes/1e6)
		}
		next = time.Now().Add(long / 24)
	}
	var after map[string]float64
	b.do(&after, "objects")
	kinds := slices.SortedFunc(maps.Keys(after), func(x, y string) int {
		return cmp.Compare(after[y]-before[y], after[x]-before[x])
	})
	for _, k := range kinds[:min(12, len(kinds))] {
		t.Logf("%+9.0f bytes of %.0f: %s", after[k]-before[k], after[k], k)
	}
	// The means of the first and the last third: single readings differ by what the lists show.
	third := len(readings) / 3
	if third == 0 {
		t.Fatal("too few readings")
	}
	first, last := mean(readings[:third]), mean(readings[len(readings)-third:])
	t.Logf("%.2f MB at first, %.2f MB at last", first, last)
	if last > first*1.05 {
		t.Errorf("the heap grew from %.2f MB to %.2f MB", first, last)
	}
	b.clean("soak")
}

func mean(list []float64) (m float64) {
	for _, v := range list {
		m += v / float64(len(list))
	}
	return m
}

// TestFirstPaint compares the overview with 1,000 rules to a page that only says a word, in pairs
// that follow each other: the median of 9 says what the page itself takes until it paints.
func TestFirstPaint(t *testing.T) {
	d := chromium(t)
	s := serve(t, thousand())
	for n := range 3000 {
		s.ask("path", fmt.Sprintf("/p%d", n%1000), "ip", fmt.Sprintf("192.0.2.%d", n%50))
	}
	empty := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write([]byte("<!doctype html><title>empty</title><link rel=icon href=data:,><p>empty</p>"))
	}))
	t.Cleanup(empty.Close)
	paint := func(base string) (ms float64) {
		b := d.open(t, base, desktop)
		b.do(nil, "goto", "url", "/")
		b.do(&ms, "paint")
		b.do(nil, "close")
		return ms
	}
	paint(s.admin) // Chromium's own first
	paint(empty.URL)
	var more, whole []float64
	for range 9 {
		e, p := paint(empty.URL), paint(s.admin)
		more, whole = append(more, p-e), append(whole, p)
	}
	slices.Sort(more)
	slices.Sort(whole)
	t.Logf("first paint: %.0f ms later than an empty page (%.0f to %.0f), %.0f ms in all", more[4], more[0], more[8], whole[4])
	if more[4] > 60 {
		t.Errorf("the page paints %.0f ms later than an empty one", more[4])
	}
}

// TestWatched says what an open page costs the server, view by view: how many bytes a second it is
// sent, and what more of a core the server takes than with no page, in turns of 10 s, while some
// 200 requests a second come and a good part of them is refused.
func TestWatched(t *testing.T) {
	const turn, rounds = 10 * time.Second, 3
	d := chromium(t)
	s := serve(t, thousand())
	ended := make(chan struct{})
	var feeder sync.WaitGroup
	feeder.Go(func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-ended:
				return
			case <-tick.C:
			}
			s.ask("path", fmt.Sprintf("/p%d", n%1000), "ip", fmt.Sprintf("192.0.2.%d", n/7%50))
		}
	})
	defer feeder.Wait()
	defer close(ended)
	time.Sleep(turn)
	pid := s.cmd.Process.Pid
	for _, path := range []string{"/", "/rules", "/rules/shop/rule-100", "/keys", "/decisions"} {
		var shares, rates []float64
		for range rounds {
			before := soaktest.Busy(t, pid)
			time.Sleep(turn)
			alone := soaktest.Busy(t, pid) - before
			b := d.open(t, s.admin, desktop)
			b.visit(path)
			time.Sleep(turn / 5) // the first load is not what watching costs
			before, sent := soaktest.Busy(t, pid), s.relay.sent.Load()
			time.Sleep(turn)
			shares = append(shares, float64(soaktest.Busy(t, pid)-before-alone)/float64(turn))
			rates = append(rates, float64(s.relay.sent.Load()-sent)/turn.Seconds())
			b.do(nil, "close")
		}
		slices.Sort(shares)
		slices.Sort(rates)
		share, rate := shares[rounds/2], rates[rounds/2]
		t.Logf("%s: %.2f %% of a core (%.2f to %.2f), %.1f KB a second (%.1f to %.1f)", path, 100*share, 100*shares[0], 100*shares[rounds-1], rate/1e3, rates[0]/1e3, rates[rounds-1]/1e3)
		if share > 0.005 || rate > 4096 {
			t.Errorf("%s takes %.2f %% of a core and %.0f bytes a second", path, 100*share, rate)
		}
	}
}
