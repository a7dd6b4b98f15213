package redis

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

var codecLimits = []algo.Config{
	{Algorithm: algo.FixedWindow, N: 100, Window: time.Minute},
	{Algorithm: algo.FixedWindow, N: 100, Window: time.Minute, FirstRequest: true},
	{Algorithm: algo.FixedWindow, N: 100, Window: 24 * time.Hour, Calendar: algo.Month},
	{N: 100, Window: time.Minute},
	{N: 100, Window: time.Minute, Buckets: 6},
	{Algorithm: algo.TokenBucket, N: 7, Window: time.Minute, Burst: 100},
	{Algorithm: algo.TokenBucket, N: 7, Window: time.Minute, Burst: 100, RefillInterval: true},
	{Algorithm: algo.LeakyBucket, N: 7, Window: time.Minute, Burst: 100},
	{Algorithm: algo.SlidingLog, N: 100, Window: time.Minute},
	{Algorithm: algo.SlidingLog, N: 100, Window: 30 * 24 * time.Hour},
	{Algorithm: algo.Concurrency, N: 100},
	{Algorithm: algo.Margin, Window: time.Minute, SoftFor: time.Second, Timeout: time.Hour},
}

func mustTwin(t testing.TB, c algo.Config) *codec {
	l, err := algo.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return newCodec(l)
}

// TestCodec: what is read is what was written, as every later answer shows.
func TestCodec(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, cfg := range codecLimits {
		tw := mustTwin(t, cfg)
		var st, read algo.State
		now := int64(1767225600_000000)
		for i := range 2000 {
			now += rnd.Int64N(2_000_000)
			ask := algo.Ask{Cost: rnd.Int64N(4), MaxDelay: -1, Slot: rnd.Uint64()}
			raw := tw.encode(&st)
			if tw.size > 0 && raw != nil && len(raw) != tw.size {
				t.Fatalf("%v: %d bytes, not %d", tw.limit, len(raw), tw.size)
			}
			if err := tw.decode(raw, &read); err != nil {
				t.Fatalf("%v: %v", tw.limit, err)
			}
			if again := tw.encode(&read); !bytes.Equal(again, raw) {
				t.Fatalf("%v, step %d: read and written again %x became %x", tw.limit, i, raw, again)
			}
			want := tw.limit.Take(&st, now, ask)
			if got := tw.limit.Take(&read, now, ask); got != want {
				t.Fatalf("%v, step %d: %+v after reading, %+v without", tw.limit, i, got, want)
			}
		}
	}
}

func TestRecords(t *testing.T) {
	tw := mustTwin(t, codecLimits[0])
	one, two := &rule.Counter{ID: 0x100000001, Group: 9}, &rule.Counter{ID: 0x100000002, Group: 9}
	state := bytes.Repeat([]byte{7}, tw.size)
	v := appendRecord(appendRecord(nil, one, []byte("some other state")), two, state)
	if got, ok := tw.state(string(v), two); !ok || got != string(state) {
		t.Errorf("%x, %v", got, ok)
	}
	if _, ok := tw.state(string(v), &rule.Counter{ID: 3, Group: 9}); ok {
		t.Error("a state was found that is not there")
	}
	for cut := range len(v) {
		if got, ok := tw.state(string(v[:cut]), two); ok {
			t.Errorf("cut at %d: %x", cut, got)
		}
	}
}

// FuzzDecode: whatever lies in Redis, nothing crashes, and what is read can be decided on and
// written.
func FuzzDecode(f *testing.F) {
	for i := range codecLimits {
		f.Add(uint8(i), bytes.Repeat([]byte{3}, 40))
	}
	f.Fuzz(func(t *testing.T, which uint8, raw []byte) {
		tw := mustTwin(t, codecLimits[int(which)%len(codecLimits)])
		var st algo.State
		if tw.decode(raw, &st) != nil {
			return
		}
		const now = 1767225600_000000
		tw.limit.Take(&st, now, algo.Ask{Cost: 1, MaxDelay: -1, Slot: 1})
		tw.encode(&st)
		_, _ = tw.state(string(raw), &rule.Counter{ID: 1})
	})
}

// FuzzReply: a reply that is cut or garbled is an error, or is read as something; it never crashes.
func FuzzReply(f *testing.F) {
	f.Add(bytes.Repeat([]byte{1}, 60), uint8(0))
	f.Add(append(make([]byte, 11), 255, 255, 255, 255), uint8(8))
	f.Fuzz(func(t *testing.T, reply []byte, which uint8) {
		tw := mustTwin(t, codecLimits[int(which)%len(codecLimits)])
		s, err := Open(Options{URL: "redis://127.0.0.1:1", Clock: func() int64 { return 1 }})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		p := &partition{store: s, prefix: "x"}
		counter := &rule.Counter{ID: 1, Limit: tw.limit}
		p.merge([]*call{s.newCall(p, chargesOf(counter, 1), nil), s.newCall(p, chargesOf(counter, 1), nil)})
		_ = p.read(reply)
	})
}

func chargesOf(c *rule.Counter, cost int64) []store.Charge {
	return []store.Charge{{Counter: c, Limit: c.Limit, Key: []byte("k"), Ask: algo.Ask{Cost: cost, MaxDelay: -1}}}
}
