package memory

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/weir-rl/weir/internal/util/atomicfile"
	"github.com/weir-rl/weir/internal/util/pq"
	"github.com/weir-rl/weir/store"
)

// maxFacts bounds the facts of one kind, those included that were removed and are kept in mind.
const maxFacts = 100_000

// board is the Store as a store.Board: for the Limiters of this process, and, with a snapshot file,
// for those after it. It is made when it is used first.
type board struct {
	once  sync.Once
	mu    sync.Mutex
	kinds map[string]*facts
	seq   uint64
	dirty chan struct{} // of one value; nil if nothing is written
}

// facts are the facts of one kind.
type facts struct {
	m        map[string]*fact
	ends     pq.Heap[*fact]             // by end
	watchers map[chan struct{}]struct{} // each of one value
}

type fact struct {
	id      string
	data    []byte
	at, end int64 // of the store's clock, µs
	removed bool
	seq     uint64 // of the last change
	place   int    // in the heap
}

func newFacts() *facts {
	return &facts{
		m: map[string]*fact{}, watchers: map[chan struct{}]struct{}{},
		ends: pq.New(func(a, b *fact) bool { return a.end < b.end }, func(f *fact, at int) { f.place = at }),
	}
}

var _ store.Board = (*Store)(nil)

// facts returns the facts of a kind, after removing those that have expired. The lock is held.
func (b *board) facts(kind string, now int64) *facts {
	k := b.kinds[kind]
	if k == nil {
		k = newFacts()
		b.kinds[kind] = k
	}
	for k.ends.Len() > 0 && k.ends.Min().end <= now {
		k.drop(k.ends.Min())
	}
	return k
}

func (k *facts) drop(f *fact) {
	k.ends.Remove(f.place)
	delete(k.m, f.id)
}

func (k *facts) put(f *fact) {
	if old := k.m[f.id]; old != nil {
		k.drop(old)
	}
	k.m[f.id] = f
	k.ends.Push(f)
	if len(k.m) > maxFacts {
		k.drop(k.ends.Min())
	}
}

// changed wakes the watchers and the writer. The lock is held.
func (b *board) changed(k *facts) {
	for w := range k.watchers {
		wake(w)
	}
	if b.dirty != nil {
		wake(b.dirty)
	}
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// openBoard returns the board; the first call reads its file.
func (s *Store) openBoard() *board {
	b := &s.board
	b.once.Do(func() {
		b.kinds = map[string]*facts{}
		if s.snapshot.path == "" {
			return
		}
		path := s.snapshot.path + ".board"
		s.loadBoard(path)
		b.dirty = make(chan struct{}, 1)
		s.background(func() { s.keepBoard(path) })
	})
	return b
}

// Post implements store.Board.
func (s *Store) Post(_ context.Context, kind string, list []store.Fact) error {
	for i := range list {
		if err := checkFact(&list[i]); err != nil {
			return err
		}
	}
	b, now := s.openBoard(), s.now()
	b.mu.Lock()
	defer b.mu.Unlock()
	k := b.facts(kind, now)
	for i := range list {
		f := &list[i]
		b.seq++
		k.put(&fact{id: f.ID, data: append([]byte(nil), f.Data...), at: now, end: now + f.TTL.Microseconds(),
			seq: b.seq})
	}
	b.changed(k)
	return nil
}

func checkFact(f *store.Fact) error {
	switch {
	case f.ID == "" || len(f.ID) > store.MaxFactID || len(f.Data) > store.MaxFactData:
		return fmt.Errorf("memory store: a fact has an id of %d bytes and data of %d; there may be 1 to %d, and %d",
			len(f.ID), len(f.Data), store.MaxFactID, store.MaxFactData)
	case f.TTL < time.Microsecond || f.Removed:
		return errors.New("memory store: a fact that is posted holds for some time")
	}
	return nil
}

// Remove implements store.Board.
func (s *Store) Remove(_ context.Context, kind string, ids []string) error {
	b, now := s.openBoard(), s.now()
	b.mu.Lock()
	defer b.mu.Unlock()
	k := b.facts(kind, now)
	for _, id := range ids {
		if f := k.m[id]; f != nil && !f.removed {
			b.seq++
			k.put(&fact{id: id, at: now, end: f.end, removed: true, seq: b.seq})
		}
	}
	b.changed(k)
	return nil
}

// List implements store.Board.
func (s *Store) List(_ context.Context, kind string) ([]store.Fact, error) {
	b, now := s.openBoard(), s.now()
	b.mu.Lock()
	defer b.mu.Unlock()
	list, _ := b.facts(kind, now).since(0, now, false)
	return list, nil
}

// since returns the facts that changed after a seq, and the last seq.
func (k *facts) since(seq uint64, now int64, removed bool) (list []store.Fact, last uint64) {
	last = seq
	for _, f := range k.ends.Items() {
		if f.seq > seq && (removed || !f.removed) {
			list = append(list, store.Fact{
				ID: f.id, Data: f.data, TTL: time.Duration(f.end-now) * time.Microsecond, Age: time.Duration(max(now-f.at, 0)) * time.Microsecond, Removed: f.removed,
			})
			last = max(last, f.seq)
		}
	}
	return list, last
}

// Watch implements store.Board.
func (s *Store) Watch(ctx context.Context, kind string, changed func(list []store.Fact, anew bool)) error {
	b, w := s.openBoard(), make(chan struct{}, 1)
	b.mu.Lock()
	k := b.facts(kind, s.now())
	k.watchers[w] = struct{}{}
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		delete(k.watchers, w)
		b.mu.Unlock()
	}()
	seq := uint64(0)
	for anew := true; ; anew = false {
		now := s.now()
		b.mu.Lock()
		var list []store.Fact
		list, seq = b.facts(kind, now).since(seq, now, true)
		b.mu.Unlock()
		if len(list) > 0 || anew {
			changed(list, anew)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w:
		}
	}
}

