package redis

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

// Calls whose answer is lost are sent again, over another connection, until their outcome is known.
// The functions of weir.lua keep the last reply of each lane of a node, and make each call once
// (once in weir.lua). So the caller gets the answer that was lost, or the first one there is.
//
// They keep it in a memory that has a name: the variables of the library (memory.lua) or, on Redis
// 6, keys (kept.lua). If the call comes to another memory (the server has restarted, another one
// has taken its place, or the functions were flushed), nobody knows whether it was made, and it
// fails.

const (
	identityFormat = "<c8I7I4B"
	identitySize   = 20
	lostCode       = "WEIRLOST"
	lostReply      = lostCode + " the call may have been made before this server, or its functions, began"
)

// lane is a row of calls, one of which is under way at a time. The functions know it by its id.
type lane struct {
	id     uint64
	number int64  // of the call under way, or the last one
	memory uint32 // that has answered all calls before that
	lost   bool   // the last one had no answer
}

func newLane() *lane { return &lane{id: rand.Uint64()} }

// next begins a call, for functions that have this memory. All earlier calls of a lane were made in
// one memory, so that functions that know nothing of them have forgotten the lane: where that is
// not so, the lane begins anew.
func (l *lane) next(memory uint32) {
	if l.lost || l.memory != memory {
		*l = lane{id: rand.Uint64(), memory: memory}
	}
	l.number++
}

// ended notes how the call under way has ended.
func (l *lane) ended(err error) {
	_, answered := rueidis.IsRedisErr(err)
	l.lost = err != nil && !answered || isLost(err)
}

// appendIdentity appends the beginning of a call's first argument. memory is the name that the node
// had heard before it first sent the call, and again says that the call may have been made.
func (l *lane) appendIdentity(b []byte, memory uint32, again bool) []byte {
	b = binary.LittleEndian.AppendUint64(b, l.id)
	b = append56(b, l.number)
	b = binary.LittleEndian.AppendUint32(b, memory)
	if again {
		return append(b, 1)
	}
	return append(b, 0)
}

// lanes are for calls of a partition that are no decisions: as many as were ever under way
// together. The partition's server knows a lane's last call, or has forgotten it.
type lanes struct {
	mu   sync.Mutex
	free []*lane
}

// take returns a lane that no call is under way in, for its next call.
func (s *lanes) take(memory uint32) *lane {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.free) == 0 {
		s.free = append(s.free, newLane())
	}
	last := len(s.free) - 1
	l := s.free[last]
	s.free = s.free[:last]
	l.next(memory)
	return l
}

func (s *lanes) put(l *lane) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = append(s.free, l)
}

// lostError is the error of a call that may have been made or not. It hides its cause from callers
// that ask whether nothing was done: that holds for the last attempt alone.
type lostError struct{ cause error }

func (e *lostError) Error() string {
	return "it is not known whether the call was made: " + e.cause.Error()
}

func (e *lostError) Is(target error) bool {
	return (target == context.DeadlineExceeded || target == context.Canceled) && errors.Is(e.cause, target)
}

// isLost reports whether the functions do not know whether a call was made.
func isLost(err error) bool {
	e, ok := rueidis.IsRedisErr(err)
	return ok && strings.HasPrefix(e.Error(), lostCode)
}

// isReadOnly reports whether a replica answered, which did nothing.
func isReadOnly(err error) bool {
	e, ok := rueidis.IsRedisErr(err)
	return ok && didNothing(err) && (strings.HasPrefix(e.Error(), "READONLY") ||
		strings.Contains(e.Error(), "READONLY You can't write against a read only replica"))
}

// isTimeout reports whether a server did not answer in time on a connection that seemed to be
// there.
func isTimeout(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded)
}

// Pauses between two attempts, where trying at once was of no use; and how often the time for a
// call begins anew because this process did not run when it was over. A call that may have been
// made is not sent again later than lastSend: the functions keep its lane for longer (KEEP
// in memory.lua and kept.lua).
const (
	lastSend   = 9 * time.Second
	firstPause = time.Millisecond
	lastPause  = 50 * time.Millisecond
	maxStalls  = 3
	stallLeast = 50 * time.Millisecond // a busy machine lets a call be late by some
)

