package spoe

import (
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/store"
)

// slowClient is the client for which the store has to wait, in the tests below.
var slowClient = netip.MustParseAddr("192.0.2.99")

func isSlow(charges []store.Charge) bool {
	return slices.ContainsFunc(charges,
		func(c store.Charge) bool { return bytes.Contains(c.Key, slowClient.AsSlice()) })
}

// TestQuickBesideSlow: what the store decides at once is answered while others on the same
// connection wait, and also while so many wait that a further one finds no room.
func TestQuickBesideSlow(t *testing.T) {
	gate := make(chan struct{})
	s := waiting(t, isSlow, gate)
	p := dial(t, serve(t, New(newLimiterOver(t, s, apiRules), Options{Parallel: 8}))).greet()
	open := sync.OnceFunc(func() { close(gate) })
	t.Cleanup(open)
	const slow, quick = 4, 3
	ask := func(stream uint64, ip netip.Addr) []byte {
		return notify(stream, 1, message("m", "ip", ip, "path", "/api/x"))
	}
	var frames []byte
	for i := range uint64(slow) {
		frames = append(frames, ask(1000+i, slowClient)...)
	}
	p.send(frames)
	patience.Until(t, "the slow ones wait", func() bool { return s.Begun.Load() == slow })
	frames = nil
	for i := range uint64(quick) {
		frames = append(frames, ask(i, client)...)
	}
	p.send(append(frames, ask(2000, slowClient)...)) // one connection has half of the workers
	for i := range uint64(quick) {
		if r := p.next(); r.stream != i || r.vars(t)["deny"] != false {
			t.Errorf("frame %d answers %d: %v", i, r.stream, r.vars(t))
		}
	}
	if n := s.Begun.Load(); n != slow {
		t.Errorf("%d wait", n)
	}
	open()
	denied := 0
	for range slow + 1 {
		r := p.next()
		if r.stream < 1000 {
			t.Errorf("an answer for %d", r.stream)
		}
		if r.vars(t)["deny"] == true {
			denied++
		}
	}
	if denied != 2 { // 3/hour
		t.Errorf("%d are refused", denied)
	}
}

// TestSameBothWays: a request is answered alike whether the store decides it at once or not, and
// whether answers are gathered or not.
func TestSameBothWays(t *testing.T) {
	n := 0
	ways := map[string]func([]store.Charge) bool{
		"at once": func([]store.Charge) bool { return false },
		"waiting": nil,
		"mixed":   func([]store.Charge) bool { n++; return n%2 == 0 },
	}
	told := map[string][]map[string]any{}
	for name, waits := range ways {
		p := dial(t, serve(t, New(newLimiterOver(t, waiting(t, waits, nil), apiRules), Options{Parallel: 8}))).greet()
		for _, items := range [][]any{
			{"ip", client, "path", "/api/x"}, {"ip", client, "path", "/api/x", "hits", "0"}, {"ip", client, "path", "/api/x", "hits", "2"},
			{"ip", client, "path", "/api/x", "accept", "text/html"}, {"ip", client, "path", "/api/x", "hits", "x"}, {"ip", client, "path", "/api/x", "hits", "-1"},
			{"ip", client, "path", "/%2F"}, {"path", "/free"}, {"ip", slowClient, "path", "/api/x"}, {},
		} {
			v := p.ask(items...)
			for _, differs := range []string{"decision", "body", "reset", "retry_after", "ratelimit"} { // an id, or by the clock
				if v[differs] != nil {
					v[differs] = "set"
				}
			}
			told[name] = append(told[name], v)
		}
		// in one go
		var frames []byte
		for i := range uint64(40) {
			frames = append(frames,
				notify(i, i, message("m", "ip", netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), "path", "/api/x"))...)
		}
		p.send(frames)
		answers := map[uint64]map[string]any{}
		for range 40 {
			r := p.next()
			answers[r.stream] = r.vars(t)
		}
		for _, i := range slices.Sorted(maps.Keys(answers)) {
			told[name] = append(told[name], map[string]any{"remaining": answers[i]["remaining"],
				"deny": answers[i]["deny"], "stream": i})
		}
	}
	for name, list := range told {
		if len(list) != 50 {
			t.Fatalf("%s: %d answers", name, len(list))
		}
		for i, want := range told["at once"] {
			if !reflect.DeepEqual(list[i], want) {
				t.Errorf("%s, answer %d:\n got %s\nwant %s", name, i, fmt.Sprint(list[i]), fmt.Sprint(want))
			}
		}
	}
}
