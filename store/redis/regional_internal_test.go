package redis

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// TestChangedTogether holds random changes against algo, among decisions that lend: what had no
// room, and every byte of the states and records that Redis keeps, around the ends of generations,
// windows and phases. WEIR_CHANGES sets how many changes at least, 300000 for one before a release.
func TestChangedTogether(t *testing.T) {
	now := int64(1767225600_000000)
	server, s, rnd := openRandom(t, &now)
	most := atLeast(t, "WEIR_CHANGES", 10_000, 1_000)
	const border = 600_000_000 // of phases, and of all longer windows
	var made, calls, byNode, over, lent int
	for made < most {
		m := newLendModel(t, rnd)
		for range 30 {
			now += []int64{0, 1, rnd.Int64N(50_000), rnd.Int64N(3_000_000)}[rnd.IntN(4)]
			switch rnd.IntN(12) {
			case 0, 1:
				if len(m.loans) > 0 { // the end of something that is out
					now = max(now, m.loans[rnd.IntN(len(m.loans))].End+rnd.Int64N(3)-1)
				}
			case 2:
				now += border - now%border + rnd.Int64N(3) - 1
			}
			if rnd.IntN(3) == 0 {
				charges, ahead, results := m.asks(), m.ahead(), make([]algo.Result, len(m.charges))
				if ahead == nil {
					ahead = make([]algo.Ahead, len(m.charges))
				}
				if _, _, err := s.TakeAhead(t.Context(), 0, 0, charges, ahead, results); err != nil {
					t.Fatal(err)
				}
				m.compare(t, charges, ahead, results, now)
				for _, h := range ahead {
					if h.Got > 0 {
						lent++
						m.loans = append(m.loans, algo.Told{End: h.Until, Used: h.Got})
					}
				}
				continue
			}
			changes := make([]store.Change, 1+rnd.IntN(12))
			of := make([]int, len(changes))
			for i := range changes {
				of[i] = rnd.IntN(len(m.charges))
				c := &m.charges[of[i]]
				changes[i] = store.Change{
					Counter: c.Counter, Limit: c.Limit, Key: c.Key,
					Units: []int64{1, 1, 2, 5, 30, 1000, -1, -3}[rnd.IntN(8)],
					Since: []int64{0, 0, 0, now, now + 1}[rnd.IntN(5)], Until: []int64{0, 0, 0, now, now + 1}[rnd.IntN(5)],
				}
				if buckets := c.Limit.Config().Buckets > 1; buckets && rnd.IntN(10) > 0 {
					changes[i].Units = max(1, changes[i].Units) // a refund to such a window is the node's
				}
			}
			done, swaps := make([]store.Changed, len(changes)), s.Stats().Swaps
			log, from, to := "", "", ""
			if rnd.IntN(2) == 0 {
				log, to = "us", strconv.Itoa(calls)+"-0"
				at, err := s.Position(t.Context(), 0, log)
				if err != nil {
					t.Fatal(err)
				}
				from = at
			}
			if _, err := s.Change(t.Context(), 0, log, from, to, changes, done); err != nil {
				t.Fatal(err)
			}
			if calls++; s.Stats().Swaps != swaps {
				byNode++
			}
			for i := range changes {
				want := changes[i].Apply(&m.states[of[i]], &m.records[of[i]], now)
				if done[i] != want {
					t.Fatalf("change %d of %d, %+v of %v: %+v, want %+v", i, len(changes), changes[i], changes[i].Limit,
						done[i], want)
				}
				if made++; want.Over > 0 {
					over++
				}
			}
			for i := range changes {
				if done[i].Made {
					m.stands(t, s, server, of[i], now)
				}
			}
		}
	}
	t.Logf("%d changes in %d calls, %d of which the node made; %d beyond the limit; %d lendings", made, calls, byNode,
		over, lent)
	if n := s.Stats().Disagreements; n > 0 {
		t.Errorf("%d disagreements", n)
	}
	// A quick run draws too little for that.
	if effort.All() && (over < made/20 || byNode > calls/5 || lent < made/200) {
		t.Error("too few of a kind")
	}
}

// stands fails unless Redis keeps the state of a charge, and its record, as algo has them.
func (m *lendModel) stands(t *testing.T, s *Store, server *redistest.Server, i int, now int64) {
	t.Helper()
	c := &m.charges[i]
	for _, of := range []struct {
		counter *rule.Counter
		limit   *algo.Limit
		st      *algo.State
	}{{c.Counter, c.Limit, &m.states[i]}, {c.Counter.Lease, c.Limit.Lease(), &m.records[i]}} {
		if of.counter == nil {
			continue
		}
		codec := s.codecOf(of.limit)
		value, _ := server.Do("GET", string(s.partitions[0].appendKey(nil, codec.valueID(of.counter), c.Key))).(string)
		got, ok := codec.state(value, of.counter)
		want := codec.encode(of.st)
		if !ok && of.limit.Fresh(of.st, now) {
			continue // what nothing counts of may be forgotten
		}
		if ok != (len(want) > 0) || ok && !bytes.Equal([]byte(got), want) {
			if of.limit.Algorithm() == algo.SlidingLog && sameLog(t, codec, got, of.st, now) {
				continue
			}
			t.Fatalf("%v at %d: Redis keeps\n%x\nwant\n%x", of.limit, now, got, want)
		}
	}
}

