package rls

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/door"
	"github.com/weir-rl/weir/internal/observe/recent"
	"github.com/weir-rl/weir/internal/testkit/doortest"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/store"
)

// waysToDecide are the ways in which a store makes the door answer: on the goroutine that reads the
// connection, on another one, or now so, now so.
func waysToDecide() map[string]func(store.Store) store.Store {
	return map[string]func(store.Store) store.Store{
		"at once": func(s store.Store) store.Store { return s },
		"waiting": func(s store.Store) store.Store { return &doortest.WaitingStore{Store: s} },
		"mixed": func(s store.Store) store.Store {
			return &doortest.WaitingStore{Store: s,
				Waits: func(charges []store.Charge) bool { return len(charges[0].Key)%2 == 0 }}
		},
	}
}

// isSlow is what has to wait: keys that say so.
func isSlow(charges []store.Charge) bool {
	return slices.ContainsFunc(charges, func(c store.Charge) bool { return bytes.Contains(c.Key, []byte("slow")) })
}

// TestQuickBesideSlow: calls that the store decides at once are answered while others on the same
// connection wait.
func TestQuickBesideSlow(t *testing.T) {
	gate := make(chan struct{})
	var s *doortest.WaitingStore
	b := newBedOn(t, twoAMinute, Options{}, ServerOptions{}, func(inner store.Store) store.Store {
		s = &doortest.WaitingStore{Store: inner, Waits: isSlow, Gate: gate, Far: true}
		return s
	})
	open := sync.OnceFunc(func() { close(gate) })
	t.Cleanup(open)
	const slow, quick = 100, 300
	answers := make(chan string, slow)
	for i := range slow {
		go func() { answers <- b.ask(t, fmt.Sprint("d: k=slow", i)) }()
	}
	patience.Until(t, "the slow ones wait", func() bool { return s.Begun.Load() == slow })
	var all sync.WaitGroup
	for i := range quick {
		all.Go(func() {
			for n := range 3 {
				if got, refused := b.ask(t, fmt.Sprint("d: k=quick", i)), n == 2; strings.Contains(got,
					"OVER_LIMIT") != refused {
					t.Errorf("call %d: %s", n, got)
				}
			}
		})
	}
	all.Wait()
	if len(answers) > 0 || s.Begun.Load() != slow || s.AtOnce.Load() != 3*quick {
		t.Errorf("%d of the slow ones are answered, %d calls waited, %d were decided at once", len(answers),
			s.Begun.Load(), s.AtOnce.Load())
	}
	open()
	for range slow {
		if got := <-answers; !strings.Contains(got, "OK") {
			t.Error(got)
		}
	}
}

// observer notes all reports on a door's calls.
type observer struct {
	mu    sync.Mutex
	lines []string
}

func (o *observer) note(format string, args ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lines = append(o.lines, fmt.Sprintf(format, args...))
}

// Begin implements weir.Stopwatch.
func (o *observer) Begin() int64 { return 1 }

// End implements weir.Stopwatch.
func (o *observer) End(_ int64, r *weir.Request, d *weir.Decision) {
	if r == nil {
		o.note("timed")
		return
	}
	o.note("timed: %s %d hits, allowed %v, %d limits", r.Domain, r.Hits, d.Allowed, len(d.Limits))
}

type spanKey struct{}

// Follow implements door.Tracer.
func (o *observer) Follow(ctx context.Context, traceparent, tracestate string) (context.Context, *weir.Trace) {
	if traceparent == "" {
		return ctx, nil
	}
	o.note("span begins: %s %s", traceparent, tracestate)
	return context.WithValue(ctx, spanKey{}, traceparent), &weir.Trace{}
}

func (o *observer) Act(ctx context.Context, _ door.Act, _, _ string) (context.Context, *weir.Trace) {
	return ctx, nil
}

func (o *observer) Note(*weir.Trace, ...slog.Attr) {}

// tracing is an observer as a door.Tracer.
type tracing struct{ *observer }

// End implements door.Tracer.
func (t tracing) End(_ *weir.Trace, err error) { t.note("span ends: %v", err) }

