package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	ratelimitpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/weir-rl/weir/benchmarks/internal/processor"
)

// pattern says which keys are asked for, and under which descriptor key: so which rule they meet.
type pattern struct {
	name       string
	descriptor string
	// draw returns what draws the next of n keys. Each caller has its own.
	draw func(r *rand.Rand, n int) func() int
	// spent: the keys are used up before they are measured, so that all is refused.
	spent bool
}

const zipfExponent = 1.1

var patterns = []pattern{
	{name: "uniform", descriptor: "user", draw: uniform},
	{name: "zipf", descriptor: "user", draw: func(r *rand.Rand, n int) func() int {
		z := rand.NewZipf(r, zipfExponent, 1, uint64(n-1))
		return func() int { return int(z.Uint64()) }
	}},
	{name: "hot", descriptor: "hot", draw: func(*rand.Rand, int) func() int { return func() int { return 0 } }},
	{name: "refused", descriptor: "refused", draw: uniform, spent: true},
}

func uniform(r *rand.Rand, n int) func() int { return func() int { return r.IntN(n) } }

func patternNames() []string {
	var out []string
	for _, p := range patterns {
		out = append(out, p.name)
	}
	return out
}

// newRequests encodes a request for each key, with gRPC's prefix. Keys are 16 bytes long.
func newRequests(domain, descriptor string, keys int) ([][]byte, error) {
	out := make([][]byte, keys)
	for i := range out {
		wire, err := proto.MarshalOptions{}.MarshalAppend(make([]byte, prefix), &rlspb.RateLimitRequest{
			Domain: domain,
			Descriptors: []*ratelimitpb.RateLimitDescriptor{{
				Entries: []*ratelimitpb.RateLimitDescriptor_Entry{{Key: descriptor,
					Value: fmt.Sprintf("key-%012d", i)}},
			}},
		})
		if err != nil {
			return nil, err
		}
		binary.BigEndian.PutUint32(wire[1:], uint32(len(wire)-prefix))
		out[i] = wire
	}
	return out, nil
}

// overallCode finds that field in an encoded RateLimitResponse. It has to be OK or OVER_LIMIT.
func overallCode(wire []byte) (rlspb.RateLimitResponse_Code, error) {
	for len(wire) > 0 {
		field, kind, n := protowire.ConsumeTag(wire)
		if n < 0 {
			return 0, protowire.ParseError(n)
		}
		wire = wire[n:]
		if field == 1 && kind == protowire.VarintType {
			v, n := protowire.ConsumeVarint(wire)
			if n < 0 {
				return 0, protowire.ParseError(n)
			}
			code := rlspb.RateLimitResponse_Code(v)
			if code != rlspb.RateLimitResponse_OK && code != rlspb.RateLimitResponse_OVER_LIMIT {
				return 0, fmt.Errorf("the server answers %v", code)
			}
			return code, nil
		}
		n = protowire.ConsumeFieldValue(field, kind, wire)
		if n < 0 {
			return 0, protowire.ParseError(n)
		}
		wire = wire[n:]
	}
	return 0, errors.New("the server answers without an overall code")
}

// loader loads one server. It is used by one goroutine at a time.
type loader struct {
	target target
	conns  []*conn
	runs   uint64 // so far; each draws other keys
}

func newLoader(t target, connections int) (*loader, error) {
	l := &loader{target: t}
	for range connections {
		conn, err := dial(t.addr)
		if err != nil {
			l.close()
			return nil, err
		}
		l.conns = append(l.conns, conn)
	}
	return l, nil
}

func (l *loader) close() { l.end(net.ErrClosed) }

// end makes calls under way fail.
func (l *loader) end(err error) {
	for _, conn := range l.conns {
		conn.end(err)
	}
}

// within ends what takes longer. It is over when the timer that it returns is stopped.
func (l *loader) within(limit time.Duration) *time.Timer {
	return time.AfterFunc(limit, func() { l.end(fmt.Errorf("the server does not answer: not done within %v", limit)) })
}

// measure warms the server up, and measures it.
func (l *loader) measure(p pattern, requests [][]byte, callers int, warmup, duration time.Duration) (result, error) {
	if err := l.check(p, requests[0]); err != nil {
		return result{}, err
	}
	if p.spent {
		if err := l.spend(requests); err != nil {
			return result{}, err
		}
	}
	if _, err := l.load(p, requests, callers, warmup); err != nil {
		return result{}, err
	}
	before, err := l.used()
	if err != nil {
		return result{}, err
	}
	t, err := l.load(p, requests, callers, duration)
	if err != nil {
		return result{}, err
	}
	after, err := l.used()
	if err != nil {
		return result{}, err
	}
	n := len(t.latencies)
	slices.Sort(t.latencies)
	r := result{
		Name: l.target.name, Pattern: p.name, Callers: callers, Connections: len(l.conns), Keys: len(requests),
		Seconds:   t.elapsed.Seconds(),
		Decisions: n,
		PerSecond: float64(n) / t.elapsed.Seconds(),
		P50:       microseconds(percentile(t.latencies, 50)),
		P99:       microseconds(percentile(t.latencies, 99)),
		Refused:   float64(t.refused) / float64(n),
		CPU:       map[string]float64{},
	}
	for i, process := range l.target.processes {
		r.CPU[process.name] += microseconds(after[i]-before[i]) / float64(n)
	}
	own := len(l.target.processes)
	r.ClientCPU = microseconds(after[own]-before[own]) / float64(n)
	return r, nil
}

