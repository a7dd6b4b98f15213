package otel

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/door"
	"github.com/weir-rl/weir/internal/util/chars"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

func recording(share float64) (*Tracer, *tracetest.SpanRecorder) {
	spans := tracetest.NewSpanRecorder()
	return newTracer(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer(scope), share), spans
}

func attributesOfSpan(s sdktrace.ReadOnlySpan) map[string]string {
	m := map[string]string{}
	for _, a := range s.Attributes() {
		m[string(a.Key)] = a.Value.String()
	}
	return m
}

// TestKeptTexts: a door may read the next request into the buffer that a request lay in, while the
// span of that request waits to be sent.
func TestKeptTexts(t *testing.T) {
	tracer, spans := recording(0)
	buffer := []byte(followed + "vendor=value" + "shop" + "note")
	text := chars.View(buffer)
	at := func(from, n int) string { return text[from : from+n] }
	n := len(followed)
	_, trace := tracer.Follow(t.Context(), at(0, n), at(n, 12))
	tracer.Note(trace, slog.String("text", at(n+16, 4)))
	tracer.Hooks().Decided(&weir.Request{Trace: trace, Door: "resp"}, &weir.Decision{Domain: at(n+12, 4)})
	for i := range buffer {
		buffer[i] = '#'
	}
	s := spans.Ended()[0]
	if got := attributesOfSpan(s); got["weir.domain"] != "shop" || got["text"] != "note" || got["weir.door"] != "resp" {
		t.Errorf("attributes %v", got)
	}
	if got := s.SpanContext().TraceState().String(); got != "vendor=value" {
		t.Errorf("the trace's state is %q", got)
	}
	if got := s.Parent().TraceID().String(); got != followed[3:35] {
		t.Errorf("the trace is %s", got)
	}
}

// reserver is a store whose methods all fail or succeed.
type reserver struct {
	store.Store
	err error
}

func (r reserver) Take(context.Context, []store.Charge, []algo.Result) (int64, error) {
	return 1, r.err
}

func (r reserver) Release(context.Context, *rule.Counter, []byte, uint64) (bool, error) {
	return true, r.err
}

func (r reserver) Hold(context.Context, string, []byte, time.Duration) error { return r.err }

func (r reserver) Claim(context.Context, string) ([]byte, bool, error) { return nil, true, r.err }

func (r reserver) Expired(context.Context, int) ([][]byte, error) { return nil, r.err }

func (r reserver) Settle(context.Context, []store.Settlement) error { return r.err }

// TestAct: the span of an act goes on after a decision that is a part of it, and each call of the
// store is a span of its own in it, whether it fails or not; without a span that is recorded there
// is none.
func TestAct(t *testing.T) {
	for _, failure := range []error{nil, errors.New("it is away")} {
		tracer, spans := recording(0)
		s, ok := tracer.Store(reserver{err: failure}, "postgresql").(store.Reserver)
		if !ok {
			t.Fatal("the store that is followed holds no reservations")
		}
		calls := func(ctx context.Context) {
			for name, err := range map[string]error{
				"Take":    func() error { _, err := s.Take(ctx, make([]store.Charge, 2), nil); return err }(),
				"Release": func() error { _, err := s.Release(ctx, nil, nil, 0); return err }(),
				"Hold":    s.Hold(ctx, "", nil, 0),
				"Claim":   func() error { _, _, err := s.Claim(ctx, ""); return err }(),
				"Settle":  s.Settle(ctx, make([]store.Settlement, 1)),
			} {
				if !errors.Is(err, failure) {
					t.Errorf("%s: %v, want %v", name, err, failure)
				}
			}
		}
		ctx, trace := tracer.Act(t.Context(), door.Reserve, followed, "")
		tracer.Hooks().Decided(&weir.Request{Trace: trace, Door: "http"}, &weir.Decision{Domain: "shop", Allowed: true})
		calls(ctx)
		tracer.Note(trace, slog.Bool("weir.reserved", true), slog.Int("weir.attempt", 2))
		tracer.End(trace, failure)
		tracer.End(trace, nil) // once is enough
		calls(ctx)             // the span has ended
		if _, err := s.Expired(ctx, 1); !errors.Is(err, failure) {
			t.Errorf("Expired: %v", err)
		}
		calls(t.Context())
		ended := spans.Ended()
		if len(ended) != 6 {
			t.Fatalf("%d spans, want five of the store and one around them", len(ended))
		}
		act := ended[5]
		if got := attributesOfSpan(act); act.Name() != "weir reserve" || got["weir.allowed"] != "true" ||
			got["weir.reserved"] != "true" || got["weir.attempt"] != "2" {
			t.Errorf("%s: %v", act.Name(), got)
		}
		operations := ""
		for _, child := range ended[:5] {
			got := attributesOfSpan(child)
			operations += got["db.operation.name"] + got["db.operation.batch.size"] + " "
			if got["db.system.name"] != "postgresql" || (got["error.type"] == "_OTHER") != (failure != nil) {
				t.Errorf("attributes %v", got)
			}
			if child.Name() != "postgresql" || child.Parent().SpanID() != act.SpanContext().SpanID() ||
				(child.Status().Description != "") != (failure != nil) {
				t.Errorf("%s under %s: %v", child.Name(), child.Parent().SpanID(), child.Status())
			}
		}
		if operations != "take2 release hold claim settle " {
			t.Errorf("operations %q", operations)
		}
	}
	tracer, spans := recording(0)
	if _, trace := tracer.Act(t.Context(), door.Commit, "", ""); trace != nil || len(spans.Started()) > 0 {
		t.Error("an act that nobody follows has a span")
	}
	if plain, ok := tracer.Store(nothing{}, "redis").(store.Reserver); ok {
		t.Errorf("%T cannot hold reservations", plain)
	}
}
