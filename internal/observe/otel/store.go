package otel

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.40.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// Store returns s with a span for each call on behalf of a followed request. The span and its
// attributes follow the semantic conventions for database clients. system, such as "redis", is one
// of the conventions' names, and names the span.
func (t *Tracer) Store(s store.Store, system string) store.Store {
	followed := &tracedStore{Store: s, tracer: t.tracer, system: system}
	followed.prompt, _ = s.(store.Prompt)
	if r, ok := store.As[store.Reserver](s); ok {
		return &tracedReserver{followed, r}
	}
	return followed
}

type tracedStore struct {
	store.Store
	prompt store.Prompt // the store, if it is one
	tracer trace.Tracer
	system string
}

// tracedReserver is a tracedStore over a store.Reserver.
type tracedReserver struct {
	*tracedStore
	r store.Reserver
}

// call begins the span of a call; end is nil if ctx has no span that is recorded. operation is the
// name of the interface's operation: a call may be sent to the database together with others, so no
// command of the database belongs to one span. n is the number of charges or settlements in it.
func (s *tracedStore) call(ctx context.Context, operation string, n int,
	about ...attribute.KeyValue) (_ context.Context, end func(error)) {
	if !trace.SpanFromContext(ctx).IsRecording() {
		return ctx, nil
	}
	about = append(about, semconv.DBSystemNameKey.String(s.system), semconv.DBOperationName(operation))
	if n > 1 { // by the conventions a batch has two operations at least
		about = append(about, semconv.DBOperationBatchSize(n))
	}
	ctx, child := s.tracer.Start(ctx, s.system, trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(about...))
	return ctx, func(err error) {
		if err != nil {
			child.SetStatus(codes.Error, err.Error())
			child.SetAttributes(errorType(err))
		}
		child.End()
	}
}

// errorType returns the class of an error. Its text may hold any address, and so would make too
// many classes.
func errorType(err error) attribute.KeyValue {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return semconv.ErrorTypeKey.String("timeout")
	case errors.Is(err, context.Canceled):
		return semconv.ErrorTypeKey.String("cancelled")
	case errors.Is(err, store.ErrNotCharged):
		return semconv.ErrorTypeKey.String("not_charged")
	}
	return semconv.ErrorTypeOther
}

// Take implements store.Store.
func (s *tracedStore) Take(ctx context.Context, charges []store.Charge, results []algo.Result) (int64, error) {
	if !trace.SpanFromContext(ctx).IsRecording() { // before the attribute, which would be allocated
		return s.Store.Take(ctx, charges, results)
	}
	ctx, end := s.call(ctx, "take", len(charges), attribute.Int("weir.limits", len(charges)))
	now, err := s.Store.Take(ctx, charges, results)
	end(err)
	return now, err
}

// TakeNow implements store.Prompt. It has no span, because it decides without asking anybody.
func (s *tracedStore) TakeNow(charges []store.Charge, results []algo.Result) (now int64, ok bool) {
	if s.prompt == nil {
		return 0, false
	}
	return s.prompt.TakeNow(charges, results)
}

// Release implements store.Store.
func (s *tracedStore) Release(ctx context.Context, c *rule.Counter, key []byte, slot uint64) (ok bool, err error) {
	ctx, end := s.call(ctx, "release", 1)
	if ok, err = s.Store.Release(ctx, c, key, slot); end != nil {
		end(err)
	}
	return ok, err
}

// Unwrap returns the traced store, so that its other interfaces can be found.
func (s *tracedStore) Unwrap() store.Store { return s.Store }

// Hold implements store.Reserver.
func (s *tracedReserver) Hold(ctx context.Context, id string, note []byte, timeout time.Duration) error {
	ctx, end := s.call(ctx, "hold", 1)
	err := s.r.Hold(ctx, id, note, timeout)
	if end != nil {
		end(err)
	}
	return err
}

// Claim implements store.Reserver.
func (s *tracedReserver) Claim(ctx context.Context, id string) (note []byte, ok bool, err error) {
	ctx, end := s.call(ctx, "claim", 1)
	if note, ok, err = s.r.Claim(ctx, id); end != nil {
		end(err)
	}
	return note, ok, err
}

// Settle implements store.Reserver.
func (s *tracedReserver) Settle(ctx context.Context, settlements []store.Settlement) error {
	ctx, end := s.call(ctx, "settle", len(settlements))
	err := s.r.Settle(ctx, settlements)
	if end != nil {
		end(err)
	}
	return err
}

// Expired implements store.Reserver. Nobody's request asks for it.
func (s *tracedReserver) Expired(ctx context.Context, n int) (notes [][]byte, err error) {
	return s.r.Expired(ctx, n)
}
