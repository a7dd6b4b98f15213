package grpclimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/door"
	"github.com/weir-rl/weir/internal/door/line"
	"github.com/weir-rl/weir/overload"
	"github.com/weir-rl/weir/rule"
)

// Options configure New. The zero value is right for rules of one domain that need only the
// attributes of the call itself. A field that httplimit.Options has as well means the same.
// Functions must be safe for concurrent use.
type Options struct {
	// Domain of the rules; "" is the only one that the rules hold.
	Domain string
	// Identity takes attributes from metadata keys, such as "user" from "x-user-id". A client can
	// write any metadata: take identity only from keys that a proxy in front, or an interceptor
	// before this one, has checked. An empty value counts as absent. What lets somebody in is kept
	// as its hash ("sha256:" and hexadecimal digits) with "hash:" before the key, and with "apikey"
	// in its place: an API key in authorization, x-api-key, api-key, apikey or x-goog-api-key, as
	// httplimit.Identity has it. A call with several different ones ends with INVALID_ARGUMENT.
	Identity map[string]string
	// KeepRepeated lets calls pass in which single-valued metadata comes twice, where a rule in
	// force or Identity reads it: the values are joined by commas. By default they end with
	// INVALID_ARGUMENT. Fields that RFC 9110 5.3 lets come in several lines are joined in any case.
	KeepRepeated bool
	// Attributes are more attributes by their names, for facts that an interceptor before this one
	// has established, such as the user's name:
	//
	//	"user": func(ctx context.Context, _ string) string {
	//		name, _ := ctx.Value(userKey{}).(string)
	//		return name
	//	}
	//
	// A function is called when a rule asks, at most once for a call, and once more for the
	// messages of a stream; "" counts as absent. One with the name of an attribute of the call,
	// such as "ip", replaces it.
	Attributes map[string]func(ctx context.Context, fullMethod string) string
	// Hits is the cost of a call, in hits; 0 asks and counts nothing. nil means 1.
	Hits func(ctx context.Context, fullMethod string) int64
	// Skip exempts the methods for which it returns true; one that always returns false exempts
	// none. nil exempts the methods of grpc.health.v1.Health, since a server whose probe is refused
	// is killed: but where rules in force name that service or a method of it, as by `when: {path:
	// /grpc.health.v1.Health/Check}`, these rules limit it, and no others.
	Skip func(fullMethod string) bool
	// NoHeaders leaves the rate-limit metadata out of answers.
	NoHeaders bool
	// Messages makes each message that a client sends on a stream a request of its own, beside the
	// opening of the stream. It meets the rules with the attributes of the call and with
	// grpc.message, which is "received": a rule selects messages by `when: {grpc.message:
	// received}`, and openings by `when: {grpc.message: "!received"}`; one that says neither counts
	// both.
	//
	// A message that must wait holds up the stream, and so the client, by the flow control of
	// HTTP/2. One that is refused ends it: the handler's RecvMsg fails with RESOURCE_EXHAUSTED,
	// with details as for a call. A slot that a message takes of a concurrency limit is given back
	// when the handler asks for the next one. By a rule with cost_after a message is charged the
	// estimate, for good.
	Messages bool
	// MessageHits is the cost of a message, as Hits; nil means 1. It needs Messages.
	MessageHits func(ctx context.Context, fullMethod string, message any) int64
	// MaxHeld bounds the calls that are held at a time, of all keys together; 0 means 10,000, below
	// 0 that none is held. The waiting calls of one key are at most as many as there is room left,
	// so that none takes more than half.
	MaxHeld int
	// Overload bounds how many calls are under way at the same time; nil does not. Those that find
	// no room end at once with UNAVAILABLE, and are charged to no limit unless they were held
	// before. Calls that a rule file exempts always pass.
	Overload *overload.Limiter
	// Load measures the calls that pass; nil for none.
	Load overload.Load
	// Trace returns the trace that a call or a message on a stream is part of, for
	// weir.Request.Trace; nil for one that is not followed. A nil function follows none.
	Trace func(ctx context.Context, fullMethod string) *weir.Trace
	// Stopwatch times a sample of the decisions, but not of calls that were held; nil times none.
	Stopwatch weir.Stopwatch
	// OnError is called when the store failed on a call, or when a slot, a turn or a cost could not
	// be given back to it; nil means it is not. A client that hangs up is no error.
	OnError func(ctx context.Context, err error)
	// Logger logs, when the Gate is made, the rules in force that no call can meet, because they
	// need an attribute that is not known here: these rules limit nothing. nil means
	// slog.Default().
	Logger *slog.Logger
}

