package otel

import (
	"context"
	"encoding/hex"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.40.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/door"
)

// Tracer follows requests: those whose caller does, as their traceparent says, and a share of those
// without a traceparent. Requests that it does not follow cost nothing. Safe for concurrent use.
type Tracer struct {
	tracer trace.Tracer
	share  float64
}

func newTracer(t trace.Tracer, share float64) *Tracer {
	return &Tracer{tracer: t, share: share}
}

// span is the span of a decision or of an act, to which Trace.Span of the request leads back.
type span struct {
	weir.Trace
	span  trace.Span
	act   bool // it does not end with a decision
	ended atomic.Bool
}

// The fields of W3C's Trace Context.
const (
	traceparentField = "traceparent"
	tracestateField  = "tracestate"
)

// sampled reports whether the caller records the trace, by its traceparent; ok is false if that is
// invalid (https://www.w3.org/TR/trace-context/#traceparent-header).
func sampled(traceparent string) (yes, ok bool) {
	// version - trace-id - parent-id - trace-flags; later versions may append to it.
	if len(traceparent) < 55 || traceparent[2] != '-' || traceparent[35] != '-' || traceparent[52] != '-' ||
		traceparent[:2] == "ff" ||
		len(traceparent) > 55 && (traceparent[:2] == "00" || traceparent[55] != '-') {
		return false, false
	}
	var flags [1]byte
	if _, err := hex.Decode(flags[:], []byte(traceparent[53:55])); err != nil {
		return false, false
	}
	return flags[0]&1 == 1, true
}

// follows reports whether to follow a request.
func (t *Tracer) follows(traceparent string) bool {
	if yes, ok := sampled(traceparent); ok {
		return yes
	}
	return t.share > 0 && (t.share >= 1 || rand.Float64() < t.share)
}

// from returns ctx with the caller's span, if there is one.
func from(ctx context.Context, traceparent, tracestate string) context.Context {
	if traceparent == "" {
		return ctx
	}
	// The caller's span outlives the request. At some doors the text lies in a buffer that does
	// not.
	return propagation.TraceContext{}.Extract(ctx,
		propagation.MapCarrier{traceparentField: traceparent, tracestateField: strings.Clone(tracestate)})
}

// Follow implements door.Tracer. It begins the span "weir decide" of a followed request.
func (t *Tracer) Follow(ctx context.Context, traceparent, tracestate string) (context.Context, *weir.Trace) {
	if !t.follows(traceparent) {
		return ctx, nil
	}
	ctx, s := t.decide(from(ctx, traceparent, tracestate))
	return ctx, &s.Trace
}

// Act implements door.Tracer. It begins the span of an act that is followed. A decision that is
// part of the act adds its attributes.
func (t *Tracer) Act(ctx context.Context, what door.Act, traceparent, tracestate string) (context.Context,
	*weir.Trace) {
	if !t.follows(traceparent) {
		return ctx, nil
	}
	ctx, s := t.begin(from(ctx, traceparent, tracestate), string(what), true)
	return ctx, &s.Trace
}

// decide begins the span of a decision.
func (t *Tracer) decide(ctx context.Context) (context.Context, *span) {
	return t.begin(ctx, "weir decide", false)
}

func (t *Tracer) begin(ctx context.Context, name string, act bool) (context.Context, *span) {
	ctx, started := t.tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindInternal))
	is := started.SpanContext()
	s := &span{Trace: weir.Trace{TraceID: is.TraceID(), SpanID: is.SpanID()}, span: started, act: act}
	s.Trace.Span = s
	return ctx, s
}

// Note implements door.Tracer.
func (t *Tracer) Note(of *weir.Trace, list ...slog.Attr) {
	s, ok := of.Span.(*span)
	if !ok {
		return
	}
	for _, a := range list {
		switch a.Value.Kind() {
		case slog.KindBool:
			s.span.SetAttributes(attribute.Bool(a.Key, a.Value.Bool()))
		case slog.KindInt64:
			s.span.SetAttributes(attribute.Int64(a.Key, a.Value.Int64()))
		default:
			s.span.SetAttributes(attribute.String(a.Key, kept(a.Value.String())))
		}
	}
}

// End implements door.Tracer. It ends the span of an act, or of a request whose decision failed.
// The span of a decision has ended already.
func (t *Tracer) End(of *weir.Trace, err error) {
	if s, ok := of.Span.(*span); ok {
		s.end(err)
	}
}

func (s *span) end(err error) {
	if s.ended.Swap(true) {
		return
	}
	if err != nil {
		s.span.SetStatus(codes.Error, err.Error())
	}
	s.span.End()
}

// Hooks return hooks that note a decision on its span, and end the span. The span of an act goes
// on.
func (t *Tracer) Hooks() weir.Hooks { return weir.Hooks{Decided: decided} }

