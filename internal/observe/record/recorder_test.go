package record

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/rule"
)

// drained returns what lies in the record, in order.
func (r *Recorder) drained(t testing.TB) (list []Request) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drainLocked()
	r.drainLocked()
	c := Record{Chunks: r.mu.ring.take(0, 0)}
	m, err := NewReader(c.Streams(0, 0))
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for {
		e, err := m.Next()
		if err != nil {
			t.Fatal(err)
		}
		if e == nil {
			return list
		}
		one := *e
		one.values = nil
		for _, v := range e.values {
			one.values = append(one.values, strings.Clone(v))
		}
		one.also, one.descriptors = strings.Clone(e.also), strings.Clone(e.descriptors)
		list = append(list, one)
	}
}

// What is recorded is what was asked: time, attributes that rules read, cost, outcome; descriptors
// too. What rules do not read is left out, and secrets are hashes.
func TestRecord(t *testing.T) {
	w := newWorld(t, `limits:
  - { name: a, per: [user, header.x-api-key], when: { kind: x }, allow: 1/min }
`, Options{Hide: []string{"ip"}})
	attributes := rule.Map{"user": "ada", "ip": "192.0.2.1", "path": "/a", "kind": "x", "header.x-api-key": "sesame",
		"other": "y"}
	w.ask(&weir.Request{Attributes: attributes, MaxDelay: time.Second})
	w.now += 5
	w.ask(&weir.Request{Attributes: attributes, Hits: 3})
	w.ask(&weir.Request{Attributes: attributes, Peek: true})
	descriptors := []rule.Descriptor{
		{Entries: []rule.Entry{{Key: "user_id", Value: "7"}, {Key: "api_key", Value: "sesame"}}, HasHits: true, Hits: 2},
		{Entries: []rule.Entry{{Key: "a", Value: ""}}, Override: &rule.DescriptorLimit{Requests: 9, Unit: "HOUR"}},
	}
	w.ask(&weir.Request{Domain: "default", Descriptors: descriptors})
	list := w.recorder.drained(t)
	if len(list) != 3 {
		t.Fatalf("%+v", list)
	}
	got := func(i int, name string) string { v, _ := list[i].Attribute(name); return v }
	first := list[0]
	if first.Time != begin || first.flags != flagAllowed || first.Hits != 1 || first.delay != 1e9 ||
		first.kind != byUser || first.shape.domain != "default" ||
		got(0, "user") != "ada" || got(0, "path") != "/a" || got(0, "kind") != "x" || got(0, "other") != "" {
		t.Errorf("%+v %+v", first, first.shape)
	}
	for _, name := range []string{"header.x-api-key", "ip"} {
		if v := got(0, name); !strings.HasPrefix(v, "hidden:") || v != got(1, name) {
			t.Errorf("%s is kept as %q", name, v)
		}
	}
	if list[1].Time != begin+5 || list[1].flags != 0 || list[1].Hits != 3 {
		t.Errorf("%+v", list[1])
	}
	back := readDescriptors([]byte(list[2].descriptors))
	secret := back[0].Entries[1].Value
	if back[0].Entries[1].Value = "sesame"; !strings.HasPrefix(secret, "hidden:") ||
		!reflect.DeepEqual(back, descriptors) || list[2].kind != byDescriptors {
		t.Errorf("%q %+v", secret, back)
	}
}

// A secret is in no buffer.
func TestSecretsAreNotKept(t *testing.T) {
	w := newWorld(t, `limits: [{ name: a, per: [header.authorization], allow: 1/min }]`, Options{})
	for range 3 {
		w.ask(&weir.Request{Attributes: rule.Map{"header.authorization": "hush-hush", "user": "ada"}})
	}
	for i := range w.recorder.stage {
		if s := &w.recorder.stage[i]; bytes.Contains(s.buf, []byte("hush")) ||
			bytes.Contains(s.sum[:cap(s.sum)], []byte("hush")) {
			t.Error("a secret is staged")
		}
	}
	w.recorder.drain()
	for i := range w.recorder.mu.ring.strata {
		if bytes.Contains(w.recorder.mu.ring.strata[i].open.buf, []byte("hush")) {
			t.Error("a secret is recorded")
		}
	}
}

