package memory

import (
	"bytes"
	"encoding/binary"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// snapshotReader reads what follows the parts of a block. Every length is checked against the bytes
// that are left, so a damaged length cannot allocate more memory than the file has bytes.
type snapshotReader struct {
	b   []byte
	err error // the first one
}

func (r *snapshotReader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

func (r *snapshotReader) uvarint() uint64 {
	if r.err != nil {
		return 0
	}
	v, n := binary.Uvarint(r.b)
	switch {
	case n == 0:
		r.fail(damaged("it ends too soon"))
		return 0
	case n < 0:
		r.fail(damaged("a number of more than 64 bits"))
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *snapshotReader) varint() int64 {
	u := r.uvarint()
	return int64(u>>1) ^ -int64(u&1)
}

// id reads the ID of a Counter.
func (r *snapshotReader) id() uint64 {
	if r.err != nil {
		return 0
	}
	if len(r.b) < 8 {
		r.fail(damaged("it ends too soon"))
		return 0
	}
	v := binary.LittleEndian.Uint64(r.b)
	r.b = r.b[8:]
	return v
}

func (r *snapshotReader) bytes() []byte {
	n := r.uvarint()
	if n > uint64(len(r.b)) {
		r.fail(damaged("a length of %d where %d bytes are left", n, len(r.b)))
		return nil
	}
	v := bytes.Clone(r.b[:n])
	r.b = r.b[n:]
	return v
}

func (r *snapshotReader) string() string { return string(r.bytes()) }

// loaded is a definition of a snapshot.
type loaded struct {
	counter *rule.Counter
	limit   *algo.Limit // nil: its records are left out
}

// insertLoaded adds a record of a snapshot to a shard that has none of this key. At the bound it
// forgets others, as for a key that is new. It returns false if there is no room.
func (s *Store) insertLoaded(sh *shard, l *loaded, h uint64, key []byte, st *algo.State, now int64) bool {
	if !s.reserve(sh, len(key), now) {
		return false
	}
	if s.bytes.Load()+int64(sh.growth(len(key))+cap(st.Ext)) > s.maxBytes {
		s.unreserve()
		return false
	}
	_, grown := sh.insert(tagOf(h, l.counter.ID), key, s.intern(l.counter, l.limit), st)
	s.bytes.Add(int64(grown))
	return true
}

// lasting reports whether a state is to be loaded: not if it has become fresh. The error is of a
// state that its limit cannot have.
func (l *loaded) lasting(st *algo.State, now int64) (lasting bool, err error) {
	defer func() {
		if p := recover(); p != nil { // the algorithm trusts its states; a file earns no trust
			err = damaged("a state that %v cannot have", l.limit.Algorithm())
		}
	}()
	if l.limit.Fresh(st, now) && l.counter.Lease == nil { // else see owes
		return false, nil
	}
	l.limit.Check(st, now, algo.Ask{Cost: 1, MaxDelay: -1, Slot: 1})
	return true, nil
}
