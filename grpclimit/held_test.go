package grpclimit_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weir-rl/weir/grpclimit"
)

// serverStream is a stream without a network.
type serverStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s serverStream) Context() context.Context    { return s.ctx }
func (s serverStream) SetHeader(metadata.MD) error { return nil }

// Calls and streams that share their lines are admitted in the order in which they came, when the
// limit admits them; calls of another key do not wait for them.
func TestWaitsInOneLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t,
			"limits:\n- {name: q, per: [user], algorithm: token_bucket, allow: {rate: 1/s, burst: 1}, on_limit: {wait: 4s}}\n")
		gate := newGate(t, l, grpclimit.Options{MaxHeld: 8, Identity: byUser, NoHeaders: true})
		start := time.Now()
		var mu sync.Mutex
		var log []string
		come := func(ctx context.Context, user string, streams bool) {
			ctx = metadata.NewIncomingContext(ctx, metadata.Pairs("x-user-id", user))
			go func() {
				var err error
				if streams {
					err = gate.Stream(nil, serverStream{ctx: ctx},
						&grpc.StreamServerInfo{FullMethod: "/shop.Orders/Watch"}, func(any,
							grpc.ServerStream) error {
							return nil
						})
				} else {
					err = call(ctx, gate.Unary, func() {})
				}
				mu.Lock()
				defer mu.Unlock()
				log = append(log, fmt.Sprintf("%s@%v %v", user, time.Since(start), status.Code(err)))
			}()
			synctest.Wait()
		}
		impatient, hangUp := context.WithCancel(t.Context())
		for i := range 4 {
			ctx := t.Context()
			if i == 2 {
				ctx = impatient
			}
			come(ctx, "ada", i%2 == 1)
		}
		come(t.Context(), "bob", false)
		come(t.Context(), "ada", false)
		if s := gate.Stats(); s.Held != 4 || s.Lines != 1 || s.Longest != 4 || s.Total != 4 {
			t.Errorf("%+v", s)
		}
		come(t.Context(), "ada", true) // four places are left, and ada has four
		time.Sleep(1500 * time.Millisecond)
		hangUp()
		synctest.Wait()
		time.Sleep(time.Second)
		gate.Drain() // one is left
		synctest.Wait()
		want := []string{"ada@0s OK", "bob@0s OK", "ada@0s ResourceExhausted", "ada@1s OK", "ada@1.5s Canceled",
			"ada@2s OK", "ada@2.5s ResourceExhausted"}
		if !slices.Equal(log, want) {
			t.Errorf("got  %v\nwant %v", log, want)
		}
		if s := gate.Stats(); s.Held != 0 || s.Lines != 0 || s.HungUp != 1 || s.TurnedAway != 2 {
			t.Errorf("%+v", s)
		}
	})
}

// The end of one call lets in the next one that waits for its slot.
func TestWaitsForASlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, "limits:\n- {name: c, algorithm: concurrency, allow: 1, on_limit: {wait: 5s}}\n")
		intercept := newGate(t, l, grpclimit.Options{NoHeaders: true}).Unary
		start := time.Now()
		var mu sync.Mutex
		var at []time.Duration
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if err := call(t.Context(), intercept, func() {
					mu.Lock()
					at = append(at, time.Since(start))
					mu.Unlock()
					time.Sleep(1234567 * time.Microsecond)
				}); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		for i := range at {
			if want := time.Duration(i) * 1234567 * time.Microsecond; at[i] != want {
				t.Errorf("number %d at %v, want %v", i, at[i], want)
			}
		}
	})
}

// Over a real connection a call that waits too long is refused with the time to come back, and one
// that is admitted in time is answered with the headers of its admission.
func TestWaitsOverTheWire(t *testing.T) {
	client := serve(t, limiter(t, `
limits:
- {name: soon, when: {user: ada}, algorithm: sliding_log, allow: 1/100ms, on_limit: {wait: 20s}}
- {name: late, when: {user: bob}, algorithm: sliding_log, allow: 1/hour, on_limit: {wait: 20s}}
`), grpclimit.Options{Identity: byUser})
	for range 3 {
		var header metadata.MD
		if _, err := client.Check(as("ada"), &healthpb.HealthCheckRequest{}, grpc.Header(&header)); err != nil ||
			header.Get("ratelimit-remaining")[0] != "0" {
			t.Errorf("%v, %v", err, header)
		}
	}
	for _, want := range []codes.Code{codes.OK, codes.ResourceExhausted} {
		var trailer metadata.MD
		_, err := client.Check(as("bob"), &healthpb.HealthCheckRequest{}, grpc.Trailer(&trailer))
		if status.Code(err) != want || (trailer.Get("retry-after") != nil) != (want != codes.OK) {
			t.Errorf("%v, %v", err, trailer)
		}
	}
}