// However much comes, and however long it is, the record stays within its bytes and keeps what is
// newest; and it is thinned by client before it forgets what it is to reach back to.
func TestBounds(t *testing.T) {
	const limit = MinBytes
	w := newWorld(t, `limits: [{ name: a, per: [user], allow: 5/min }]`, Options{Bytes: limit, Reach: time.Hour})
	random := rand.New(rand.NewPCG(3, 4))
	text := func(n int) string {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(random.Uint32())
		}
		return string(b)
	}
	var d weir.Decision
	for i := range 60_000 {
		w.now += 100_000 // 6,000 s in all
		path := fmt.Sprint("/", i%50)
		if i%100 == 0 {
			path = text(700)
		}
		w.askInto(&weir.Request{Attributes: rule.Map{"user": fmt.Sprint("user-", random.IntN(4000)), "ip": text(4),
			"path": path}}, &d)
		if i%997 == 0 {
			if held := w.recorder.Stats().Bytes; held > limit {
				t.Fatalf("after %d requests it takes %d bytes", i, held)
			}
		}
	}
	g := w.recorder.mu.ring
	before := int64(0)
	for n := range Strata {
		at := g.reach(n)
		if n > 0 && at > before {
			t.Errorf("the strata from %d on are whole since %d, more of them since %d", n, at, before)
		}
		before = at
	}
	if back := time.Duration(w.now-g.reach(Strata-1)) * time.Microsecond; back < time.Hour {
		t.Errorf("it reaches back %v", back)
	}
	if back := time.Duration(w.now-g.reach(0)) * time.Microsecond; back <= 0 || back >= time.Hour {
		t.Errorf("of all clients it reaches back %v", back)
	}
}

// In a flood nothing is taken beyond so many a second, fewer clients are recorded from then on, and
// what is missing is told. When it is over, all are recorded again.
func TestFlood(t *testing.T) {
	w := newWorld(t, `limits: [{ name: a, per: [user], allow: 5/min }]`, Options{PerSecond: 100})
	var d weir.Decision
	for second := range 20 {
		for i := range 1000 {
			w.now += 1000
			w.askInto(&weir.Request{Attributes: rule.Map{"user": fmt.Sprint(i % 500)}}, &d)
			if i%250 == 249 {
				w.recorder.drain()
				w.recorder.settle()
			}
		}
		if level := w.recorder.level.Load(); second > 5 && (level < 3 || level > 8) {
			t.Fatalf("after %d s one client in %d is taken", second, 1<<level)
		}
	}
	s := w.recorder.Stats()
	if n := s.Requests; n > 21*100 || n == 0 {
		t.Errorf("%d requests are recorded of 20 s", n)
	}
	if s.Taken < s.Requests || s.Taken > 21*100 || s.Gaps < tick || s.Gaps > 20*time.Second {
		t.Errorf("%+v", s)
	}
	if c := w.recorder.Gather(t.Context(), Others{}, 0).Records[0]; len(c.Gaps) == 0 || c.Level < 3 {
		t.Errorf("%d gaps, from level %d on", len(c.Gaps), c.Level)
	}
	for range 4 * 3600 {
		w.now += 250_000
		w.recorder.settle()
	}
	if s := w.recorder.Stats(); s.Sampled != 1 {
		t.Errorf("an hour later %+v", s)
	}
	w.ask(&weir.Request{Attributes: rule.Map{"user": "x"}})
	late := 0
	for _, e := range w.recorder.drained(t) {
		if e.Time > w.now-60e6 {
			late++
		}
	}
	if c := w.recorder.Gather(t.Context(), Others{}, time.Minute).Records[0]; c.Level != 0 || late != 1 {
		t.Errorf("from level %d on, %d requests of the last minute", c.Level, late)
	}
}

// Nodes with one seed record the same clients; another seed begins anew.
func TestSeed(t *testing.T) {
	clients := func(seed uint64) (hashes []uint64) {
		w := newWorld(t, `limits: [{ name: a, per: [user], allow: 5/min }]`, Options{})
		w.ask(&weir.Request{Attributes: rule.Map{"user": "before"}})
		w.recorder.drain()
		w.recorder.SetSeed(seed)
		w.recorder.level.Store(3)
		for i := range 200 {
			w.now++
			w.ask(&weir.Request{Attributes: rule.Map{"user": fmt.Sprint(i)}})
		}
		for _, e := range w.recorder.drained(t) {
			hashes = append(hashes, e.Client)
		}
		return hashes
	}
	a, b, c := clients(1), clients(1), clients(2)
	if len(a) < 10 || len(a) > 45 || !slices.Equal(a, b) || slices.Equal(a, c) {
		t.Errorf("%d, %d, %d", len(a), len(b), len(c))
	}
}

