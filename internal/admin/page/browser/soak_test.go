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

	"github.com/weir-rl/weir/internal/testkit/soaktest"
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
	// The means of the first and the last third: single readings vary with the content of the
	// lists.
	third := len(readings) / 3
	if third == 0 {
		t.Fatal("too few readings")
	}
	first, last := mean(readings[:third]), mean(readings[len(readings)-third:])
	t.Logf("%.2f MB at first, %.2f MB at last", first, last)
	if last > first*1.10 { // most of two megabytes is code, and the browser goes on to compile some
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
	t.Logf("first paint: %.0f ms later than an empty page (%.0f to %.0f), %.0f ms in all", more[4], more[0], more[8],
		whole[4])
	if more[4] > 60 {
		t.Errorf("the page paints %.0f ms later than an empty one", more[4])
	}
}

// TestWatched says what an open page costs the server, view by view: how many bytes a second it is
// sent, and what more of a core the server takes than with no page. Each is of a minute: rules are
// judged once a minute, and that must be in all of them. Few requests come meanwhile, since what
// they take would hide what the page does.
func TestWatched(t *testing.T) {
	const turn = time.Minute
	d := chromium(t)
	s := serve(t, thousand())
	for n := range 20_000 {
		s.ask("path", fmt.Sprintf("/p%d", n%1000), "ip", fmt.Sprintf("192.0.2.%d", n/7%50))
	}
	ended := make(chan struct{})
	var feeder sync.WaitGroup
	feeder.Go(func() {
		tick := time.NewTicker(50 * time.Millisecond)
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
	share := func() float64 {
		before := soaktest.Busy(t, pid)
		time.Sleep(turn)
		return float64(soaktest.Busy(t, pid)-before) / float64(turn)
	}
	alone := share()
	type watched struct {
		path        string
		share, rate float64
	}
	var all []watched
	for _, path := range []string{"/", "/rules", "/rules/shop/rule-100", "/keys", "/decisions"} {
		b := d.open(t, s.admin, desktop)
		b.visit(path)
		time.Sleep(2 * time.Second) // the first load is not what watching costs
		sent := s.relay.sent.Load()
		x := watched{path: path, share: share()}
		x.rate = float64(s.relay.sent.Load()-sent) / turn.Seconds()
		all = append(all, x)
		b.do(nil, "close")
	}
	again := share()
	t.Logf("with no page %.2f %% of a core before, %.2f %% after", 100*alone, 100*again)
	for _, x := range all {
		more := x.share - (alone+again)/2
		t.Logf("%s: %.2f %% of a core more, %.1f KB a second", x.path, 100*more, x.rate/1e3)
		if more > 0.005 || x.rate > 4096 {
			t.Errorf("%s takes %.2f %% of a core more, and %.0f bytes a second", x.path, 100*more, x.rate)
		}
	}
}