// sameLog reports whether a log holds the same units as far as they count, wherever its ring
// begins.
func sameLog(t *testing.T, codec *codec, text string, want *algo.State, now int64) bool {
	t.Helper()
	var st algo.State
	if err := codec.decode([]byte(text), &st); err != nil {
		t.Fatal(err)
	}
	live := func(st *algo.State) (times []uint64) {
		n, tail, size := int(st.B>>32), int(uint32(st.B)), len(st.Ext)/codec.entry
		modulus := uint64(1) << (8 * codec.entry)
		for i := range n {
			entry := append(bytes.Clone(st.Ext[(tail+i)%size*codec.entry:][:codec.entry]), 0, 0, 0)
			ago := (uint64(st.A) - binary.LittleEndian.Uint64(entry[:8])) % modulus
			if at := st.A - int64(ago); at > max(now, st.A)-codec.w {
				times = append(times, uint64(at))
			}
		}
		return times
	}
	return slices.Equal(live(&st), live(want))
}

// TestChangeDamaged: whatever lies where states, records and the position are to be, no change
// makes Lua fail, and what can be charged is charged.
func TestChangeDamaged(t *testing.T) {
	now := int64(1767225600_000000)
	server, s, rnd := openRandom(t, &now)
	episodes := 1500
	if !effort.All() {
		episodes = 60
	}
	for n := range episodes {
		m := newLendModel(t, rnd)
		for i := range m.charges {
			c := &m.charges[i]
			for _, of := range []*rule.Counter{c.Counter, c.Counter.Lease} {
				if of == nil || rnd.IntN(3) == 0 {
					continue
				}
				codec := s.codecOf(of.Limit)
				key := string(s.partitions[0].appendKey(nil, codec.valueID(of), c.Key))
				size := codec.size
				if size == 0 || rnd.IntN(3) == 0 {
					size = []int{0, 1, 14, 15, 18, 19, 23, 39, 60}[rnd.IntN(9)]
				}
				body := make([]byte, size)
				for j := range body {
					body[j] = byte(rnd.Uint32()) * byte(rnd.IntN(2))
				}
				if codec.size > 0 && rnd.IntN(4) > 0 {
					body = appendRecord(nil, of, body)
				}
				server.Do("DEL", key)
				switch rnd.IntN(8) {
				case 0:
					server.Do("LPUSH", key, "no string")
				case 1:
					server.Do("SET", key, string(body)+"\x01\x02")
				default:
					server.Do("SET", key, string(body))
				}
			}
		}
		var changes []store.Change
		for range 1 + rnd.IntN(5) {
			c := &m.charges[rnd.IntN(len(m.charges))]
			changes = append(changes, store.Change{Counter: c.Counter, Limit: c.Limit, Key: c.Key,
				Units: []int64{1, 7, 2000, -2}[rnd.IntN(4)]})
		}
		log := fmt.Sprint("log", n)
		if _, err := s.Change(t.Context(), 0, log, "", "1-0", changes, make([]store.Changed, len(changes))); err != nil {
			t.Fatalf("%+v: %v", changes, err)
		}
		for i := range m.charges {
			c := &m.charges[i]
			full := store.Change{Counter: c.Counter, Limit: c.Limit, Key: c.Key, Units: 5000}
			done := make([]store.Changed, 1)
			if _, err := s.Change(t.Context(), 0, log, "1-0", "1-0", []store.Change{full}, done); err != nil ||
				!done[0].Made {
				t.Fatalf("%+v: %+v, %v", full, done, err)
			}
			result := make([]algo.Result, 1)
			c.Ask.Cost = 1
			if _, err := s.Take(t.Context(), m.charges[i:i+1], result); err != nil || result[0].Remaining > 0 {
				t.Fatalf("%v: after 5000 units %+v, %v", c.Limit, result[0], err)
			}
		}
	}
	if n := s.Stats().Disagreements; n > 0 {
		t.Errorf("%d disagreements", n)
	}
}

// TestToldEntries: what is packed is unpacked, in entries of some 4 KiB; and of anything else
// nothing, or what can be read.
func TestToldEntries(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	var told []store.Told
	for i := range 1000 {
		told = append(told, store.Told{
			Counter: rnd.Uint64(), Key: make([]byte, rnd.IntN(200)), Units: rnd.Int64N(1<<(1+rnd.IntN(60))) - rnd.Int64N(1000), At: 1767225600_000000 + rnd.Int64N(1_000_000),
		})
		if i == 77 {
			told[i].Key = make([]byte, 10_000)
		}
	}
	var got []store.Told
	entries := 0
	for rest := told; len(rest) > 0; entries++ {
		var entry []byte
		before := len(rest)
		entry, rest = packTold(rest)
		if before-len(rest) > 1 && len(entry) > maxToldEntry {
			t.Errorf("an entry of %d bytes", len(entry))
		}
		got = unpackTold(got, string(entry))
		for range 200 {
			damaged := bytes.Clone(entry[:rnd.IntN(len(entry)+1)])
			if len(damaged) > 0 {
				damaged[rnd.IntN(len(damaged))] = byte(rnd.Uint32())
			}
			unpackTold(nil, string(damaged))
		}
	}
	if len(got) != len(told) || entries > 100 {
		t.Fatalf("%d of %d in %d entries", len(got), len(told), entries)
	}
	for i := range told {
		if got[i].Counter != told[i].Counter || !bytes.Equal(got[i].Key, told[i].Key) ||
			got[i].Units != told[i].Units || got[i].At != told[i].At {
			t.Fatalf("%+v, want %+v", got[i], told[i])
		}
	}
}

func FuzzUnpackTold(f *testing.F) {
	entry, _ := packTold([]store.Told{{Counter: 1, Key: []byte("k"), Units: 3, At: 5}, {At: 9}})
	f.Add(string(entry))
	f.Fuzz(func(t *testing.T, text string) {
		for _, told := range unpackTold(nil, text) {
			if max(told.Units, -told.Units) > 1<<62 || len(told.Key) > len(text) {
				t.Errorf("%+v", told)
			}
		}
	})
}