// Run moves what comes by itself.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, `limits: [{ name: a, per: [user], allow: 5/min }]`, Options{})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { w.recorder.Run(ctx) })
		w.ask(&weir.Request{Attributes: rule.Map{"user": "ada"}})
		time.Sleep(time.Second)
		synctest.Wait()
		if s := w.recorder.Stats(); s.Requests != 1 || s.Taken != 1 || s.Gaps != 0 ||
			!s.Since.Equal(time.UnixMicro(begin)) {
			// It waits for one round until it is sorted.
			t.Errorf("%+v", s)
		}
		cancel()
		running.Wait()
	})
}

// Writers, the goroutine that drains, and previews at the same time.
func TestConcurrent(t *testing.T) {
	w := newWorld(t, `limits: [{ name: a, per: [user], allow: 5/min }]`, Options{Bytes: MinBytes})
	ctx, cancel := context.WithCancel(t.Context())
	var running, asking sync.WaitGroup
	running.Go(func() { w.recorder.Run(ctx) })
	for i := range 4 {
		asking.Go(func() {
			var d weir.Decision
			for k := range 2000 {
				r := weir.Request{Attributes: rule.Map{"user": fmt.Sprint(i, k%7)}}
				if err := w.limiter.Decide(ctx, &r, &d); err != nil {
					t.Error(err)
				}
				w.limiter.Phases().Answered(&r, &d, weir.Answer{Status: 200})
				if k%500 == 0 {
					w.recorder.SetSeed(9)
					w.recorder.Stats()
				}
			}
		})
	}
	asking.Wait()
	cancel()
	running.Wait()
	for _, e := range w.recorder.drained(t) {
		if e.flags&flagAnswer == 0 && (e.shape.domain != "default" || !slices.Equal(e.shape.names, []string{"user"}) ||
			len(e.values[0]) != 3 && len(e.values[0]) != 2) {
			t.Fatalf("%+v %+v", e, e.shape)
		}
	}
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{{Bytes: 1}, {Bytes: -1}, {PerSecond: -1}, {Reach: -1}} {
		if _, err := NewRecorder(o); err == nil {
			t.Errorf("%+v is taken", o)
		}
	}
}

// What a chunk holds is what was added, and a broken one is an error, never a panic.
func TestChunks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var w writer
		var want []Request
		cache := shapes{}
		text := rapid.SampledFrom([]string{"", "a", "bb", strings.Repeat("c", 200), "\x00"})
		at, turn := rapid.Int64Range(0, 1<<52).Draw(t, "start"), uint64(0)
		for range rapid.IntRange(0, 30).Draw(t, "entries") {
			at += rapid.Int64Range(-50, 1<<30).Draw(t, "step")
			turn += rapid.Uint64Range(1, 300).Draw(t, "turns")
			e := entry{time: at, client: rapid.Uint64Range(0, 3).Draw(t, "client"),
				flags: rapid.SampledFrom([]byte{0, flagAllowed, flagBanned, flagCut, flagAnswer, flagAlso,
					flagAlso | flagAllowed}).Draw(t, "flags"), hits: rapid.Int64().Draw(t, "hits")}
			r := Request{Time: at, turn: turn, Client: e.client, flags: e.flags, Hits: e.hits}
			if e.flags != flagAnswer {
				e.kind = rapid.ByteRange(0, 3).Draw(t, "kind")
				e.delay = rapid.Int64().Draw(t, "delay")
				e.shape = []byte("d\x00")
				for i := range rapid.IntRange(0, 3).Draw(t, "names") {
					e.shape = append(e.shape, fmt.Sprint("n", i, "\x00")...)
					v := text.Draw(t, "value")
					r.values = append(r.values, v)
					e.values = append(binary.AppendUvarint(e.values, uint64(len(v))), v...)
				}
				if e.flags&flagAlso != 0 {
					r.also = text.Draw(t, "also")
					e.also = []byte(r.also)
				}
				e.descriptors = []byte(text.Draw(t, "descriptors"))
				r.kind, r.delay, r.shape, r.descriptors = e.kind, e.delay, cache.of(string(e.shape)),
					string(e.descriptors)
			}
			w.add(&e, turn)
			want = append(want, r)
		}
		var d decoder
		d.open(w.buf)
		var got Request
		for i := range want {
			ok, err := d.next(&got, &cache)
			if len(got.values) == 0 {
				got.values = nil
			}
			if !ok || err != nil || !reflect.DeepEqual(got, want[i]) {
				t.Fatalf("%d: %+v, %v, %v; want %+v", i, got, ok, err, want[i])
			}
		}
		if ok, err := d.next(&got, &cache); ok || err != nil {
			t.Fatalf("there is more: %v, %v", ok, err)
		}
	})
}

