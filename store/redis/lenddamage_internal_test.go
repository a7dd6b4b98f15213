package redis

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/store"
)

// TestLentDamaged writes records into Redis that no store has written: of any length, with any
// counts, ends and generations. No call fails for it. None is let through that the state beside the
// record does not leave room for. What can be read is decided on as algo does, and what cannot
// counts as nothing. When it is over, Lua decides by itself, and nothing of it is left.
func TestLentDamaged(t *testing.T) {
	now := int64(1767225600_000000)
	server, s, rnd := openRandom(t, &now)
	episodes := 600
	if !effort.All() {
		episodes = 100
	}
	damaged, read := 0, 0
	for range episodes {
		m := newLendModel(t, rnd)
		call := func(asks ...int64) []algo.Result {
			t.Helper()
			for i := range m.charges {
				m.charges[i].Ask.Cost = asks[i%len(asks)]
			}
			ahead, results := m.ahead(), make([]algo.Result, len(m.charges))
			if ahead == nil {
				ahead = make([]algo.Ahead, len(m.charges))
			}
			if _, _, err := s.TakeAhead(t.Context(), 0, 0, m.charges, ahead, results); err != nil {
				t.Fatal(err)
			}
			m.compare(t, m.charges, ahead, results, now)
			return results
		}
		for range rnd.IntN(4) {
			call(1 + rnd.Int64N(3))
			now += rnd.Int64N(300_000)
		}
		for i := range m.charges {
			if c := &m.charges[i]; c.Counter.Lease != nil {
				damaged++
				if m.records[i] = damage(t, server, s, c, rnd, now); m.records[i].B != 0 {
					read++
				}
			}
		}
		for i := range m.charges {
			c := &m.charges[i]
			alone := c.Limit.Check(&m.states[i], now, algo.Ask{})
			c.Ask.Cost = 0
			result := make([]algo.Result, 1)
			if _, err := s.Take(t.Context(), m.charges[i:i+1], result); err != nil {
				t.Fatal(err)
			}
			if result[0].Remaining > alone.Remaining {
				t.Fatalf("%v: a record of %+v makes %+v of %+v", c.Limit, m.records[i], result[0], alone)
			}
			c.Limit.Learn(&m.states[i], &m.records[i], now, &algo.Ahead{})
			c.Limit.TakeWith(&m.states[i], &m.records[i], now, c.Ask)
		}
		for range 4 {
			now += []int64{0, 1, rnd.Int64N(300_000), rnd.Int64N(300_000_000)}[rnd.IntN(4)]
			call(1, 0, 2)
		}
		// The longest that units may be out, and then the longest that a charge can count.
		now += (4*algo.MaxLeaseFor + 24*time.Hour).Microseconds()
		m.loans = nil
		for i, r := range call(0) {
			if r.Remaining != r.Limit {
				t.Fatalf("%s: it is never over: %+v", describe(m.charges[i:i+1]), r)
			}
		}
		swaps := s.Stats().Swaps
		for range 3 {
			call(1)
			now += 1000
		}
		if n := s.Stats().Swaps - swaps; n > 0 {
			t.Fatalf("%s: %d calls were left to the node", describe(m.charges), n)
		}
	}
	t.Logf("%d records, %d of which can be read", damaged, read)
	if read < damaged/10 || read > damaged*9/10 || s.Stats().Disagreements > 0 {
		t.Errorf("%d records, %d of which can be read, %d disagreements", damaged, read, s.Stats().Disagreements)
	}
}

// damage replaces what is lent of a key, and returns what it is to count as.
func damage(t *testing.T, server *redistest.Server, s *Store, c *store.Charge, rnd *rand.Rand, now int64) algo.State {
	t.Helper()
	lease := c.Counter.Lease
	of := s.codecOf(c.Limit.Lease())
	key := string(s.partitions[0].appendKey(nil, of.valueID(lease), c.Key))
	if c.Counter.Group == 0 && rnd.IntN(8) == 0 {
		server.Do("DEL", key)
		server.Do("LPUSH", key, "no string")
		return algo.State{}
	}
	body := damagedRecord(rnd, now, of.w)
	value := appendRecord(nil, lease, body)
	rest, _ := server.Do("GET", key).(string)
	for {
		tag, state, left, ok := cutRecord(rest)
		if !ok {
			break
		}
		if tag != tagOf(lease) {
			value = append(value, rest[:recordHead+len(state)]...)
		}
		rest = left
	}
	server.Do("SET", key, string(value))
	if len(body) != 7+4+4+2+2+4 {
		return algo.State{}
	}
	four := binary.LittleEndian.Uint32
	n := algo.Lent{
		Older: int64(four(body[7:])), Newer: int64(four(body[11:])),
		End: int64(binary.LittleEndian.Uint64(append(slices.Clone(body[:7]), 0))),
	}
	wants, each := four(body[15:]), int64(four(body[19:]))
	if n.Older+n.Newer > 900_000_000 || n.End == 0 {
		return algo.State{}
	}
	st := n.Record(wants)
	if each != of.w {
		cfg := of.limit.Config()
		cfg.Timeout = time.Duration(each) * time.Microsecond
		old, err := algo.New(cfg)
		if err != nil {
			return algo.State{}
		}
		of.limit.Carry(old, &st, now)
	}
	return st
}

// damagedRecord is the body of a record for generations of the length each.
func damagedRecord(rnd *rand.Rand, now, each int64) []byte {
	if rnd.IntN(4) == 0 {
		b := make([]byte, []int{0, 1, 14, 15, 18, 22, 23, 23, 24, 255}[rnd.IntN(10)])
		for i := range b {
			b[i] = byte(rnd.Uint32())
		}
		return b
	}
	ends := []int64{
		0, 1, 2, now, now - 1, now + 1, now + rnd.Int64N(2*each), now - rnd.Int64N(1_000_000),
		now - rnd.Int64N(100_000_000), now - rnd.Int64N(1<<50),
		now + 2*algo.MaxLeaseFor.Microseconds(), now + 2*algo.MaxLeaseFor.Microseconds() + 1, now + 1<<40, 1<<53 - 1,
		1 << 53, 1<<55 + 1, 1<<56 - 1,
	}
	counts := []int64{0, 1, 2, 3, 10, 1000, 90_000, 100_001, 450_000_000, 900_000_000, 900_000_001, 1<<30 - 1, 1 << 30,
		1<<31 - 1, 1 << 31, 1<<32 - 1}
	lengths := []int64{each, each, each, each, each, each, 0, 1, 9_999, 10_000, 400_000, 120_000_000, 120_000_001,
		1<<32 - 1}
	b := append56(nil, ends[rnd.IntN(len(ends))])
	for range 2 {
		most := len(counts)
		if rnd.IntN(2) == 0 {
			most = 5
		}
		b = binary.LittleEndian.AppendUint32(b, uint32(counts[rnd.IntN(most)]))
	}
	for range 2 {
		b = binary.LittleEndian.AppendUint16(b, []uint16{0, 1, 1024, 65535}[rnd.IntN(4)])
	}
	return binary.LittleEndian.AppendUint32(b, uint32(lengths[rnd.IntN(len(lengths))]))
}
