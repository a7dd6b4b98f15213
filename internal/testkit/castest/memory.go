// Package castest holds an engine of store/cas in memory, with faults, for tests and benchmarks.
package castest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/cas"
)

// Memory is a cas.Engine in this process, and a cas.Locker. Several stores may share it, as several
// nodes share a database. Make one with New. Set its fields before it is used.
type Memory struct {
	// Apart makes it an engine that does not span places.
	Apart bool
	// Clock is the engine's clock, in µs; nil means the system's.
	Clock func() int64
	// Before is called before each Read, Swap, Lock and Unlock; if it fails, the call does nothing
	// and returns the error. It may wait.
	Before func(ctx context.Context, c Call) error
	// After is called after each of them; an error takes the place of the answer.
	After func(ctx context.Context, c Call) error
	// Conflict is asked for each group of a Swap; where it returns true, somebody else has just
	// written the same values once more.
	Conflict func(g *cas.Group) bool

	mu     sync.Mutex
	values map[string]*value
	draws  uint64 // versions of conflicts
	freed  chan struct{}
	calls  Calls
}

// Call names a method of an engine.
type Call string

// The methods that Before and After see.
const (
	Read   Call = "Read"
	Swap   Call = "Swap"
	Lock   Call = "Lock"
	Unlock Call = "Unlock"
)

// Calls counts.
type Calls struct{ Reads, Swaps, Locks, Groups, Changes int }

// ErrLost is the error of a call whose answer was lost.
var ErrLost = errors.New("castest: the answer was lost")

type value struct {
	cas.Value
	until  int64
	locked bool
}

var _ cas.Locker = (*Memory)(nil)

// New returns an empty engine.
func New() *Memory {
	return &Memory{values: map[string]*value{}, freed: make(chan struct{})}
}

// Counts returns how often it was called.
func (m *Memory) Counts() Calls {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.calls
}

func (m *Memory) now() int64 {
	if m.Clock != nil {
		return m.Clock()
	}
	return time.Now().UnixMicro()
}

func (m *Memory) before(ctx context.Context, c Call) error {
	if m.Before != nil {
		if err := m.Before(ctx, c); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", store.ErrNotCharged, err)
	}
	return nil
}

func (m *Memory) after(ctx context.Context, c Call) error {
	if m.After != nil {
		return m.After(ctx, c)
	}
	return nil
}

// read returns what lies under a key; m.mu is held.
func (m *Memory) read(name []byte, now int64) cas.Value {
	v := m.values[string(name)]
	if v == nil || v.Version == 0 || v.until <= now {
		return cas.Value{}
	}
	return cas.Value{Version: v.Version, Data: bytes.Clone(v.Data)}
}

func (m *Memory) readAll(keys []cas.Key, now int64) []cas.Value {
	values := make([]cas.Value, len(keys))
	for i := range keys {
		values[i] = m.read(keys[i].Name, now)
	}
	return values
}

// write makes a change; m.mu is held.
func (m *Memory) write(c *cas.Change) {
	v := m.values[string(c.Name)]
	switch {
	case c.Keep || c.Version == 0 && v == nil:
		return
	case c.Version == 0 && !v.locked:
		delete(m.values, string(c.Name))
		return
	case v == nil:
		v = &value{}
		m.values[string(c.Name)] = v
	}
	m.calls.Changes++
	if c.Version != 0 && c.Until <= 0 {
		panic("castest: a value without the instant until which it is kept")
	}
	v.Value, v.until = cas.Value{Version: c.Version, Data: bytes.Clone(c.Data)}, c.Until
}

// Read implements cas.Engine.
func (m *Memory) Read(ctx context.Context, keys []cas.Key) ([]cas.Value, int64, error) {
	if err := m.before(ctx, Read); err != nil {
		return nil, 0, err
	}
	if err := m.checkPlaces(len(keys), func(i int) cas.Key { return keys[i] }); err != nil {
		return nil, 0, err
	}
	m.mu.Lock()
	m.calls.Reads++
	now := m.now()
	values := m.readAll(keys, now)
	m.mu.Unlock()
	if err := m.after(ctx, Read); err != nil {
		return nil, 0, err
	}
	return values, now, nil
}

func (m *Memory) checkPlaces(n int, key func(i int) cas.Key) error {
	for i := range n {
		k := key(i)
		if len(k.Name) < 1 || len(k.Name) > cas.MaxName {
			return fmt.Errorf("castest: a name of %d bytes", len(k.Name))
		}
		if m.Apart && k.Place != key(0).Place {
			return errors.New("castest: the keys are of several places")
		}
	}
	return nil
}

