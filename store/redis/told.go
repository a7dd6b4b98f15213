package redis

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/weir-rl/weir/store"
)

// This region's reports to others: a stream for each partition, which nodes append to, and other
// regions read with plain commands, so that builds with other functions understand each other. The
// value of an entry's only field is packed: the version, an instant (varint, µs), and for each key
// the counter (8 bytes), the key after its length, the units, and when they were used, by how much
// after that instant (varints both).

const (
	toldVersion = 1
	toldField   = "t"
	// maxToldEntry is the size from which on a report goes on in another entry.
	maxToldEntry = 4 << 10
	// How many entries a log holds: in a Cluster maxToldInAll over all partitions, but
	// minToldEntries in each.
	maxToldEntries = 1 << 14
	maxToldInAll   = 1 << 17
	minToldEntries = 1 << 10
	emptyLog       = "0-0" // the position before all entries
)

// toldKey is where a part's log is kept.
func (p *partition) toldKey() string { return p.prefix + "told" }

// toldEntries is how many entries a part's log holds.
func (s *Store) toldEntries() int {
	if !s.target.cluster {
		return maxToldEntries
	}
	return min(max(maxToldInAll/len(s.partitions), minToldEntries), maxToldEntries)
}

// packTold packs what fits in an entry, and returns the rest.
func packTold(told []store.Told) (entry []byte, rest []store.Told) {
	b := binary.AppendVarint([]byte{toldVersion}, told[0].At)
	for i := range told {
		t := &told[i]
		if i > 0 && len(b)+8+len(t.Key)+3*binary.MaxVarintLen64 > maxToldEntry {
			return b, told[i:]
		}
		b = binary.LittleEndian.AppendUint64(b, t.Counter)
		b = append(binary.AppendUvarint(b, uint64(len(t.Key))), t.Key...)
		b = binary.AppendVarint(binary.AppendVarint(b, t.Units), t.At-told[0].At)
	}
	return b, nil
}

// unpackTold appends the contents of an entry. It stops at the first part that it cannot read.
func unpackTold(dst []store.Told, entry string) []store.Told {
	b := []byte(entry) // keys are views of it
	at, n := int64(0), 0
	if len(b) > 0 && b[0] == toldVersion {
		at, n = binary.Varint(b[1:])
	}
	if n <= 0 {
		return dst
	}
	for b = b[1+n:]; len(b) > 8; {
		t := store.Told{Counter: binary.LittleEndian.Uint64(b)}
		b = b[8:]
		size, n := binary.Uvarint(b)
		if n <= 0 || size > uint64(len(b)-n) {
			return dst
		}
		end := n + int(size)
		t.Key, b = b[n:end:end], b[end:]
		units, n := binary.Varint(b)
		if n <= 0 || units > 1<<62 || units < -1<<62 {
			return dst
		}
		b = b[n:]
		after, n := binary.Varint(b)
		if n <= 0 {
			return dst
		}
		b = b[n:]
		t.Units, t.At = units, at+after
		dst = append(dst, t)
	}
	return dst
}

// partOf returns a partition by its number.
func (s *Store) partOf(part int) (*partition, error) {
	if part < 0 || part >= len(s.partitions) {
		return nil, notChargedError{fmt.Errorf("redis store: there is no part %d; there are %d, from 0", part,
			len(s.partitions))}
	}
	return s.partitions[part], nil
}

