package nodes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/redis/rueidis"
)

const (
	// waiting bounds the questions that wait for an answer; further ones are dropped.
	waiting = 2 * PerSecond
	// lateBy is how late after its end a question is still answered, because clocks are estimates.
	// A node that was stopped for longer answers none of the questions that it missed.
	lateBy = time.Second
	// resubscribe is the pause after a subscription ended, and forbidden the pause after Redis
	// refused one.
	resubscribe = 100 * time.Millisecond
	forbidden   = 10 * time.Second
)

// Listen answers the questions of other nodes, until ctx ends.
func (n *Nodes) Listen(ctx context.Context) {
	questions := make(chan string, waiting)
	answering := make(chan struct{})
	go func() {
		defer close(answering)
		for {
			select {
			case <-ctx.Done():
				return
			case text := <-questions:
				n.answer(ctx, text)
			}
		}
	}()
	defer func() { <-answering }()
	warned := false
	for ctx.Err() == nil {
		pause := resubscribe
		if e, refused := rueidis.IsRedisErr(n.subscribe(ctx, questions)); refused {
			pause = forbidden
			if !warned {
				warned = true
				n.o.Logger.Warn(
					fmt.Sprintf("this node does not hear what other nodes ask, so their answers leave it out: %v", e))
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// subscribe hears questions until the connection breaks. It does not wait: a question that finds no
// room is dropped.
func (n *Nodes) subscribe(ctx context.Context, questions chan<- string) error {
	c, err := n.o.Client()
	if err != nil {
		return err
	}
	sent := time.Now()
	n.noteTime(c.Do(ctx, c.B().Time().Build()), sent)
	return c.Receive(ctx, c.B().Subscribe().Channel(n.channel()).Build(), func(m rueidis.PubSubMessage) {
		select {
		case questions <- m.Message:
		default:
			n.stats.late.Add(1)
		}
	})
}

// handle calls the handler for a question of another node. It recovers: a malformed question must
// not end the program.
func (n *Nodes) handle(ctx context.Context, k *kind, q *question) (data []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			n.o.Logger.Error("a question of another node could not be answered, which is a defect of weir",
				"kind", q.Kind, "panic", p, "stack", string(debug.Stack()))
			err = errors.New("nodes: the handler panicked")
		}
	}()
	return k.handler(ctx, q.Args)
}

// answer answers one question of another node.
func (n *Nodes) answer(ctx context.Context, text string) {
	var q question
	if len(text) > MaxQuestion || json.Unmarshal([]byte(text), &q) != nil || q.ID == "" {
		n.stats.unreadable.Add(1)
		return
	}
	if q.Node == n.o.Name { // this node answers itself without Redis
		return
	}
	n.stats.heard.Add(1)
	k, ok := n.handlers[q.Kind]
	if !ok {
		n.stats.unknown.Add(1)
		return
	}
	left := time.Duration(q.Until-n.now())*time.Microsecond + lateBy
	if left <= 0 {
		n.stats.late.Add(1)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, min(left, n.o.Wait+lateBy))
	defer cancel()
	data, err := n.handle(ctx, k, &q)
	if err == nil {
		data, err = n.codec.pack(n.o.Name, data)
	}
	var c rueidis.Client
	if err == nil {
		c, err = n.o.Client()
	}
	if err != nil {
		n.stats.failed.Add(1)
		return
	}
	key, sent := n.answersKey(q.ID), time.Now()
	r := c.DoMulti(ctx,
		c.B().Rpush().Key(key).Element(rueidis.BinaryString(data)).Build(),
		c.B().Pexpire().Key(key).Milliseconds(answersLive.Milliseconds()).Build(),
		c.B().Time().Build())
	if r[0].Error() != nil {
		n.stats.failed.Add(1)
		return
	}
	n.stats.answered.Add(1)
	n.noteTime(r[2], sent)
}
