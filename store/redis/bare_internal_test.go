package redis

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// TestBothAsOne: two states of a value that are decided as one come to what they come to on the
// long way: the reply, the value, until when it lives, and whether that is noted as a change; for
// random limits, and for values that no store has written. WEIR_PAIR_CALLS sets how many calls.
func TestBothAsOne(t *testing.T) {
	redistest.NeedsFunctions(t)
	now := int64(4102444800_000000) // 2100, so that nothing expires under the test
	server, s, rnd := openRandom(t, &now)
	p, conn := s.partitions[0], server.Dial()
	load := func(name string, edits ...string) {
		t.Helper()
		text := "#!lua name=" + name + "\n" + strings.ReplaceAll(expandConstants(libraryText(memoryText)), "NAME", name)
		for i := 0; i < len(edits); i += 2 {
			if strings.Count(text, edits[i]) != 1 {
				t.Fatalf("the library has %q not once", edits[i])
			}
			text = strings.Replace(text, edits[i], edits[i+1], 1)
		}
		server.Do("FUNCTION", "LOAD", text)
	}
	const expires, asks = "if virtual then return '32503680000000' end", "g, text, stop = both(v, m)"
	load("short", expires, "", asks, asks+" if g then call('INCR', 'as one') end")
	load("long", expires, "", asks, "")
	asOne := func() (n int) {
		text, _ := conn.Do([]string{"GET", "as one"})[0].(string)
		n, _ = strconv.Atoi(text)
		return n
	}
	made, short := map[algo.Algorithm]int{}, map[algo.Algorithm]int{}
	l := newLane()
	var pair []store.Charge
	for range atLeast(t, "WEIR_PAIR_CALLS", 2500, 400) {
		if pair == nil || rnd.IntN(3) > 0 { // else as before, at another instant
			pair = newPair(t, rnd, now)
		}
		now += []int64{0, 1, rnd.Int64N(50_000), rnd.Int64N(100_000_000)}[rnd.IntN(4)]
		if w := pair[0].Limit.Config().Window.Microseconds(); w > 0 && rnd.IntN(8) == 0 {
			now += w - now%w + rnd.Int64N(3) - 1
		}
		n, lives := 1+rnd.IntN(4), strconv.FormatInt(now/1000+rnd.Int64N(200_000_000), 10)
		keys, values, list := make([]string, n), make([]string, n), binary.LittleEndian.AppendUint32(nil, uint32(n))
		list = append(list, flagMerged)
		var shape []byte
		for i := range n {
			for j := range pair {
				pair[j].Key = strconv.AppendInt(nil, int64(i), 10)
			}
			c := s.newCall(p, pair, nil)
			if keys[i] = strings.Clone(c.keys[0]); len(c.keys) != 1 {
				t.Fatal("the states do not lie in one value")
			}
			shape = shape[:0]
			for j := range c.operands {
				shape = c.operands[j].append(shape, &c.charges[c.operands[j].charge], now)
			}
			values[i] = anyPair(s, rnd, pair, now)
			list = binary.LittleEndian.AppendUint32(list, 1+uint32(rnd.IntN(3)*rnd.IntN(20)))
		}
		before := asOne()
		l.number++
		head := string(l.appendIdentity(nil, 0, false)) + strconv.FormatInt(now, 10)
		var came [2]string
		for i, name := range []string{"short", "long"} {
			var commands [][]string
			for j, key := range keys {
				commands = append(commands, []string{"DEL", key})
				if values[j] != "" {
					commands = append(commands, []string{"SET", key, values[j], "PXAT", lives})
				}
			}
			puts := len(commands)
			commands = append(commands, append(append([]string{"FCALL", name + "_take", strconv.Itoa(n)}, keys...),
				head, string(shape), string(list)))
			for _, key := range keys {
				commands = append(commands, []string{"GET", key}, []string{"PEXPIRETIME", key})
			}
			commands = append(commands, []string{"FCALL", name + "_read", "0", ""})
			replies := conn.Do(commands...)[puts:]
			reply, _ := replies[0].(string)
			if len(reply) < replyHead {
				t.Fatalf("%s replies %q", name, reply)
			}
			came[i] = fmt.Sprintf("%x%x", reply[:replyHead-4], reply[replyHead:]) // without the name of the memory
			for replies = replies[1:]; len(replies) > 1; replies = replies[2:] {
				value, _ := replies[0].(string)
				came[i] += fmt.Sprintf("\n%x until %d", value, replies[1])
			}
			came[i] += fmt.Sprint("\nchanges ", replies[0].([]any)[1])
		}
		if came[0] != came[1] {
			t.Fatalf("%s at %d of %x\n%s\nthe long way\n%s", describe(pair), now, values, came[0], came[1])
		}
		of := pair[0].Limit.Algorithm()
		if of == algo.LeakyBucket { // beside a token_bucket
			of = algo.TokenBucket
		}
		made[of] += n
		short[of] += asOne() - before
	}
	t.Logf("%v of %v decided as one", short, made)
	for a, n := range made {
		if short[a] < n/8 || short[a] > n*4/5 {
			t.Errorf("%v: %d of %d were decided as one", a, short[a], n)
		}
	}
}

