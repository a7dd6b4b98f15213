package memory

import (
	"container/heap"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	weir "github.com/weir-rl/weir"
)

// maxFacts bounds the facts of one kind, those included that were removed and are kept in mind.
const maxFacts = 100_000

// board is the Store as a weir.Board: for the Limiters of this process, and, with a snapshot file, for those after it. It is made
// when it is used first.
type board struct {
	once  sync.Once
	mu    sync.Mutex
	kinds map[string]*facts
	seq   uint64
	dirty chan struct{} // of one value; nil if nothing is written
}

// facts are those of one kind.
type facts struct {
	m        map[string]*fact
	ends     factHeap
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

// factHeap has what ends first on top.
type factHeap []*fact

func (h factHeap) Len() int           { return len(h) }
func (h factHeap) Less(i, j int) bool { return h[i].end < h[j].end }
func (h factHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i]; h[i].place, h[j].place = i, j }
func (h *factHeap) Push(x any)        { f := x.(*fact); f.place = len(*h); *h = append(*h, f) }
func (h *factHeap) Pop() any          { last := len(*h) - 1; f := (*h)[last]; *h = (*h)[:last]; return f }

var _ weir.Board = (*Store)(nil)

// facts returns those of a kind without what is over. The lock is held.
func (b *board) facts(kind string, now int64) *facts {
	k := b.kinds[kind]
	if k == nil {
		k = &facts{m: map[string]*fact{}, watchers: map[chan struct{}]struct{}{}}
		b.kinds[kind] = k
	}
	for len(k.ends) > 0 && k.ends[0].end <= now {
		k.drop(k.ends[0])
	}
	return k
}

func (k *facts) drop(f *fact) {
	heap.Remove(&k.ends, f.place)
	delete(k.m, f.id)
}

func (k *facts) put(f *fact) {
	if old := k.m[f.id]; old != nil {
		k.drop(old)
	}
	k.m[f.id] = f
	heap.Push(&k.ends, f)
	if len(k.m) > maxFacts {
		k.drop(k.ends[0])
	}
}

// changed wakes who watches, and the writer. The lock is held.
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

// open returns the board, with what the file holds.
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

// Post implements weir.Board.
func (s *Store) Post(_ context.Context, kind string, list []weir.Fact) error {
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
		k.put(&fact{id: f.ID, data: append([]byte(nil), f.Data...), at: now, end: now + f.TTL.Microseconds(), seq: b.seq})
	}
	b.changed(k)
	return nil
}

func checkFact(f *weir.Fact) error {
	switch {
	case f.ID == "" || len(f.ID) > weir.MaxFactID || len(f.Data) > weir.MaxFactData:
		return fmt.Errorf("memory store: a fact has an id of %d bytes and data of %d; there may be 1 to %d, and %d", len(f.ID), len(f.Data), weir.MaxFactID, weir.MaxFactData)
	case f.TTL < time.Microsecond || f.Removed:
		return errors.New("memory store: a fact that is posted holds for some time")
	}
	return nil
}

// Remove implements weir.Board.
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

// List implements weir.Board.
func (s *Store) List(_ context.Context, kind string) ([]weir.Fact, error) {
	b, now := s.openBoard(), s.now()
	b.mu.Lock()
	defer b.mu.Unlock()
	list, _ := b.facts(kind, now).since(0, now, false)
	return list, nil
}

// since returns the facts that changed after a seq, and the last seq.
func (k *facts) since(seq uint64, now int64, removed bool) (list []weir.Fact, last uint64) {
	last = seq
	for _, f := range k.ends {
		if f.seq > seq && (removed || !f.removed) {
			list = append(list, weir.Fact{
				ID: f.id, Data: f.data, TTL: time.Duration(f.end-now) * time.Microsecond, Age: time.Duration(max(now-f.at, 0)) * time.Microsecond, Removed: f.removed,
			})
			last = max(last, f.seq)
		}
	}
	return list, last
}

// Watch implements weir.Board.
func (s *Store) Watch(ctx context.Context, kind string, changed func(list []weir.Fact, anew bool)) error {
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
		var list []weir.Fact
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

// boardFile is the file of a board: JSON beside the snapshot.
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
		aside := path + ".damaged-" + time.Now().UTC().Format("20060102T150405.000000000Z")
		if moved := os.Rename(path, aside); moved != nil {
			s.logf("memory store: %s: %v; and it cannot be set aside: %v", path, err, moved)
			return
		}
		s.logf("memory store: %s: %v; set aside as %s: no bans and grants are in force", path, err, aside)
		return
	}
	b, now := &s.board, s.now()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, f := range saved.Facts {
		if f.End <= now || len(f.ID) == 0 || len(f.ID) > weir.MaxFactID || len(f.Data) > weir.MaxFactData {
			continue
		}
		b.seq++
		b.facts(f.Kind, now).put(&fact{id: string(f.ID), data: f.Data, at: f.At, end: f.End, removed: f.Removed, seq: b.seq})
	}
}

// keepBoard writes the file when something has changed, at most once a second, and a last time when the store is closed.
func (s *Store) keepBoard(path string) {
	b, failed := &s.board, false
	write := func() {
		err := s.writeBoard(path)
		if err != nil && !failed {
			s.logf("memory store: bans and grants not written, the last file stays: %v", err)
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

// writeBoard writes the file anew: beside the old one first, which it then replaces.
func (s *Store) writeBoard(path string) (err error) {
	saved := boardFile{Version: boardVersion, Facts: []savedFact{}}
	b, now := &s.board, s.now()
	b.mu.Lock()
	for kind := range b.kinds {
		for _, f := range b.facts(kind, now).ends {
			saved.Facts = append(saved.Facts, savedFact{Kind: kind, ID: []byte(f.id), Data: f.data, At: f.at, End: f.end, Removed: f.removed})
		}
	}
	b.mu.Unlock()
	data, err := json.Marshal(saved)
	if err != nil {
		return err
	}
	temp := path + ".tmp"
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(temp)
		}
	}()
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(temp, path); err != nil {
		return err
	}
	return syncFolder(filepath.Dir(path))
}
