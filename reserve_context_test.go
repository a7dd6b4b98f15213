package weir_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
)

type spanKey struct{}

// spanStore notes in which span each of its calls was made.
type spanStore struct {
	store.Reserver
	calls []string
}

func (s *spanStore) note(ctx context.Context, call string) {
	span, _ := ctx.Value(spanKey{}).(string)
	s.calls = append(s.calls, call+" in "+span)
}

func (s *spanStore) Take(ctx context.Context, charges []store.Charge, results []algo.Result) (int64, error) {
	s.note(ctx, "Take")
	return s.Reserver.Take(ctx, charges, results)
}

func (s *spanStore) Hold(ctx context.Context, id string, note []byte, timeout time.Duration) error {
	s.note(ctx, "Hold")
	return s.Reserver.Hold(ctx, id, note, timeout)
}

func (s *spanStore) Claim(ctx context.Context, id string) ([]byte, bool, error) {
	s.note(ctx, "Claim")
	return s.Reserver.Claim(ctx, id)
}

func (s *spanStore) Settle(ctx context.Context, list []store.Settlement) error {
	s.note(ctx, "Settle")
	return s.Reserver.Settle(ctx, list)
}

// A program that follows requests in traces finds its spans at reservations as at decisions:
// Request.Trace at its hooks, and the values of the context at its store.
func TestReserveInTrace(t *testing.T) {
	local, err := memory.New(memory.Options{Clock: newClock().read})
	if err != nil {
		t.Fatal(err)
	}
	defer local.Close()
	s := &spanStore{Reserver: local}
	var told []*weir.Trace
	l, err := weir.New(s, weir.WithRules(load(t, `limits: [{name: tokens, per: [user], allow: 1000/hour}]`)),
		weir.WithHooks(weir.Hooks{Decided: func(r *weir.Request, _ *weir.Decision) { told = append(told, r.Trace) }}))
	if err != nil {
		t.Fatal(err)
	}
	trace := &weir.Trace{TraceID: [16]byte{1}, SpanID: [8]byte{2}}
	r := weir.Request{Attributes: weir.Map{"user": "ada"}, Hits: 900, Trace: trace}
	var d weir.Decision
	in := func(span string) context.Context { return context.WithValue(t.Context(), spanKey{}, span) }
	for _, end := range []func(id string) (bool, error){
		func(id string) (bool, error) { return l.Reservations().Commit(in("commit"), id, 0) },
		func(id string) (bool, error) { return l.Reservations().Commit(in("commit"), id, 450) },
	} {
		id, err := l.Reserve(in("reserve"), &r, &d, 0)
		if err != nil || id == "" {
			t.Fatalf("%q, %v", id, err)
		}
		if ok, err := end(id); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	once := []string{"Take in reserve", "Hold in reserve", "Claim in commit", "Settle in commit"}
	if want := slices.Concat(once, once); !slices.Equal(s.calls, want) {
		t.Errorf("%q, want %q", s.calls, want)
	}
	if len(told) != 2 || told[0] != trace || told[1] != trace {
		t.Errorf("hooks were told of %v", told)
	}
}