// TestSameBothWays: a call is answered alike whether the store decides it at once or not, and so
// are all reports on it: to hooks, of recent decisions, to the stopwatch, in traces.
func TestSameBothWays(t *testing.T) {
	const rules = `
domain: d
descriptors:
- {key: a, rate_limit: {unit: minute, requests_per_unit: 2}}
- {key: q, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
- {key: s, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 0}}
limits:
- {name: n, when: {n: "*"}, allow: 4/hour, algorithm: sliding_log}
- {name: slots, when: {slot: "*"}, allow: 1, algorithm: concurrency}
exempt: {n: [root]}
`
	asks := []string{
		"d: a=1", "d: a=1", "d: a=1", "d: a=1; q=1", "d: q=1; s=1", "d: q=1", "d+3: n=1", "d+3: n=1", "d: n=1 -2", "d: n=1 +0", "d: n=root",
		"d: slot=x", "d: slot=x", "d: none=1", "elsewhere: a=1", ": a=1", "d:", "d: a=9 @3/HOUR", "d: a=9 @3/99", "d+9: a=2; n=2", "d: a=22",
	}
	told := map[string][]string{}
	for name, wrap := range waysToDecide() {
		o := &observer{}
		kept, err := recent.New(recent.Options{Sample: 1})
		if err != nil {
			t.Fatal(err)
		}
		hooks := weir.JoinHooks(kept.Hooks(), weir.Hooks{Decided: func(r *weir.Request, d *weir.Decision) {
			o.note("decided: %s, door %s, %d hits, followed %v, allowed %v at %d, id %v", r.Domain, r.Door, r.Hits,
				r.Trace != nil, d.Allowed, d.Time, d.ID != 0)
			for i := range d.Limits {
				l := &d.Limits[i]
				o.note("limit %s: %+v %v %d %v", l.Window.Name, l.Result, l.Mode, l.Descriptor, l.Slot != "")
			}
		}})
		authorize := func(_, authorization string) error {
			if authorization == "stranger" {
				return status.Error(codes.Unauthenticated, "who are you?")
			}
			return nil
		}
		b := newBedOn(t, rules, Options{ResponseHeaders: true, Stopwatch: o, Tracer: tracing{o}},
			ServerOptions{Authorize: Authorizer{check: authorize}}, wrap, weir.WithHooks(hooks))
		for i, ask := range asks {
			ctx := metadata.AppendToOutgoingContext(context.Background(), "authorization", "friend")
			if i%2 == 0 {
				ctx = metadata.AppendToOutgoingContext(ctx, "traceparent", fmt.Sprint("parent-", i), "tracestate",
					"x=1")
			}
			answer, err := b.client.ShouldRateLimit(ctx, parseRequest(t, ask))
			for _, h := range answer.GetResponseHeadersToAdd() {
				if _, err := weir.ParseDecisionID(h.Value); err == nil {
					h.Value = "ID"
				}
			}
			o.note("%s: %s %v", ask, show(answer, err), answer.GetResponseHeadersToAdd())
			b.now.Add(time.Second.Microseconds())
		}
		ctx := metadata.AppendToOutgoingContext(context.Background(), "authorization", "stranger")
		_, err = b.client.ShouldRateLimit(ctx, parseRequest(t, "d: a=1"))
		o.note("%v", err)
		var garbage []byte
		err = b.conn.Invoke(context.Background(), rlspb.RateLimitService_ShouldRateLimit_FullMethodName,
			[]byte{1, 2, 3}, &garbage, grpc.ForceCodec(rawCodec{}))
		o.note("%v", err)
		for _, d := range kept.List(recent.Query{}) {
			o.note("recent: %s %v %v %d limits", d.Door, d.Attributes, d.Allowed, len(d.Limits))
		}
		told[name] = o.lines
	}
	if n := len(told["at once"]); n < 5*len(asks) {
		t.Fatalf("only %d things were told", n)
	}
	for name, lines := range told {
		for i, want := range told["at once"] {
			if i >= len(lines) || lines[i] != want {
				t.Fatalf("%s: line %d of %d\n got %q\nwant %s", name, i, len(lines),
					lines[min(i, len(lines)):min(i+1, len(lines))], want)
			}
		}
	}
}

// ctxStore notes the context of each call that waits.
type ctxStore struct {
	*doortest.WaitingStore
	seen chan context.Context
}

func (s ctxStore) Take(ctx context.Context, charges []store.Charge, results []algo.Result) (int64, error) {
	s.seen <- ctx
	return s.WaitingStore.Take(ctx, charges, results)
}

// TestWaitingEnds: a call that waits ends with its caller or its deadline, and so does its span,
// which the store sees.
func TestWaitingEnds(t *testing.T) {
	o := &observer{}
	var s ctxStore
	b := newBedOn(t, twoAMinute, Options{Tracer: tracing{o}, Stopwatch: o}, ServerOptions{},
		func(inner store.Store) store.Store {
			s = ctxStore{&doortest.WaitingStore{Store: inner, Gate: make(chan struct{})}, make(chan context.Context, 1)}
			return s
		})
	for _, c := range []struct {
		deadline time.Duration
		want     error
	}{{0, context.Canceled}, {50 * time.Millisecond, context.DeadlineExceeded}} {
		ended := func(deadline time.Duration) bool {
			parent := fmt.Sprint("parent ", deadline)
			ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(context.Background(), "traceparent",
				parent))
			defer cancel()
			if deadline > 0 {
				var expire context.CancelFunc
				ctx, expire = context.WithTimeout(ctx, deadline)
				defer expire()
			}
			failed := make(chan error, 1)
			go func() {
				_, err := b.client.ShouldRateLimit(ctx, parseRequest(t, "d: k=1"))
				failed <- err
			}()
			var seen context.Context
			select {
			case seen = <-s.seen:
			case err := <-failed:
				if deadline == 0 {
					t.Fatal(err)
				}
				return false
			}
			switch seen.Value(spanKey{}) {
			case parent:
			case nil:
				t.Fatal("the store does not see the span")
			default: // of a call before, that came after its end
				return false
			}
			if deadline == 0 {
				cancel()
			}
			if code := status.Code(<-failed); code != status.FromContextError(c.want).Code() {
				t.Errorf("%v, want %v", code, c.want)
			}
			<-seen.Done()
			err := seen.Err() // of a deadline the client may have told first
			patience.Until(t, "the span has ended", func() bool {
				o.mu.Lock()
				defer o.mu.Unlock()
				n := len(o.lines)
				return n >= 3 && o.lines[n-2] == fmt.Sprint("span ends: ", err) && o.lines[n-1] == "timed"
			})
			return true
		}
		// On a busy machine the deadline may be over before the store is asked.
		for deadline := c.deadline; !ended(deadline); deadline *= 2 {
		}
	}
}