// New returns a Gate. It fails if o.Domain is empty and the rules in force hold several domains, or
// if another option is wrong.
func New(l *weir.Limiter, o Options) (*Gate, error) {
	if l == nil {
		return nil, errors.New("grpclimit: a nil Limiter; make one with weir.New")
	}
	if rules, _ := l.Rules(); rules != nil && o.Domain == "" {
		if domains := rules.Domains(); len(domains) > 1 {
			return nil, fmt.Errorf("grpclimit: the rules hold the domains %s; set Domain to one of them",
				strings.Join(domains, ", "))
		}
	}
	if o.MessageHits != nil && !o.Messages {
		return nil, errors.New("grpclimit: MessageHits has no effect without Messages; set Messages as well")
	}
	g := &Gate{limiter: l, o: o, lines: line.New(o.MaxHeld)}
	for _, name := range slices.Sorted(maps.Keys(o.Identity)) {
		key := strings.ToLower(o.Identity[name])
		if name == "" || strings.TrimPrefix(key, hashOf) == "" {
			return nil, fmt.Errorf(
				"grpclimit: Identity: %q: %q names no attribute, or no metadata key; write for example user: x-user-id", name, key)
		}
		g.identity = append(g.identity, rule.Pair{Name: name, Value: key})
	}
	for _, name := range slices.Sorted(maps.Keys(o.Attributes)) {
		if _, found := o.Identity[name]; found {
			return nil, fmt.Errorf("grpclimit: Attributes: %q is in Identity as well; remove one of them", name)
		}
		if name == "" || o.Attributes[name] == nil {
			return nil, fmt.Errorf("grpclimit: Attributes: %q has no name, or a nil function", name)
		}
		g.program = append(g.program, programAttribute{name, o.Attributes[name]})
	}
	g.pool.New = func() any {
		c := &call{visit: g.lines.NewVisit()}
		c.attributes = attributes{gate: g, told: make([]told, len(g.program))}
		c.visit.Held, c.visit.Failed = c.wait, c.failure
		if g.o.Overload != nil {
			c.visit.Veto = c.veto
		}
		return c
	}
	g.warnOfLacking()
	return g, nil
}

// warnOfLacking logs the rules that no call can meet.
func (g *Gate) warnOfLacking() {
	rules, _ := g.limiter.Rules()
	if rules == nil {
		return
	}
	domain := rules.DomainFor(g.o.Domain)
	lacks := rules.Lacking(domain, g.supplies)
	if len(lacks) > 0 {
		cmp.Or(g.o.Logger, slog.Default()).Warn(
			"grpclimit: rules limit nothing here, since no call has an attribute that they need; Options.Identity and Options.Attributes supply more",
			"domain", domain, "rules", door.DescribeLacks(lacks))
	}
}

// supplies reports whether calls, or their messages, may have an attribute.
func (g *Gate) supplies(attribute string) bool {
	if attribute == "grpc.message" {
		return g.o.Messages
	}
	_, identified := g.o.Identity[attribute]
	_, program := g.o.Attributes[attribute]
	return identified || program || slices.Contains(ownAttributes[:], attribute) ||
		strings.HasPrefix(attribute, headerPrefix)
}

// Stats counts the calls that a Gate holds, or held, and those that it let pass.
type Stats struct {
	Held    int // now
	Lines   int // now: one for each key of a limit for which a call waits
	Longest int // calls in the longest line now

	Total uint64 // were held at all
	// of these, were refused since their wait was over, or would have been too short
	Expired    uint64
	HungUp     uint64 // of these, were given up by their clients
	TurnedAway uint64 // were refused since there was no room to wait

	HealthChecks uint64 // passed without a decision: see Options.Skip
}

// Stats returns a reading.
func (g *Gate) Stats() Stats {
	s := g.lines.Stats()
	return Stats{
		Held: s.Held, Lines: s.Lines, Longest: s.Longest,
		Total: s.Total, Expired: s.Expired, HungUp: s.HungUp, TurnedAway: s.TurnedAway,
		HealthChecks: g.probes.passed.Load(),
	}
}

// Drain ends the holding, for a server that is about to stop: calls that wait for a limit to admit
// them are refused at once, as are those that would have to wait from then on. Those that have a
// turn in a leaky bucket keep it.
func (g *Gate) Drain() { g.lines.Shut() }