// Tell implements store.Regional. A report of more than 4 KiB takes several entries. A log holds
// some 16,384 of them, in a Cluster of 32 partitions some 4,096 in each.
func (s *Store) Tell(ctx context.Context, part int, told []store.Told) error {
	p, err := s.partOf(part)
	if err != nil || len(told) == 0 {
		return err
	}
	clients, err := s.connected()
	if err != nil {
		return notChargedError{err}
	}
	ctx, cancel := context.WithTimeout(ctx, s.o.Timeout)
	defer cancel()
	if err := s.needsFunctions("regions"); err != nil {
		return notChargedError{err}
	}
	c := clients.other
	key, most := p.toldKey(), strconv.Itoa(s.toldEntries())
	var adds []rueidis.Completed
	for entry := []byte(nil); len(told) > 0; {
		entry, told = packTold(told)
		adds = append(adds,
			c.B().Xadd().Key(key).Maxlen().Almost().Threshold(most).Id("*").FieldValue().FieldValue(toldField,
				string(entry)).Build())
	}
	s.metrics.calls.Add(uint64(len(adds)))
	var failed error
	perhaps := false
	for _, result := range c.DoMulti(ctx, adds...) {
		err := result.Error()
		perhaps = perhaps || err == nil || !didNothing(err)
		if failed == nil {
			failed = err
		}
	}
	switch {
	case failed == nil:
		return nil
	case !perhaps:
		failed = notChargedError{failed}
	}
	return fmt.Errorf("redis store: %w", failed)
}