// Swap implements cas.Engine.
func (m *Memory) Swap(ctx context.Context, now int64, groups []cas.Group) (int64, error) {
	for i := range groups {
		changes := groups[i].Changes
		err := m.checkPlaces(len(changes), func(i int) cas.Key { return changes[i].Key })
		if err == nil && !slices.IsSortedFunc(changes, compare) {
			err = errors.New("castest: the changes are not in order")
		}
		if err != nil {
			return 0, fmt.Errorf("%w: %w", store.ErrNotCharged, err)
		}
	}
	if err := m.before(ctx, Swap); err != nil {
		return 0, err
	}
	m.mu.Lock()
	for m.anyLocked(groups) {
		if err := m.wait(ctx); err != nil {
			m.mu.Unlock()
			return 0, fmt.Errorf("%w: %w", store.ErrNotCharged, err)
		}
	}
	clock := m.now()
	m.calls.Swaps++
	m.calls.Groups += len(groups)
	skewed := now != 0 && (clock-now > cas.MaxSkew || now-clock > cas.MaxSkew)
	for i := range groups {
		m.swap(&groups[i], clock, skewed)
	}
	m.mu.Unlock()
	if err := m.after(ctx, Swap); err != nil {
		return 0, err
	}
	return clock, nil
}

func compare(a, b cas.Change) int {
	if a.Place != b.Place {
		if a.Place < b.Place {
			return -1
		}
		return 1
	}
	if c := bytes.Compare(a.Name, b.Name); c != 0 {
		return c
	}
	return 1 // each must come once
}

func (m *Memory) swap(g *cas.Group, clock int64, skewed bool) {
	g.Done, g.Err, g.Values = !skewed, nil, nil
	if m.Conflict != nil && m.Conflict(g) {
		for i := range g.Changes {
			if v := m.values[string(g.Changes[i].Name)]; v != nil && v.Version != 0 {
				m.draws++
				v.Version = m.draws
			}
		}
	}
	for i := range g.Changes {
		c := &g.Changes[i]
		v := m.values[string(c.Name)]
		version := uint64(0)
		if v != nil && v.until > clock {
			version = v.Version
		}
		g.Done = g.Done && version == c.Was
	}
	if g.Done {
		for i := range g.Changes {
			m.write(&g.Changes[i])
		}
		return
	}
	for i := range g.Changes {
		g.Values = append(g.Values, m.read(g.Changes[i].Name, clock))
	}
}

func (m *Memory) anyLocked(groups []cas.Group) bool {
	for i := range groups {
		for j := range groups[i].Changes {
			if v := m.values[string(groups[i].Changes[j].Name)]; v != nil && v.locked {
				return true
			}
		}
	}
	return false
}

// wait waits until something is unlocked; m.mu is held.
func (m *Memory) wait(ctx context.Context) error {
	freed := m.freed
	m.mu.Unlock()
	defer m.mu.Lock()
	select {
	case <-freed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

type lock struct {
	m    *Memory
	keys []cas.Key
}

// Lock implements cas.Locker.
func (m *Memory) Lock(ctx context.Context, keys []cas.Key) (cas.Lock, []cas.Value, int64, error) {
	if err := m.before(ctx, Lock); err != nil {
		return nil, nil, 0, err
	}
	l := &lock{m: m}
	for _, k := range keys {
		l.keys = append(l.keys, cas.Key{Place: k.Place, Name: bytes.Clone(k.Name)})
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for slices.ContainsFunc(l.keys, m.isLocked) {
		if err := m.wait(ctx); err != nil {
			return nil, nil, 0, err
		}
	}
	m.calls.Locks++
	now := m.now()
	values := m.readAll(keys, now)
	for _, k := range l.keys {
		v := m.values[string(k.Name)]
		if v == nil {
			v = &value{}
			m.values[string(k.Name)] = v
		}
		v.locked = true
	}
	return l, values, now, nil
}

func (m *Memory) isLocked(k cas.Key) bool {
	v := m.values[string(k.Name)]
	return v != nil && v.locked
}

// Unlock implements cas.Lock.
func (l *lock) Unlock(ctx context.Context, changes []cas.Change) error {
	m := l.m
	err := m.before(ctx, Unlock)
	m.mu.Lock()
	for i := range changes {
		if err == nil {
			m.write(&changes[i])
		}
	}
	for _, k := range l.keys {
		v := m.values[string(k.Name)]
		if v.locked = false; v.Version == 0 {
			delete(m.values, string(k.Name))
		}
	}
	close(m.freed)
	m.freed = make(chan struct{})
	m.mu.Unlock()
	if err == nil {
		err = m.after(ctx, Unlock)
	}
	return err
}

// Scan implements cas.Engine: in the order of names.
func (m *Memory) Scan(
	_ context.Context, from string, limit int, visit func(name []byte, v cas.Value),
) (next string, of int, err error) {
	m.mu.Lock()
	now := m.now()
	var names []string
	for name, v := range m.values {
		if v.Version != 0 && v.until > now {
			names = append(names, name)
		}
	}
	of = len(names)
	slices.SortFunc(names, strings.Compare)
	at, _ := slices.BinarySearch(names, from)
	names = names[at:]
	if len(names) > limit {
		names, next = names[:limit], names[limit]
	}
	values := make([]cas.Value, len(names))
	for i, name := range names {
		values[i] = m.read([]byte(name), now)
	}
	m.mu.Unlock()
	for i, name := range names {
		visit([]byte(name), values[i])
	}
	return next, of, nil
}

// Spans implements cas.Engine.
func (m *Memory) Spans() bool { return !m.Apart }

// Close implements cas.Engine.
func (m *Memory) Close() error { return nil }
