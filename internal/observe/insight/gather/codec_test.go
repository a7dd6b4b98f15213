package gather

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/observe/insight/judge"
	"github.com/weir-rl/weir/internal/observe/insight/snapshot"
	"github.com/weir-rl/weir/rule"
)

// lived returns a snapshot of a Collector that has seen everything that there is to see.
func lived(t testing.TB) *snapshot.Snapshot {
	b := newBench(t, Options{Known: []string{"user"}, Saturated: func() (string, bool) { return "cpu", true }}, `
domain: shop
limits:
  - { name: search, per: [user], allow: [10/min, 100/hour], algorithm: fixed_window }
  - { name: all, allow: 50/min, algorithm: fixed_window }
  - { name: trial, per: [ip], allow: 5/min, on_limit: shadow }
`)
	random := rand.New(rand.NewPCG(1, 1))
	for range 4 {
		for range 150 {
			r := weir.Request{Door: "http",
				Attributes: rule.Pairs{{Name: "user", Value: fmt.Sprint("user-", random.IntN(20))},
					{Name: "ip", Value: "192.0.2.1"}}}
			if b.send(r) {
				b.limiter.Phases().Answered(&r, &b.d, weir.Answer{Status: 200})
			}
			b.µs.Add(100_000)
			b.gather(false)
		}
		b.pass(time.Minute)
	}
	return b.Snapshot(snapshot.Want{Series: true, Top: true, Samples: true, Over: time.Hour})
}

// A snapshot is read as it was written, and merges as it did.
func TestSnapshotCodec(t *testing.T) {
	s := lived(t)
	data, err := s.AppendBinary([]byte("before"))
	if err != nil || !bytes.HasPrefix(data, []byte("before")) {
		t.Fatal(err)
	}
	data = data[len("before"):]
	var read snapshot.Snapshot
	if err := read.UnmarshalBinary(data); err != nil {
		t.Fatal(err)
	}
	for i := range s.Rules {
		if a, b := fmt.Sprintf("%+v", s.Rules[i]), fmt.Sprintf("%+v", read.Rules[i]); i > 0 && a != b {
			t.Errorf("rule %d was written as\n%s\nand read as\n%s", i, a, b)
		}
	}
	again, _ := read.AppendBinary(nil)
	if !bytes.Equal(data, again) {
		t.Error("written again, it differs")
	}
	if a, b := snapshot.Merge(s, s), snapshot.Merge(&read, &read); !reflect.DeepEqual(a.Domains, b.Domains) ||
		a.Rules[0].Summary != b.Rules[0].Summary ||
		a.Rules[0].Count[snapshot.LaneMet] != 2*s.Rules[0].Count[snapshot.LaneMet] {
		t.Error("it merges otherwise")
	}
	t.Logf("%d bytes for 3 rules with 20 keys", len(data))
	for _, data := range [][]byte{nil, {snapshot.Version + 1}, append([]byte{snapshot.Version - 1}, data[1:]...),
		{snapshot.Version}, data[:len(data)-1], append(bytes.Clone(data), 0)} {
		if read.UnmarshalBinary(data) == nil {
			t.Errorf("%d bytes are no snapshot, and were read", len(data))
		}
	}
}

// oneOf cuts a list to its first element.
func oneOf[L ~[]T, T any](list L) L { return list[:min(len(list), 1)] }

// FuzzSnapshot: any bytes from another node are read or refused, within the bounds of a node's own
// data. A snapshot that is read answers questions in JSON, and is written as it was read.
func FuzzSnapshot(f *testing.F) {
	// The engine makes what it finds smaller before it goes on, which takes it a minute for each
	// input as long as a whole snapshot: so the seed has one of everything, and no more.
	small := lived(f)
	small.Domains, small.Rules = small.Domains[:1], small.Rules[:1]
	small.Domains[0].Series = oneOf(small.Domains[0].Series)
	r := &small.Rules[0]
	r.Series, r.Minutes, r.Examples, r.Verdicts = oneOf(r.Series), oneOf(r.Minutes), oneOf(r.Examples),
		oneOf(r.Verdicts)
	r.All.Keys, r.Refused.Keys = oneOf(r.All.Keys), oneOf(r.Refused.Keys)
	for i := range r.Refused.Keys {
		r.Refused.Keys[i].Events = oneOf(r.Refused.Keys[i].Events)
	}
	for kind := range snapshot.TopKinds {
		r.Live[kind], r.Long[kind] = oneOf(r.Live[kind]), oneOf(r.Long[kind])
	}
	data, _ := small.AppendBinary(nil)
	f.Add(data)
	f.Add(data[:len(data)/2])
	own := lived(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		var s snapshot.Snapshot
		if s.UnmarshalBinary(data) != nil {
			return
		}
		again, _ := s.AppendBinary(nil)
		var twice snapshot.Snapshot
		if err := twice.UnmarshalBinary(again); err != nil {
			t.Fatalf("written again, it is not read: %v", err)
		}
		third, _ := twice.AppendBinary(nil)
		if !bytes.Equal(again, third) {
			t.Fatal("it changes from writing to writing")
		}
		if len(s.Events) > snapshot.MostEvents || len(s.Domains) > snapshot.MostDomains ||
			len(s.Rules) > snapshot.MostRules {
			t.Fatalf("%d events, %d domains, %d rules", len(s.Events), len(s.Domains), len(s.Rules))
		}
		if _, err := own.Fit(&s); err != nil {
			return
		}
		merged := snapshot.Merge(own, &s)
		answersJSON(t, merged)
		for i := range merged.Rules {
			facts := merged.Facts(i)
			judge.Judge(&facts, judge.Thresholds{})
		}
	})
}