// isPosition reports whether a text is the id of an entry.
func isPosition(text string) bool {
	ms, n, ok := strings.Cut(text, "-")
	digits := func(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" && len(s) < 20 }
	return ok && digits(ms) && digits(n)
}

// Told implements store.Regional. It waits on a connection of its own, apart from all decisions.
func (s *Store) Told(
	ctx context.Context, part int, after string, limit int, wait time.Duration,
) (told []store.Told, next string, gap bool, now int64, err error) {
	p, err := s.partOf(part)
	if err != nil {
		return nil, "", false, 0, err
	}
	clients, err := s.connected()
	if err != nil {
		return nil, "", false, 0, err
	}
	if err := s.needsFunctions("regions"); err != nil {
		return nil, "", false, 0, err
	}
	c, key := clients.other, p.toldKey()
	from, oldest := after, after == store.Oldest
	if after != "" && !isPosition(after) { // or of another kind of store
		from, gap = emptyLog, !oldest
	}
	read := toldReader{s: s, c: c, key: key, certain: oldest || gap, apart: wait >= time.Millisecond}
	if after == "" || limit <= 0 {
		if err := read.end(ctx); err != nil {
			return nil, "", false, 0, err
		}
		if after == "" {
			after = read.last
		}
		return nil, after, false, read.now, nil
	}
	if err := read.entries(ctx, from, limit, 0); err != nil {
		return nil, "", false, 0, err
	}
	if len(read.ids) == 0 && !read.gone && !gap && !oldest && read.apart {
		if err := read.entries(ctx, from, limit, wait); err != nil {
			return nil, "", false, 0, err
		}
	}
	gap = gap || read.gone
	switch {
	case len(read.ids) > 0:
		next = read.ids[len(read.ids)-1]
	case gap, oldest:
		if err := read.end(ctx); err != nil {
			return nil, "", false, 0, err
		}
		next = read.last
	default:
		next = after
	}
	return read.told, next, gap, read.now, nil
}

// toldReader reads a log.
type toldReader struct {
	s    *Store
	c    rueidis.Client
	key  string
	told []store.Told
	ids  []string
	last string // the end of the log
	now  int64

	gone    bool // entries after the position are gone, or the position's own entry is
	certain bool // it need not look whether entries of a log that was empty are gone
	// apart: entries are read on a connection that no other call has. When a call on it is given
	// up, so is the connection, and the next one connects anew. Where a router has forgotten a
	// connection, each call on one that is shared fails, until its own pings show that it is dead.
	apart bool
}

// do sends commands, and then asks for the time.
func (r *toldReader) do(ctx context.Context, wait time.Duration, commands ...rueidis.Completed) ([]rueidis.RedisResult,
	error) {
	// A context without a deadline: with one, rueidis does not look whether it is cancelled.
	calling, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	for _, end := range []context.Context{ctx, r.s.ctx} {
		stop := context.AfterFunc(end, func() { cancel(context.Cause(end)) })
		defer stop()
	}
	late := time.AfterFunc(wait+r.s.o.Timeout, func() { cancel(ErrDeadline) })
	defer late.Stop()
	r.s.metrics.calls.Add(1)
	results := r.c.DoMulti(calling, append(commands, r.c.B().Time().Build())...)
	for _, result := range results {
		if err := result.Error(); err != nil && !rueidis.IsRedisNil(err) {
			if calling.Err() != nil {
				err = context.Cause(calling)
			}
			return nil, fmt.Errorf("redis store: %w", err)
		}
	}
	if r.s.o.Clock != nil {
		r.now = r.s.o.Clock()
		return results, nil
	}
	parts, err := results[len(commands)].AsIntSlice()
	if err != nil || len(parts) != 2 {
		return nil, errors.Join(errors.New("redis store: TIME is no pair"), err)
	}
	r.now = parts[0]*1_000_000 + parts[1]
	return results, nil
}

// end finds the end of the log.
func (r *toldReader) end(ctx context.Context) error {
	results, err := r.do(ctx, 0, r.c.B().Xrevrange().Key(r.key).End("+").Start("-").Count(1).Build())
	if err != nil {
		return err
	}
	entries, err := results[0].AsXRange()
	if err != nil && !rueidis.IsRedisNil(err) {
		return fmt.Errorf("redis store: %w", err)
	}
	if r.last = emptyLog; len(entries) > 0 {
		r.last = entries[0].ID
	}
	return nil
}

// entries reads up to limit entries after a position. It looks for the position itself after that:
// if it is there then, nothing that follows it was gone before. The position of an empty log is no
// entry; there it looks how many were ever added.
func (r *toldReader) entries(ctx context.Context, from string, limit int, wait time.Duration) error {
	// rueidis runs a blocking command, and the commands sent with it, on a connection of its own.
	var xread rueidis.Completed
	switch {
	case !r.apart:
		xread = r.c.B().Xread().Count(int64(limit)).Streams().Key(r.key).Id(from).Build()
	case wait == 0: // it does not block, but is to have that connection
		xread = r.c.B().Arbitrary("XREAD", "COUNT", strconv.Itoa(limit), "STREAMS").Keys(r.key).Args(from).Blocking()
	default:
		xread = r.c.B().Xread().Count(int64(limit)).Block(wait.Milliseconds()).Streams().Key(r.key).Id(from).Build()
	}
	results, err := r.do(ctx, wait, xread, r.c.B().Xrange().Key(r.key).Start(from).End(from).Count(1).Build())
	if err != nil {
		return err
	}
	streams, err := results[0].AsXRead()
	if err != nil && !rueidis.IsRedisNil(err) {
		return fmt.Errorf("redis store: %w", err)
	}
	entries := streams[r.key]
	r.ids = slices.Grow(r.ids[:0], len(entries))
	for _, e := range entries {
		r.ids = append(r.ids, e.ID)
		r.told = unpackTold(r.told, e.FieldValues[toldField])
	}
	is, err := results[1].AsXRange()
	if err != nil && !rueidis.IsRedisNil(err) {
		return fmt.Errorf("redis store: %w", err)
	}
	r.gone = len(is) == 0 && from != emptyLog
	if from == emptyLog && len(r.ids) > 0 && !r.certain {
		r.gone = r.trimmed(ctx)
	}
	return nil
}

// trimmed reports whether entries of the log are gone. A user who may not ask for that takes it for
// whole.
func (r *toldReader) trimmed(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, r.s.o.Timeout)
	defer cancel()
	r.s.metrics.calls.Add(1)
	is, err := r.c.Do(ctx, r.c.B().XinfoStream().Key(r.key).Build()).ToMap()
	if err != nil {
		return false
	}
	number := func(field string) int64 {
		m := is[field]
		n, _ := m.AsInt64()
		return n
	}
	return number("entries-added") > number("length")
}
