package grpclimit_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weir-rl/weir/grpclimit"
	"github.com/weir-rl/weir/internal/testkit/doortest"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/overload"
)

func newOverload(t testing.TB, o overload.Options) *overload.Limiter {
	t.Helper()
	a, err := overload.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestAdaptive calls a real server: a stream that stays takes a place of a fixed limit, and another
// call is turned away, uncharged.
func TestAdaptive(t *testing.T) {
	l := limiter(t, `
limits:
- {name: checks, when: {path: /grpc.health.v1.Health/Check}, allow: 2/hour, algorithm: sliding_log, priority: sheddable}
- {name: watches, when: {path: /grpc.health.v1.Health/Watch}, allow: 100/hour}
`)
	a := newOverload(t, overload.Options{Fixed: 1})
	client := serve(t, l, grpclimit.Options{Overload: a})
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := client.Watch(ctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		_, err = client.Check(t.Context(), &healthpb.HealthCheckRequest{})
		s := status.Convert(err)
		if s.Code() != codes.Unavailable || len(s.Details()) != 1 ||
			s.Details()[0].(*errdetails.RetryInfo).RetryDelay.AsDuration() != time.Second {
			t.Fatalf("%v %v", s, s.Details())
		}
	}
	if st := a.Stats(); st.Refused != [3]uint64{3, 0, 0} || st.InFlight != 1 {
		t.Errorf("%+v", st)
	}
	cancel()
	if _, err := stream.Recv(); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("%v", err)
	}
	patience.Until(t, "the server learns of it", func() bool { return a.Stats().InFlight == 0 })
	for i := range 2 {
		if _, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
			t.Errorf("call %d: %v", i, err)
		}
	}
	if _, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{}); status.Code(
		err) != codes.ResourceExhausted {
		t.Errorf("%v", err)
	}
	if st := a.Stats(); st.InFlight != 0 {
		t.Errorf("%+v", st)
	}
}

type fakeStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s fakeStream) Context() context.Context     { return s.ctx }
func (s fakeStream) SetHeader(metadata.MD) error  { return nil }
func (s fakeStream) SendHeader(metadata.MD) error { return nil }
func (s fakeStream) SendMsg(any) error            { return nil }

// TestAdaptiveOutcomes: each way in which a call can end frees its place; a stream's latency ends
// with its first message.
func TestAdaptiveOutcomes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t,
			"limits: [{name: all, allow: 1000/hour}, {name: queue, when: {path: /queue}, algorithm: leaky_bucket, allow: {rate: 1/s, burst: 5}}]")
		for _, fixed := range []int{0, 1} {
			a, load := newOverload(t, overload.Options{Fixed: fixed}), &doortest.Loads{}
			gate := newGate(t, l, grpclimit.Options{Overload: a, Load: load})
			unary, stream := gate.Unary, gate.Stream
			call := func(path string, h func() error) (err error) {
				defer func() {
					if recover() != nil {
						err = errors.New("panicked")
					}
				}()
				_, err = unary(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: path},
					func(context.Context, any) (any, error) { return nil, h() })
				return err
			}
			nap := func() { time.Sleep(20 * time.Millisecond) }
			_ = call("/x", func() error { nap(); return nil })
			_ = call("/x", func() error { nap(); return status.Error(codes.NotFound, "no") })
			_ = call("/x", func() error { nap(); return status.Error(codes.Unavailable, "no") })
			_ = call("/x", func() error { panic("no") })
			streamed := make(chan error)
			go func() {
				streamed <- stream(nil, fakeStream{ctx: t.Context()}, &grpc.StreamServerInfo{FullMethod: "/s"},
					func(_ any, s grpc.ServerStream) error {
						nap()
						if err := s.SendHeader(nil); err != nil {
							return err
						}
						if err := s.SendMsg(nil); err != nil {
							return err
						}
						time.Sleep(time.Hour)
						return nil
					})
			}()
			time.Sleep(time.Minute)
			synctest.Wait()
			inside, _ := load.Told()
			if in := a.Stats().InFlight; in != fixed || inside != 1 {
				t.Errorf("of a fixed limit of %d, a stream takes %d; %d inside", fixed, in, inside)
			}
			if err := <-streamed; err != nil {
				t.Error(err)
			}
			if _, answered := load.Told(); !slices.Equal(answered, []time.Duration{20e6, 20e6, 20e6}) {
				t.Errorf("%v", answered)
			}
			// While one is held, its place is another's.
			_ = call("/queue", func() error { return nil })
			held := make(chan error)
			go func() { held <- call("/queue", func() error { return nil }) }()
			synctest.Wait()
			if err := call("/x", func() error { return nil }); err != nil {
				t.Errorf("beside a call that is held: %v", err)
			}
			if err := <-held; err != nil {
				t.Error(err)
			}
			if fixed == 1 {
				go func() { held <- call("/queue", func() error { return nil }) }()
				synctest.Wait()
				if err := call("/x", func() error { time.Sleep(time.Minute); return nil }); err != nil {
					t.Error(err)
				}
				if err := <-held; status.Code(err) != codes.Unavailable {
					t.Errorf("after its wait there was no room: %v", err)
				}
			}
			inside, _ = load.Told()
			if in := a.Stats().InFlight; in != 0 || inside != 0 {
				t.Errorf("%d are under way, %d inside", in, inside)
			}
			time.Sleep(time.Hour)
		}
	})
}

func TestBadAdaptive(t *testing.T) {
	if _, err := overload.New(overload.Options{Min: 5, Max: 3}); err == nil {
		t.Error("taken")
	}
}
