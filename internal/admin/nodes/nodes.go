// Package nodes lets a node ask all nodes that share a Redis. A question goes to every node as a
// message, and each node pushes its answer to a list. The nodes need no ports and no addresses of
// each other.
//
// Begin with Nodes (nodes.go), which holds the handlers of questions, and asks. listen.go hears the
// questions of others, wire.go has the encoding of both, and stats.go counts. Nothing of this runs
// on the deciding path.
package nodes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

// Bounds of questions and answers.
const (
	// MaxQuestion bounds the message of a question, in bytes.
	MaxQuestion = 512
	// MaxAnswer bounds a compressed answer, in bytes.
	MaxAnswer = 256 << 10
	// MaxPlain bounds an answer before compression, in bytes.
	MaxPlain = 4 << 20
	// MaxAnswers bounds the answers to one question.
	MaxAnswers = 256
	// PerSecond is how many questions all nodes together may ask in a second; of a kind that is
	// polled, besides, so many.
	PerSecond = 20
	// DefaultWait is how long Ask waits for answers.
	DefaultWait = 500 * time.Millisecond

	// turns is how many times as long as for its answers a question waits for its turn.
	turns = 8
	// mostPause is the longest pause between two tries to ask.
	mostPause = 250 * time.Millisecond

	answersLive = 10 * time.Second // the list of answers to a question expires after this
	onceBy      = 16               // answers that are taken from the list at once
	grace       = 50 * time.Millisecond
)

// Options configure New. Client, Prefix, Name and Alive are required.
type Options struct {
	// Client returns the connection to the Redis that the nodes share, or an error that says why
	// there is none. The caller owns the connection, and may return another one later.
	Client func() (rueidis.Client, error)
	// Prefix begins the channel and the keys. Nodes with one prefix hear each other.
	Prefix string
	// Name is the name of this node, which no other node has: 1 to 160 bytes.
	Name string
	// Alive returns the number of nodes, including this one, as far as is known; 0 is not known.
	Alive func() int
	// Wait is how long Ask waits for answers; 0 means DefaultWait.
	Wait time.Duration
	// Turn is how long a question waits, before that, while the nodes are asked PerSecond times a
	// second; 0 means 8 times Wait.
	Turn time.Duration
	// Logger reports, once, why questions are not heard; nil reports nothing.
	Logger *slog.Logger
}

// Handler answers a question on this node. Its answer may have up to MaxPlain bytes. A node whose
// handler fails does not answer. args are the arguments of Ask, and must not be kept. One goroutine
// calls handlers for the questions of other nodes; for the questions of this node the caller of Ask
// does.
type Handler func(ctx context.Context, args []byte) ([]byte, error)

// Nodes asks, and answers. Make one with New, give it handlers, and start Listen. Safe for
// concurrent use then.
type Nodes struct {
	o        Options
	handlers map[string]*kind
	codec    codec
	clock    clock
	begun    time.Time
	stats    counters
	popsOne  atomic.Bool // Redis cannot take several answers off a list at once
}

// kind holds the handler for a kind of question, and the counts of this node's own questions of
// that kind.
type kind struct {
	handler                     Handler
	polled                      bool
	complete, incomplete, alone atomic.Uint64
}