// attempts are those to get an answer to one call.
type attempts struct {
	p      *partition
	client rueidis.Client
	parent context.Context
	ctx    context.Context // of the attempt; ends Options.Timeout after the first one began
	cancel context.CancelFunc
	// of the detector of p: the call is a batch, or a compare-and-swap
	batch, aside bool
	// The call changes nothing, or the same each time, so that it need not be made once.
	repeatable bool

	by      time.Time // the end of ctx
	memory  uint32    // see lane.appendIdentity
	first   int64     // when the first attempt began, by the monotonic clock
	sent    int64     // when this one did
	unknown bool      // an attempt before this one may have been made
	n       int       // attempts that failed
	stalls  int
	pause   time.Duration
}

// begin prepares the first attempt. Call end when all is over.
func (a *attempts) begin(parent context.Context) {
	a.parent, a.pause = parent, firstPause
	a.renew()
	a.prepare()
	a.first = a.sent
}

func (a *attempts) end() { a.cancel() }

// renew lets the time for the call begin.
func (a *attempts) renew() {
	if a.cancel != nil {
		a.cancel()
	}
	a.by = time.Now().Add(a.p.store.o.Timeout)
	a.ctx, a.cancel = context.WithDeadline(a.parent, a.by)
}

func (a *attempts) prepare() {
	if a.sent = a.p.store.monotonic(); !a.unknown {
		a.memory = a.p.memory.Load()
	}
}

// again takes note of how an attempt has ended. It reports whether there is to be another one, and
// waits until then.
func (a *attempts) again(err error) bool {
	_, answered := rueidis.IsRedisErr(err)
	replica := isReadOnly(err) || isMissing(err) && a.p.store.masterless.Load()
	refused := false
	switch {
	case err == nil || rueidis.IsRedisNil(err) || isLost(err):
		a.p.master.answered()
		return false
	case replica: // all connections are gone by now
		refused = a.p.master.missing(a.p.store.monotonic())
	case answered && (!a.unknown || !didNothing(err)):
		return false
	case answered: // now it was not made: LOADING, say
	case didNothing(err):
		if errors.Is(err, errAway) {
			return false
		}
		refused = true
	case a.p.store.open.neverSent(err, a.sent):
	default:
		a.unknown = !a.repeatable
	}
	a.n++
	now := a.p.store.monotonic()
	// Time in which this process did not run does not count: neither for this call, nor for the
	// silence of the server that those see who ask from now on.
	late := time.Since(a.by)
	stalled := late >= stallLeast
	switch d := &a.p.detector; {
	case !a.batch && !a.aside:
	case refused:
		d.Refused(now)
	case replica || !answered && (!isTimeout(err) || stalled && d.Resumed(now-int64(late), now)): // else it is silent
		d.Broken(now, a.aside)
	}
	if a.parent.Err() != nil || a.batch && !a.unknown && !a.p.wanted() || a.unknown && now-a.first > int64(lastSend) {
		return false
	}
	if late >= 0 {
		if !stalled || refused || answered || a.stalls >= maxStalls {
			return false
		}
		// The answer may have come meanwhile.
		a.stalls++
		a.renew()
		a.prepare()
		return true
	}
	if a.n > 1 || refused || answered {
		select {
		case <-a.ctx.Done():
		case <-time.After(a.pause):
			a.pause = min(2*a.pause, lastPause)
		}
	}
	if replica {
		_ = a.p.look(a.ctx, a.client) // finds the connection gone, so that the call does not
	}
	if a.ctx.Err() != nil {
		return false
	}
	a.prepare()
	return true
}

// result makes the error of the last attempt the one of the call.
func (a *attempts) result(err error) error {
	if a.n > 0 {
		a.p.store.metrics.again.Add(1)
	}
	_, answered := rueidis.IsRedisErr(err)
	switch {
	case err == nil || rueidis.IsRedisNil(err):
		return err
	case isLost(err), a.unknown && (!answered || didNothing(err)):
		return &lostError{err}
	}
	return err
}

// master is when a replica first answered in place of a partition's master.
type master struct{ since atomic.Int64 } // by the monotonic clock; 0: the master answers

// takesOver is for how long replicas may answer before the server counts as one that does not
// decide. Until then, one of them may become the master, or connections may lead to another server.
const takesOver = 100 * time.Millisecond

