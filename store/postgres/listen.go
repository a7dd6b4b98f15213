package postgres

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// listener hears other nodes' notifications (NOTIFY), on a connection of its own. A pooler may lose
// all of them: so nothing depends on them, and a change that is not heard is found within a second.
type listener struct {
	s       *Store
	channel string
	begin   sync.Once
	told    chan string // payloads that this node has to send

	mu       sync.Mutex
	watchers map[*watcher]struct{}
}

// watcher waits for changes of a kind of facts.
type watcher struct {
	kind string
	wake chan struct{} // of capacity 1
}

// Payloads begin with their kind.
const (
	payloadBoard = "board:" // of this kind, facts have changed
	payloadFreed = "freed:" // this key, of that counter, may be admitted
	maxPayload   = 7999
	maxTold      = 64 // payloads of one call
)

func (l *listener) init(s *Store) {
	l.s, l.channel = s, "weir_"+s.engine.target.schema
	l.told = make(chan string, 1024)
	l.watchers = map[*watcher]struct{}{}
}

// start begins to listen, once.
func (l *listener) start() {
	l.begin.Do(func() {
		l.s.background(l.listen)
		l.s.background(l.tell)
	})
}

// watch returns a watcher that is woken when facts of a kind may have changed.
func (l *listener) watch(kind string) (w *watcher, leave func()) {
	l.start()
	w = &watcher{kind, make(chan struct{}, 1)}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watchers[w] = struct{}{}
	return w, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.watchers, w)
	}
}

// freed has other nodes forget the refusals of a key.
func (l *listener) freed(id uint64, key []byte) {
	if l.s.o.RememberRefusals == 0 {
		return
	}
	text := payloadFreed + base64.RawStdEncoding.EncodeToString(append(binary.BigEndian.AppendUint64(nil, id), key...))
	if len(text) > maxPayload {
		return // the other nodes forget it after a second at most
	}
	select {
	case l.told <- text:
	default:
	}
}

// tell sends this node's payloads, until the store is closed.
func (l *listener) tell() {
	s := l.s
	for {
		var some []string
		select {
		case <-s.ctx.Done():
			return
		case text := <-l.told:
			some = append(some, text)
		}
		for more := true; more && len(some) < maxTold; {
			select {
			case text := <-l.told:
				some = append(some, text)
			default:
				more = false
			}
		}
		_ = s.engine.call(s.ctx, s.engine.text.notify, func(p *params) {
			p.text(l.channel)
			p.texts(some)
		}, nil)
	}
}

// heard acts on a payload.
func (l *listener) heard(payload string) {
	if kind, ok := strings.CutPrefix(payload, payloadBoard); ok {
		l.wake(kind)
	}
	if text, ok := strings.CutPrefix(payload, payloadFreed); ok {
		if b, err := base64.RawStdEncoding.DecodeString(text); err == nil && len(b) >= 8 {
			l.s.ForgetHere(binary.BigEndian.Uint64(b), b[8:])
		}
	}
}

// wake wakes the watchers of a kind; of all kinds, if that is "".
func (l *listener) wake(kind string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for w := range l.watchers {
		if kind == "" || w.kind == kind {
			select {
			case w.wake <- struct{}{}:
			default:
			}
		}
	}
}

// How the connection that listens is kept.
const (
	listenAgain = 200 * time.Millisecond // pause before the next try
	listenQuiet = 10 * time.Second       // after it, the server is asked whether it is there
)

// listen listens until the store is closed.
func (l *listener) listen() {
	for l.s.ctx.Err() == nil {
		_ = l.listenOnce(l.s.ctx)
		// A message may have been missed.
		l.s.ForgetAll()
		select {
		case <-l.s.ctx.Done():
		case <-time.After(listenAgain):
		}
	}
}

// listenOnce listens on one connection, until that fails.
func (l *listener) listenOnce(ctx context.Context) error {
	t := l.s.engine.target
	c, err := t.url.Connect(ctx, t.config.ConnConfig)
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = c.Close(closing)
	}()
	ask := func(sql string) error {
		asking, cancel := context.WithTimeout(ctx, l.s.o.Timeout)
		defer cancel()
		_, err := c.Exec(asking, sql, pgx.QueryExecModeSimpleProtocol)
		return err
	}
	if err := ask(`listen "` + l.channel + `"`); err != nil {
		return err
	}
	l.s.ForgetAll()
	l.wake("")
	for {
		waiting, cancel := context.WithTimeout(ctx, listenQuiet)
		n, err := c.WaitForNotification(waiting)
		quiet := waiting.Err() != nil && ctx.Err() == nil
		cancel()
		switch {
		case err == nil:
			l.heard(n.Payload)
		case !quiet || c.IsClosed():
			return err
		default:
			if err := ask("select"); err != nil {
				return err
			}
		}
	}
}