func FuzzChunk(f *testing.F) {
	var w writer
	e := entry{time: begin, client: 7, flags: flagAllowed, hits: 1, shape: []byte("d\x00user\x00"),
		values: []byte("\x03ada")}
	w.add(&e, 1)
	w.add(&e, 2)
	w.add(&entry{time: begin, client: 7, flags: flagAnswer, hits: 200}, 3)
	e.flags, e.also = flagAlso, []byte("\x01\x00\x03bob")
	w.add(&e, 4)
	f.Add(slices.Clone(w.buf))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		var d decoder
		var cache shapes
		var got Request
		d.open(data)
		for {
			ok, err := d.next(&got, &cache)
			if !ok || err != nil {
				break
			}
			if got.shape != nil && len(got.values) != len(got.shape.names) {
				t.Fatalf("%+v %+v", got, got.shape)
			}
			readDescriptors([]byte(got.descriptors))
			got.readings()
		}
	})
}

func FuzzStaged(f *testing.F) {
	w := newWorld(f, `limits: [{ name: a, per: [user], allow: 5/min }]`, Options{})
	w.ask(&weir.Request{Attributes: rule.Map{"user": "ada", "path": "/"}})
	w.ask(&weir.Request{Attributes: rule.Map{"user": "ada", "path": "/"},
		Also: []rule.Attributes{rule.Map{"user": "bob", "path": "/"}}})
	for i := range w.recorder.stage {
		if b := w.recorder.stage[i].buf; len(b) > 0 {
			f.Add(slices.Clone(b))
		}
	}
	f.Fuzz(func(_ *testing.T, data []byte) {
		for _, e := range readStaged(data) {
			var w writer
			w.add(&e, 1)
		}
	})
}

// The record reaches back to its first entry even if it began by a clock that is ahead.
func TestRingBegins(t *testing.T) {
	g, err := newRing(MinBytes, 1, 100)
	if err != nil {
		t.Fatal(err)
	}
	for _, now := range []int64{40, 70} {
		g.add(&entry{time: now, client: uint64(now)})
		if got := g.reach(0); got != 40 {
			t.Errorf("after an entry at %d it reaches back to %d", now, got)
		}
	}
	g.clear(200)
	g.add(&entry{time: 80})
	if got := g.reach(0); got != 80 {
		t.Errorf("after clear it reaches back to %d", got)
	}
}

// What is no question of a node gets an error, and does no harm.
func TestNoQuestion(t *testing.T) {
	r, err := NewRecorder(Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range []int{0, -1} {
		text := fmt.Sprintf(`{"i":"x","p":%d}`, page)
		if _, err := r.Answer(t.Context(), []byte(text)); (err == nil) != (page == 0) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// What a node sends is bounded: it leaves out the clients of whole strata.
func TestAnswerBounds(t *testing.T) {
	w := newWorld(t, `limits: [{ name: a, per: [user], allow: 5/min }]`, Options{Bytes: 64 << 20})
	text := make([]byte, 400)
	random := rand.NewChaCha8([32]byte{1})
	for i := range 20_000 {
		w.now += 10_000
		_, _ = random.Read(text)
		w.ask(&weir.Request{Attributes: rule.Map{"user": fmt.Sprint("client-", i%1000), "path": string(text)}})
	}
	if c := w.recorder.record(0, 100<<10); c.bytes() > 100<<10 || c.Level == 0 || len(c.Chunks) == 0 ||
		len(c.pages()) > mostPages {
		t.Errorf("%d bytes from level %d on in %d chunks", c.bytes(), c.Level, len(c.Chunks))
	}
}