// answered notes that the master answered.
func (m *master) answered() {
	if m.since.Load() != 0 {
		m.since.Store(0)
	}
}

// missing notes that a replica has answered, and reports whether that has lasted.
func (m *master) missing(now int64) bool {
	since := m.since.Load()
	if since == 0 {
		m.since.CompareAndSwap(0, now)
		return false
	}
	return now-since >= int64(takesOver)
}

// wanted reports whether a caller waits for the batch under way.
func (p *partition) wanted() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.batch {
		if c.stage == sent {
			return true
		}
	}
	return false
}

// once calls a function, of a partition's keys, that is made once. args begins with the instant.
func (s *Store) once(
	ctx context.Context, client rueidis.Client, p *partition, function string, keys, args []string,
) (rueidis.RedisResult, error) {
	result, failed, err := s.onceAgain(ctx, client, p, nil, function, keys, args)
	failed.forget()
	return result, err
}

// unsure is a call that failed, and may have been made. Whoever wants the same again sends it in
// the same lane, and gets its answer.
type unsure struct {
	of     *partition
	lane   *lane
	memory uint32
	at     int64 // when it failed, by the monotonic clock
}

// forget gives its lane to other calls. u may be nil.
func (u *unsure) forget() {
	if u != nil {
		u.of.lanes.put(u.lane)
	}
}

// onceAgain is once for a call that may be wanted again when it has failed: was is how it did so
// before, or nil. failed, unless nil, is how it does now; pass it on, or let it be forgotten.
func (s *Store) onceAgain(
	ctx context.Context, client rueidis.Client, p *partition, was *unsure, function string, keys, args []string,
) (result rueidis.RedisResult, failed *unsure, err error) {
	a, l := &attempts{p: p, client: client}, (*lane)(nil)
	if was != nil {
		l, a.memory, a.unknown = was.lane, was.memory, true
	} else {
		l = p.lanes.take(p.memory.Load())
	}
	result, err = s.callIn(ctx, a, l, true, function, keys, args)
	if lost, ok := err.(*lostError); ok && !isLost(lost.cause) {
		return result, &unsure{p, l, a.memory, s.monotonic()}, err
	}
	p.lanes.put(l)
	return result, nil, err
}

// callIn calls a function in a lane; without one, a function that may be called again.
func (s *Store) callIn(
	ctx context.Context, a *attempts, l *lane, patient bool, function string, keys, args []string,
) (rueidis.RedisResult, error) {
	s.metrics.calls.Add(1)
	instant := args[0]
	a.begin(ctx)
	defer a.end()
	for {
		if l != nil {
			// another string each time: rueidis may still hold the last one
			args[0] = string(l.appendIdentity(make([]byte, 0, identitySize+len(instant)), a.memory, a.unknown)) +
				instant
		}
		result := s.do(a.ctx, a.client, patient, func(b rueidis.Builder) rueidis.Completed {
			return s.invoke(b, lua().library, a.p.scriptKeys, function, keys, args)
		})
		err := result.Error()
		if !a.again(err) {
			args[0] = instant
			if l != nil {
				l.ended(err)
			}
			return result, a.result(err)
		}
	}
}

// look asks the functions of a partition for nothing, and learns the name of their memory.
func (p *partition) look(ctx context.Context, client rueidis.Client) error {
	s := p.store
	for tries := 0; ; tries++ {
		result := s.do(ctx, client, false, func(b rueidis.Builder) rueidis.Completed { return p.question(b) })
		err := p.learnMemory(result)
		if _, answered := rueidis.IsRedisErr(err); err == nil || answered || tries > 0 || ctx.Err() != nil {
			return err
		}
	}
}

// question is a call that changes nothing.
func (p *partition) question(b rueidis.Builder) rueidis.Completed {
	return p.store.invoke(b, lua().library, p.scriptKeys, lua().read, []string{p.prefix}, []string{""})
}

// learnMemory notes the reply to question.
func (p *partition) learnMemory(result rueidis.RedisResult) error {
	reply, err := result.ToArray()
	if err != nil {
		return err
	}
	if len(reply) < readHead {
		return errReply
	}
	name, err := reply[2].AsInt64()
	p.memory.Store(uint32(name))
	return err
}