// newPair is charges of two limits, which lend and, except for a few, have one algorithm.
func newPair(t *testing.T, rnd *rand.Rand, now int64) []store.Charge {
	t.Helper()
	const group = 0x7e57
	all := algo.Config{Algorithm: []algo.Algorithm{algo.FixedWindow, algo.SlidingWindow, algo.TokenBucket,
		algo.TokenBucket}[rnd.IntN(4)], Lease: 50}
	window := func() {
		all.Window = []time.Duration{time.Second, time.Minute, 24 * time.Hour, 365 * 24 * time.Hour,
			365 * 24 * time.Hour}[rnd.IntN(5)]
	}
	window()
	odd := rnd.IntN(8)
	cost, id := 1+rnd.Int64N(3), rnd.Uint64()
	charges := make([]store.Charge, 2)
	for i := range charges {
		if i == 0 || rnd.IntN(2) == 0 {
			all.N = []int64{1, 5, 12, 300, 999_983, algo.MaxN / 2}[rnd.IntN(6)]
		}
		if rnd.IntN(5) == 0 {
			window()
		}
		all.Soft = []int{0, 0, 50, 300}[rnd.IntN(4)]
		c, ask := all, algo.Ask{Cost: cost, MaxDelay: -1}
		if c.Algorithm == algo.TokenBucket && rnd.IntN(3) == 0 {
			c.Burst = 10
			if rnd.IntN(4) == 0 {
				c.N = 0
			}
		}
		switch {
		case odd < 2 && c.Algorithm == algo.TokenBucket && i == rnd.IntN(2):
			c.Algorithm, c.Lease, ask.MaxDelay = algo.LeakyBucket, 0, []int64{-1, 0, 1000}[rnd.IntN(3)]
		case odd == 0: // of another kind
			switch {
			case c.Algorithm == algo.TokenBucket && rnd.IntN(4) == 0:
				c.RefillInterval, c.Lease = true, 0
			case c.Algorithm == algo.TokenBucket && rnd.IntN(4) == 0:
				c.Algorithm, c.Burst = algo.SlidingWindow, 0
			case c.Algorithm == algo.FixedWindow && rnd.IntN(2) == 0:
				c.Calendar, c.Window = algo.Day, 0
			case c.Algorithm == algo.FixedWindow && rnd.IntN(2) == 0:
				c.FirstRequest = true
			}
		case odd == 1 && rnd.IntN(2) == 0:
			c.Lease = 0
		}
		l, err := algo.New(c)
		if err == nil && odd > 4 && rnd.IntN(2) == 0 {
			l, err = phased(l, c)
		}
		if err != nil {
			t.Fatal(err)
		}
		of := &rule.Counter{ID: id + 2*uint64(i), Group: group, Limit: l}
		if l.Lease() != nil {
			of.Lease = &rule.Counter{ID: of.ID + 1, Group: group, Limit: l.Lease()}
		}
		charges[i] = store.Charge{Counter: of, Limit: l, Ask: ask}
		if rnd.IntN(20) == 0 {
			cost++
		}
	}
	return charges
}

// anyPair is a value of two states as they may lie there, or as they may not; most often none is
// odd.
func anyPair(s *Store, rnd *rand.Rand, pair []store.Charge, now int64) string {
	var records []string
	ahead := rnd.IntN(10) == 0
	for i := range pair {
		l := pair[i].Limit
		in, _ := l.At(now)
		at := now - rnd.Int64N([]int64{1, 2, 1_000_000, 100_000_000}[rnd.IntN(4)])
		if ahead {
			at = now + rnd.Int64N(200_000_000)
		}
		var st algo.State
		if in != nil {
			w := max(1, in.Config().Window.Microseconds())
			if in.Algorithm() == algo.SlidingWindow && rnd.IntN(2) == 0 {
				at = min(at, now-w+rnd.Int64N(w))
			}
			for range 1 + rnd.IntN(4) {
				in.Take(&st, at, algo.Ask{Cost: 1 + rnd.Int64N(max(1, in.Config().N)), MaxDelay: -1})
				if begins := now - now%w; rnd.IntN(3) > 0 {
					at = max(at, begins+rnd.Int64N(now-begins+1))
				}
			}
		}
		of := pair[i].Counter
		switch rnd.IntN(30) {
		case 0:
			st.A = rnd.Int64N(1 << 56)
		case 1:
			st.B = rnd.Uint64N(1 << 56)
		case 2:
			st.C = rnd.Uint32()
		case 3:
			st.C = intervalScale
		case 4:
			st.B = 0
		case 5, 6:
			st.B += st.B / 2
		case 7, 13, 14:
			if in != nil && in.Algorithm() == algo.TokenBucket {
				st.B = 1 << 52 // above what any bucket holds
			}
		case 8:
			of = &rule.Counter{ID: 5}
		case 9, 10, 11, 12:
			if in != nil && in.Algorithm() == algo.SlidingWindow {
				count := []uint64{0, math.MaxUint32 - rnd.Uint64N(100)}[rnd.IntN(2)]
				st = algo.State{A: now - now%in.Config().Window.Microseconds(), B: count<<32 | 1 + rnd.Uint64N(20)}
			}
		}
		records = append(records, string(appendRecord(nil, of, s.codecOf(l).encode(&st))))
	}
	switch rnd.IntN(30) {
	case 0, 1, 2, 3:
		return ""
	case 4:
		slices.Reverse(records)
	case 5:
		return records[rnd.IntN(2)]
	case 6:
		records = append(records, string(appendRecord(nil, &rule.Counter{ID: 5}, make([]byte, 18))))
	case 7:
		return strings.Repeat("x", len(records[0])+len(records[1]))
	}
	return strings.Join(records, "")
}