// boardFile is the content of a board's file, JSON in a file next to the snapshot.
type boardFile struct {
	Version int         `json:"version"`
	Facts   []savedFact `json:"facts"`
}

type savedFact struct {
	Kind    string `json:"kind"`
	ID      []byte `json:"id"`
	Data    []byte `json:"data,omitempty"`
	At      int64  `json:"at"`
	End     int64  `json:"end"`
	Removed bool   `json:"removed,omitempty"`
}

const boardVersion = 1

// loadBoard reads the file into the empty board. One that is damaged is set aside.
func (s *Store) loadBoard(path string) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var saved boardFile
	if err == nil {
		if err = json.Unmarshal(data, &saved); err == nil && saved.Version != boardVersion {
			err = fmt.Errorf("its version is %d, this program reads %d", saved.Version, boardVersion)
		}
	}
	if err != nil {
		aside := atomicfile.Aside(path)
		if moved := os.Rename(path, aside); moved != nil {
			s.log.Warn(fmt.Sprintf("memory store: %s: %v; and it cannot be set aside: %v", path, err, moved))
			return
		}
		s.log.Warn(fmt.Sprintf("memory store: %s: %v; set aside as %s: no bans and grants are in force", path, err,
			aside))
		return
	}
	b, now := &s.board, s.now()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, f := range saved.Facts {
		if f.End <= now || len(f.ID) == 0 || len(f.ID) > store.MaxFactID || len(f.Data) > store.MaxFactData {
			continue
		}
		b.seq++
		b.facts(f.Kind, now).put(&fact{id: string(f.ID), data: f.Data, at: f.At, end: f.End, removed: f.Removed,
			seq: b.seq})
	}
}

// keepBoard writes the file when something has changed, at most once a second, and a last time when
// the store is closed.
func (s *Store) keepBoard(path string) {
	b, failed := &s.board, false
	write := func() {
		err := s.writeBoard(path)
		if err != nil && !failed {
			s.log.Warn(fmt.Sprintf("memory store: bans and grants not written, the last file stays: %v", err))
		}
		if failed = err != nil; failed {
			wake(b.dirty)
		}
	}
	for {
		select {
		case <-s.snapshot.stop:
			select {
			case <-b.dirty:
				write()
			default:
			}
			return
		case <-b.dirty:
			write()
		}
		select {
		case <-s.snapshot.stop:
		case <-time.After(time.Second):
		}
	}
}

// writeBoard puts a new file in the place of the old one.
func (s *Store) writeBoard(path string) error {
	saved := boardFile{Version: boardVersion, Facts: []savedFact{}}
	b, now := &s.board, s.now()
	b.mu.Lock()
	for kind := range b.kinds {
		for _, f := range b.facts(kind, now).ends.Items() {
			saved.Facts = append(saved.Facts, savedFact{Kind: kind, ID: []byte(f.id), Data: f.data, At: f.at,
				End: f.end, Removed: f.removed})
		}
	}
	b.mu.Unlock()
	data, err := json.Marshal(saved)
	if err != nil {
		return err
	}
	return atomicfile.Write(path, func(f *os.File) error {
		_, err := f.Write(data)
		return err
	})
}