// check makes sure that the server answers, by a rule.
func (l *loader) check(p pattern, request []byte) error {
	defer l.within(patience).Stop()
	wire, err := l.conns[0].ask(newCall(), request)
	if err != nil {
		return err
	}
	var answer rlspb.RateLimitResponse
	if err := proto.Unmarshal(wire, &answer); err != nil {
		return err
	}
	if len(answer.Statuses) != 1 || answer.Statuses[0].CurrentLimit == nil {
		return fmt.Errorf("the server names no limit for descriptor key %q: has it a rule for that in this domain?",
			p.descriptor)
	}
	return nil
}

// spend asks for each key until it is refused.
func (l *loader) spend(requests [][]byte) error {
	const callers, most = 64, 1000
	_, err := l.each(callers, time.Minute, func(caller int, ask asker) (tally, error) {
		for i := caller; i < len(requests); i += callers {
			for n := 1; ; n++ {
				code, err := ask(requests[i])
				if err != nil {
					return tally{}, err
				}
				if code == rlspb.RateLimitResponse_OVER_LIMIT {
					break
				}
				if n == most {
					return tally{}, fmt.Errorf("a key is still admitted after %d requests: the limit should be narrow",
						most)
				}
			}
		}
		return tally{}, nil
	})
	return err
}

// load asks from the given number of callers for the given time.
func (l *loader) load(p pattern, requests [][]byte, callers int, d time.Duration) (tally, error) {
	l.runs++
	var failed atomic.Bool
	begin := time.Now()
	end := begin.Add(d)
	return l.each(callers, d+patience, func(caller int, ask asker) (tally, error) {
		var t tally
		draw := p.draw(rand.New(rand.NewPCG(l.runs, uint64(caller))), len(requests))
		for now := begin; now.Before(end) && !failed.Load(); {
			code, err := ask(requests[draw()])
			if err != nil {
				failed.Store(true)
				return t, err
			}
			answered := time.Now()
			t.latencies = append(t.latencies, answered.Sub(now))
			if code == rlspb.RateLimitResponse_OVER_LIMIT {
				t.refused++
			}
			now, t.elapsed = answered, answered.Sub(begin)
		}
		return t, nil
	})
}

// patience is for how long a server may be silent.
const patience = 10 * time.Second

// tally is what callers have met.
type tally struct {
	latencies []time.Duration // one for each decision
	refused   int
	elapsed   time.Duration // until the last answer
}

// asker asks for one decision. The answer is OK or OVER_LIMIT.
type asker func(request []byte) (rlspb.RateLimitResponse_Code, error)

// each calls f in so many goroutines, the connections spread over them, and returns what all have
// met.
func (l *loader) each(callers int, limit time.Duration, f func(caller int, ask asker) (tally, error)) (tally, error) {
	defer l.within(limit).Stop()
	tallies, errs := make([]tally, callers), make([]error, callers)
	var all sync.WaitGroup
	for caller := range callers {
		conn := l.conns[caller%len(l.conns)]
		all.Go(func() {
			k := newCall()
			tallies[caller], errs[caller] = f(caller, func(request []byte) (rlspb.RateLimitResponse_Code, error) {
				answer, err := conn.ask(k, request)
				if err != nil {
					return 0, err
				}
				return overallCode(answer)
			})
		})
	}
	all.Wait()
	var out tally
	for i, t := range tallies {
		if errs[i] != nil {
			return tally{}, errs[i]
		}
		out.latencies = append(out.latencies, t.latencies...)
		out.refused += t.refused
		out.elapsed = max(out.elapsed, t.elapsed)
	}
	return out, nil
}

// used is the processor time that each of the target's processes has used so far, and after them
// this one.
func (l *loader) used() ([]time.Duration, error) {
	var out []time.Duration
	for _, p := range append(slices.Clip(l.target.processes), process{"rlsload", os.Getpid()}) {
		t, err := processor.Time(p.pid)
		if err != nil {
			return nil, fmt.Errorf("%s=%d: %w", p.name, p.pid, err)
		}
		out = append(out, t)
	}
	return out, nil
}