func decided(r *weir.Request, d *weir.Decision) {
	if r.Trace == nil {
		return
	}
	s, ok := r.Trace.Span.(*span)
	if !ok || s.ended.Load() {
		return
	}
	attributes := []attribute.KeyValue{
		attribute.String("weir.domain", kept(d.Domain)),
		attribute.Bool("weir.allowed", d.Allowed),
		attribute.String("weir.door", r.Door),
	}
	rules := d.LimitedBy(nil)
	if len(rules) == 0 { // admitted: the rules that were met
		for i := range d.Limits {
			if name := d.Limits[i].Window.Rule.Name; !slices.Contains(rules, name) {
				rules = append(rules, name)
			}
		}
	}
	for i := range rules {
		rules[i] = valid(rules[i])
	}
	attributes = append(attributes, attribute.StringSlice("weir.rule", rules))
	if d.ID != 0 {
		attributes = append(attributes, attribute.String("weir.decision", d.ID.String()))
	}
	if d.WithoutStore != nil {
		s.span.RecordError(d.WithoutStore)
	}
	s.span.SetAttributes(attributes...)
	if !s.act {
		s.end(nil)
	}
}

// valid makes a text from a client fit for protobuf, which takes UTF-8 alone.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// kept is valid for a text that outlives its request. At some doors the text lies in a buffer that
// the next request is read into, while the span still waits to be sent.
func kept(s string) string { return strings.Clone(valid(s)) }

// traceKey is the context key of the *weir.Trace of a request that Serve follows.
type traceKey struct{}

// TraceOf returns the trace of a request that Serve follows, for httplimit.Options.Trace; nil if
// Serve does not follow it.
func TraceOf(r *http.Request) *weir.Trace {
	t, _ := r.Context().Value(traceKey{}).(*weir.Trace)
	return t
}

// Serve returns a handler that gives each followed request a span of an HTTP server, by
// OpenTelemetry's semantic conventions, and inside it a span for the decision. next gets the latter
// by TraceOf. The request that next passes on carries a traceparent of the former.
func (t *Tracer) Serve(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		traceparent := r.Header.Get(traceparentField)
		if !t.follows(traceparent) {
			next.ServeHTTP(w, r)
			return
		}
		ctx, server := t.tracer.Start(from(r.Context(), traceparent, r.Header.Get(tracestateField)), method(r.Method),
			trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(attributesOf(r)...))
		propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(r.Header))
		ctx, decision := t.decide(ctx)
		out := &statusWriter{ResponseWriter: w}
		defer func() {
			decision.end(nil) // if the request was answered without a decision
			status := out.status
			if p := recover(); p != nil {
				server.SetStatus(codes.Error, "the answer broke off")
				server.End()
				panic(p)
			}
			if status == 0 {
				status = http.StatusOK // as net/http does
			}
			server.SetAttributes(semconv.HTTPResponseStatusCode(status))
			if status >= 500 { // 4xx are no errors of a server
				server.SetStatus(codes.Error, "")
				server.SetAttributes(attribute.String("error.type", strconv.Itoa(status)))
			}
			server.End()
		}()
		next.ServeHTTP(out, r.WithContext(context.WithValue(ctx, traceKey{}, &decision.Trace)))
	})
}

// statusWriter notes the status of an answer.
type statusWriter struct {
	http.ResponseWriter
	status int
}

// WriteHeader implements http.ResponseWriter.
func (w *statusWriter) WriteHeader(status int) {
	if w.status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// method returns the name of a server's span. Unknown methods share one name, so that clients
// cannot make any number of names.
func method(m string) string {
	switch m {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
		http.MethodConnect, http.MethodOptions, http.MethodTrace:
		return m
	}
	return "HTTP"
}

// attributesOf returns the attributes of a server's span that are known at its beginning. It leaves
// out the query, which holds secrets more often than it helps.
func attributesOf(r *http.Request) []attribute.KeyValue {
	name := method(r.Method)
	if name == "HTTP" {
		name = "_OTHER"
	}
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	host := r.Host
	list := []attribute.KeyValue{
		attribute.String("http.request.method", name),
		semconv.URLPath(valid(r.URL.Path)), semconv.URLScheme(scheme),
		semconv.NetworkProtocolVersion(strings.TrimPrefix(strings.TrimSuffix(r.Proto, ".0"), "HTTP/")),
	}
	if h, port, err := net.SplitHostPort(host); err == nil {
		host = h
		if n, err := strconv.Atoi(port); err == nil {
			list = append(list, semconv.ServerPort(n))
		}
	}
	list = append(list, semconv.ServerAddress(valid(host)))
	if peer, port, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		list = append(list, semconv.NetworkPeerAddress(peer))
		if n, err := strconv.Atoi(port); err == nil {
			list = append(list, semconv.NetworkPeerPort(n))
		}
	}
	if agent := r.UserAgent(); agent != "" {
		list = append(list, semconv.UserAgentOriginal(valid(agent)))
	}
	return list
}