// New returns a Nodes that answers nothing yet. An error means that the options make no sense.
func New(o Options) (*Nodes, error) {
	if o.Wait == 0 {
		o.Wait = DefaultWait
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Turn == 0 {
		o.Turn = turns * o.Wait
	}
	switch {
	case o.Client == nil || o.Alive == nil:
		return nil, errors.New("nodes: Client and Alive are required")
	case o.Name == "" || len(o.Name) > maxName:
		return nil, fmt.Errorf("nodes: the name of a node has 1 to %d bytes, not %d", maxName, len(o.Name))
	case o.Wait < 0 || o.Turn < 0:
		return nil, fmt.Errorf("nodes: Wait is %v, and Turn %v", o.Wait, o.Turn)
	}
	c, err := newCodec()
	if err != nil {
		return nil, fmt.Errorf("nodes: %w", err)
	}
	return &Nodes{o: o, handlers: map[string]*kind{}, codec: c, begun: time.Now()}, nil
}

// Name returns the name of this node.
func (n *Nodes) Name() string { return n.o.Name }

// Known returns the number of nodes, including this one, as far as is known.
func (n *Nodes) Known() int { return max(n.o.Alive(), 1) }

// Handle makes h answer the questions of a kind, here and for other nodes. It must not be called
// once questions are asked or heard. A node without a handler for a kind does not answer, so nodes
// of different versions can work together.
func (n *Nodes) Handle(name string, h Handler) { n.handlers[name] = &kind{handler: h} }

// HandlePolled is Handle for a kind that pages ask again and again: its questions do not count
// among the PerSecond of all others, and have as many of their own.
func (n *Nodes) HandlePolled(name string, h Handler) {
	n.handlers[name] = &kind{handler: h, polled: true}
}

// Kinds returns the kinds that this node answers, sorted.
func (n *Nodes) Kinds() []string { return slices.Sorted(maps.Keys(n.handlers)) }

// Tally says how many nodes were asked, and how many of them answered in time.
type Tally struct {
	Asked    int
	Answered int
	// Remark says why fewer were asked than there are; "" if all were.
	Remark string
}

// String returns t for people: "3 of 4 nodes".
func (t Tally) String() string {
	if t.Asked == 1 && t.Answered == 1 {
		return "1 node"
	}
	return fmt.Sprintf("%d of %d nodes", t.Answered, t.Asked)
}

// Answer is the answer of one node.
type Answer struct {
	Node string // its name
	Data []byte // valid while take runs
}

// Ask asks all nodes, and calls take for each answer as it comes, in the calling goroutine. The
// answer of this node comes first. Ask waits for its turn, and then until all known nodes have
// answered, but no longer than Options.Turn, Options.Wait and ctx allow. If Redis is away, or its
// turn did not come, only this node answers, and Tally.Remark says why. args must be JSON, or
// empty.
//
// An error comes from this node's handler, from arguments that are too long, or from ctx. Tally is
// valid even then.
func (n *Nodes) Ask(ctx context.Context, kind string, args []byte, take func(Answer)) (Tally, error) {
	return n.ask(ctx, kind, args, true, take)
}

// AskOthers is Ask without the call of this node's handler. Tally counts this node as one that
// answered.
func (n *Nodes) AskOthers(ctx context.Context, kind string, args []byte, take func(Answer)) (Tally, error) {
	return n.ask(ctx, kind, args, false, take)
}

// ErrEnough is the cause with which a context ends a question early: the answers so far are enough,
// and no node counts as missing.
var ErrEnough = errors.New("nodes: enough was heard")

func (n *Nodes) ask(ctx context.Context, name string, args []byte, here bool, take func(Answer)) (t Tally, err error) {
	k, ok := n.handlers[name]
	if !ok {
		return Tally{Asked: 1}, fmt.Errorf("nodes: nobody here answers %q", name)
	}
	begun := time.Now()
	n.stats.asked.Add(1)
	last := begun.Add(n.o.Turn + n.o.Wait)
	if earlier, ok := ctx.Deadline(); ok && earlier.Before(last) {
		last = earlier
	}
	// Redis ends the wait for answers itself, a little before this deadline: that would close the
	// connection.
	ctx, cancel := context.WithDeadline(ctx, last.Add(grace))
	defer cancel()
	end := last // of the wait for answers, once they are asked for
	q := question{ID: strconv.FormatUint(rand.Uint64(), 36), Node: n.o.Name, Kind: name, Args: args}
	known := n.o.Alive()
	alive := max(known, 1)
	t.Asked = alive
	others := min(alive, MaxAnswers) - 1
	var asked rueidis.Client
	if alive > 1 {
		var failed error
		asked, end, failed = n.publish(ctx, &q, k.polled, last)
		switch {
		case errors.Is(failed, errTooLong):
			n.missed(k, others, causeOf(failed))
			return t, failed
		case failed != nil:
			t.Remark = "only this node was asked: " + failed.Error()
			n.missed(k, others, causeOf(failed))
		}
	} else if known == 0 {
		t.Remark = "only this node was asked: it does not know yet of others"
	}
	if here {
		var own []byte
		if own, err = k.handler(ctx, args); err == nil {
			take(Answer{Node: n.o.Name, Data: own})
		} else {
			err = fmt.Errorf("nodes: %w", err)
		}
	}
	if err == nil {
		t.Answered++
	}
	switch {
	case asked != nil:
		n.heard(k, n.collect(ctx, asked, q.ID, others, end, &t, take), time.Since(begun))
	case known == 1: // there is nobody else
		k.complete.Add(1)
	case known == 0:
		k.alone.Add(1)
	}
	t.Asked = max(t.Asked, t.Answered)
	return t, err
}

var (
	errTooLong = fmt.Errorf("nodes: a question has at most %d bytes", MaxQuestion)
	errBusy    = fmt.Errorf("the nodes are asked more than %d times a second", PerSecond)
)

// publish asks the other nodes, as soon as the rate of questions permits it. It returns the client
// that it used, and when the wait for answers ends: at last, or before.
func (n *Nodes) publish(ctx context.Context, q *question, polled bool, last time.Time) (c rueidis.Client,
	end time.Time, err error) {
	if _, err := q.text(); err != nil {
		return nil, last, err
	}
	if c, err = n.o.Client(); err != nil {
		return nil, last, err
	}
	rate := n.channel() + ":rate"
	if polled {
		rate += ":" + q.Kind
	}
	for pause := min(n.o.Wait, DefaultWait) / 16; ; pause = min(2*pause, mostPause) {
		ok, err := n.admit(ctx, c, rate)
		if err != nil {
			return nil, last, err
		}
		if ok {
			break
		}
		n.stats.busy.Add(1)
		// A question that begins late has little time left for its answers.
		if time.Until(last) < n.o.Wait/2 {
			return nil, last, errBusy
		}
		select {
		case <-ctx.Done():
			return nil, last, ctx.Err()
		case <-time.After(pause):
		}
	}
	if end = time.Now().Add(n.o.Wait); last.Before(end) {
		end = last
	}
	q.Until = n.now() + time.Until(end).Microseconds()
	text, err := q.text()
	if err != nil {
		return nil, last, err
	}
	ctx, cancel := context.WithDeadline(ctx, end.Add(grace))
	defer cancel()
	if err := c.Do(ctx, c.B().Publish().Channel(n.channel()).Message(text).Build()).Error(); err != nil {
		return nil, last, err
	}
	return c, end, nil
}

// admit counts a question in Redis under a key. It returns false if there were enough in this
// second.
func (n *Nodes) admit(ctx context.Context, c rueidis.Client, key string) (bool, error) {
	sent := time.Now()
	ctx, cancel := context.WithDeadline(ctx, sent.Add(n.o.Wait+grace)) // a Redis that hangs is not waited for
	defer cancel()
	r := c.DoMulti(ctx, c.B().Incr().Key(key).Build(), c.B().Pttl().Key(key).Build(), c.B().Time().Build())
	count, err := r[0].AsInt64()
	if err != nil {
		return false, err
	}
	left, err := r[1].AsInt64()
	if err == nil && left < 0 {
		// The second runs from the first question. Where that was lost, another one sees to it.
		err = c.Do(ctx, c.B().Pexpire().Key(key).Milliseconds(1000).Build()).Error()
	}
	if err != nil {
		return false, err
	}
	n.noteTime(r[2], sent)
	return count <= PerSecond, nil
}

// collect takes the answers of other nodes off their list. It returns how many are missing, by
// cause.
func (n *Nodes) collect(ctx context.Context, c rueidis.Client, id string, others int, end time.Time, t *Tally,
	take func(Answer)) (missing [Causes]int) {
	key := n.answersKey(id)
	heard := map[string]bool{n.o.Name: true}
	cause := Silent
	defer func() {
		missing[Unreadable] = min(missing[Unreadable], max(others, 0))
		missing[cause] += others - missing[Unreadable]
	}()
	for others > 0 {
		if context.Cause(ctx) == ErrEnough {
			others = 0 // nobody is missing
			return missing
		}
		left := time.Until(end)
		if left < time.Millisecond {
			return missing
		}
		got, err := n.pop(ctx, c, key, min(others, onceBy), left)
		if err != nil { // nothing came in time, or Redis went away
			if !rueidis.IsRedisNil(err) && !errors.Is(err, context.DeadlineExceeded) {
				cause = causeOf(err)
				if t.Remark == "" {
					t.Remark = "not all could be heard: " + err.Error()
				}
			}
			return missing
		}
		for _, text := range got {
			name, data, err := n.codec.unpack(text)
			if err != nil {
				missing[Unreadable]++
				continue
			}
			if heard[name] {
				continue
			}
			heard[name] = true
			others--
			t.Answered++
			n.stats.answers.Add(1)
			take(Answer{Node: name, Data: data})
		}
	}
	return missing
}

// pop takes at most so many answers off a list, of which it waits for the first.
func (n *Nodes) pop(ctx context.Context, c rueidis.Client, key string, most int, wait time.Duration) ([]string, error) {
	if !n.popsOne.Load() {
		got, err := c.Do(ctx, c.B().Blmpop().Timeout(wait.Seconds()).Numkeys(1).Key(key).Left().Count(int64(most)).
			Build()).AsLMPop()
		if e, ok := rueidis.IsRedisErr(err); !ok || !strings.Contains(e.Error(), "unknown command") {
			return got.Values, err
		}
		n.popsOne.Store(true) // it is older than Redis 7
	}
	pair, err := c.Do(ctx, c.B().Blpop().Key(key).Timeout(wait.Seconds()).Build()).AsStrSlice()
	if err != nil || len(pair) != 2 {
		return nil, err
	}
	return pair[1:], nil
}

func (n *Nodes) channel() string { return n.o.Prefix + format + "ask" }

func (n *Nodes) answersKey(id string) string { return n.channel() + ":" + id }
