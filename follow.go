package weir

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// Bans and grants are facts on the board of a store. Each node acts by what it knows itself, and tells the others: a fact that could
// not be told waits until it can be, and what is told then is how things stand then. Instants are told as time that is left,
// since the nodes' clocks differ.

const (
	postBatch    = 256         // facts in one call
	postAgain    = time.Second // how long after a failure it is tried again
	postPatience = 2 * time.Second
	factVersion  = 1
)

// share is what the other nodes have yet to be told.
type share struct {
	posting sync.Mutex // held while the board is told, so that it is told in the order of what happens

	mu        sync.Mutex
	following bool
	untold    map[factName]struct{}
	wake      chan struct{} // of one value
}

type factName struct{ kind, id string }

// factID names a key of a rule.
func factID(group uint64, key []byte) string {
	return string(append(binary.BigEndian.AppendUint64(make([]byte, 0, 8+len(key)), group), key...))
}

func cutFactID(id string) (group uint64, key []byte, ok bool) {
	if len(id) < 8 {
		return 0, nil, false
	}
	return binary.BigEndian.Uint64([]byte(id[:8])), []byte(id[8:]), true
}

// factData is what a Fact says of a ban or grant, as JSON. V is the version of its form.
type factData struct {
	V        int      `json:"v"`
	Domain   string   `json:"domain"`
	Limit    string   `json:"limit"`
	Key      []string `json:"key"`
	Reason   string   `json:"reason,omitempty"`
	Wide     bool     `json:"wide,omitempty"`
	Set      bool     `json:"set,omitempty"`
	NFTables bool     `json:"nftables,omitempty"`
	Allow    string   `json:"allow,omitempty"`
}

// Follow shares bans and grants with the other nodes through the store, which must be a Board, until ctx ends; then it returns nil.
// A store that keeps its facts over a restart brings them back so. Without Follow a Limiter tells what is set and lifted
// by Ban, Unban, Grant and Revoke, but hears of nothing, and keeps the bans that denials bring to itself. The error is ErrNoBoard,
// or that somebody follows already.
func (l *Limiter) Follow(ctx context.Context) error {
	board, ok := as[Board](l.store)
	if !ok {
		return ErrNoBoard
	}
	s := &l.share
	s.mu.Lock()
	if s.following {
		s.mu.Unlock()
		return errors.New("weir: Follow runs already")
	}
	s.following, s.untold, s.wake = true, map[factName]struct{}{}, make(chan struct{}, 1)
	wake := s.wake
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.following, s.untold = false, nil
		s.mu.Unlock()
	}()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failed := make(chan error, 2)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	watching.Go(func() { failed <- board.Watch(ctx, kindBan, l.hearBans) })
	watching.Go(func() { failed <- board.Watch(ctx, kindGrant, l.hearGrants) })
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			if ctx.Err() != nil {
				return nil
			}
			return err
		case <-wake:
		}
		for !s.tellAll(ctx, l, board) {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(postAgain):
			}
		}
	}
}

// later notes that the others are to be told how things stand with a key.
func (s *share) later(kind, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.following || len(s.untold) >= 2*DefaultMaxBans {
		return
	}
	s.untold[factName{kind, id}] = struct{}{}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// told takes back what later noted, since the others know better.
func (s *share) told(kind, id string) {
	s.mu.Lock()
	delete(s.untold, factName{kind, id})
	s.mu.Unlock()
}

// waits reports whether the others are still to be told of a key.
func (s *share) waits(kind, id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, waits := s.untold[factName{kind, id}]
	return waits
}

// some takes out up to n of what is untold.
func (s *share) some(n int) []factName {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []factName
	for name := range s.untold {
		if len(names) == n {
			break
		}
		names = append(names, name)
		delete(s.untold, name)
	}
	return names
}

// tellAll tells what is untold; false if that failed, and the rest is still untold.
func (s *share) tellAll(ctx context.Context, l *Limiter, board Board) bool {
	for {
		s.posting.Lock()
		names := s.some(postBatch)
		err := l.post(ctx, board, names)
		if err != nil {
			for _, name := range names {
				s.later(name.kind, name.id)
			}
		}
		s.posting.Unlock()
		if err != nil {
			return false
		}
		if len(names) < postBatch {
			return true
		}
	}
}

// tell tells the others at once how things stand with a key. A store that is no board has nobody to tell.
func (s *share) tell(ctx context.Context, l *Limiter, kind, id string) error {
	board, ok := as[Board](l.store)
	if !ok {
		return nil
	}
	s.posting.Lock()
	defer s.posting.Unlock()
	err := l.post(ctx, board, []factName{{kind, id}})
	switch {
	case errors.Is(err, ErrNoBoard):
		return nil
	case err != nil:
		s.later(kind, id)
		return fmt.Errorf("%w: %w", ErrNotShared, err)
	}
	return nil
}

// post puts on the board how things stand with some keys.
func (l *Limiter) post(ctx context.Context, board Board, names []factName) error {
	ctx, cancel := context.WithTimeout(ctx, postPatience)
	defer cancel()
	facts, gone := map[string][]Fact{}, map[string][]string{}
	for _, name := range names {
		fact, ok := l.fact(name)
		if ok {
			facts[name.kind] = append(facts[name.kind], fact)
		} else {
			gone[name.kind] = append(gone[name.kind], name.id)
		}
	}
	for kind, list := range facts {
		if err := board.Post(ctx, kind, list); err != nil {
			return err
		}
	}
	for kind, ids := range gone {
		if err := board.Remove(ctx, kind, ids); err != nil {
			return err
		}
	}
	return nil
}

// fact is how things stand with a key; ok is false if nothing holds.
func (l *Limiter) fact(name factName) (f Fact, ok bool) {
	group, key, ok := cutFactID(name.id)
	if !ok {
		return f, false
	}
	now := l.bans.now()
	data, until := factData{V: factVersion}, int64(0)
	switch name.kind {
	case kindBan:
		var b *Ban
		if b, until, ok = l.bans.table.find(group, key, now); ok {
			data.Domain, data.Limit, data.Key, data.Reason = b.Domain, b.Limit, b.Key, b.Reason
			data.Wide, data.Set, data.NFTables = b.Wide, b.Set, b.NFTables
		}
	case kindGrant:
		var g *grant
		if g, until, ok = l.grants.table.find(group, key, now); ok {
			data.Domain, data.Limit, data.Key, data.Reason, data.Allow = g.Domain, g.Limit, g.Key, g.Reason, g.Allow
		}
	}
	if !ok {
		return f, false
	}
	text, err := json.Marshal(data)
	if err == nil && len(text) > MaxFactData { // what is for people only goes; ID names the key
		data.Key, data.Reason = nil, ""
		text, err = json.Marshal(data)
	}
	if err != nil || len(text) > MaxFactData || len(name.id) > MaxFactID {
		return f, false
	}
	return Fact{ID: name.id, Data: text, TTL: time.Duration(min(until-now, algo.MaxWindow.Microseconds())) * time.Microsecond}, true
}

// heard is a Fact, understood.
type heard struct {
	group uint64
	key   []byte
	since int64 // by our clock
	until int64
	data  factData
}

func hear(f *Fact, now int64) (h heard, ok bool) {
	if h.group, h.key, ok = cutFactID(f.ID); !ok {
		return h, false
	}
	h.since, h.until = now-f.Age.Microseconds(), now+f.TTL.Microseconds()
	if f.Removed {
		return h, true
	}
	ok = json.Unmarshal(f.Data, &h.data) == nil && h.data.V == factVersion && h.until > now
	h.data.Reason = clipText(h.data.Reason, maxReason)
	return h, ok
}

// nearly is by how much two instants of one ban may differ that nodes with their own clocks hold.
const nearly = int64(time.Second / time.Microsecond)

// hearBans takes note of what the board says of bans.
func (l *Limiter) hearBans(facts []Fact, anew bool) {
	now := l.bans.now()
	there := map[string]bool{}
	for i := range facts {
		f := &facts[i]
		h, ok := hear(f, now)
		if !ok {
			continue
		}
		there[f.ID] = true
		have, until, is := l.bans.table.find(h.group, h.key, now)
		if is && (l.share.waits(kindBan, f.ID) && have.Since.UnixMicro() > h.since || f.Removed && have.Since.UnixMicro() > h.since+nearly) {
			continue // ours is newer, and will be told
		}
		switch {
		case f.Removed && is:
			l.share.told(kindBan, f.ID)
			l.lift(h.group, h.key)
		case f.Removed || is && max(until-h.until, h.until-until) < nearly && have.Reason == h.data.Reason && have.Set == h.data.Set:
		default:
			l.place(h.group, h.key, h.until, &Ban{
				Domain: h.data.Domain, Limit: h.data.Limit, Key: h.data.Key, Wide: h.data.Wide, Since: time.UnixMicro(h.since), Until: time.UnixMicro(h.until),
				Reason: h.data.Reason, Set: h.data.Set, NFTables: h.data.NFTables,
			})
		}
	}
	if anew {
		l.bans.table.each(now, func(group uint64, key []byte, _ int64, _ *Ban) {
			if id := factID(group, key); !there[id] {
				l.share.later(kindBan, id)
			}
		})
	}
}

// hearGrants takes note of what the board says of grants.
func (l *Limiter) hearGrants(facts []Fact, anew bool) {
	now := l.bans.now()
	there := map[string]bool{}
	var rules map[BanLimit]*rule.Rule
	for i := range facts {
		f := &facts[i]
		h, ok := hear(f, now)
		if !ok {
			continue
		}
		there[f.ID] = true
		have, until, is := l.grants.table.find(h.group, h.key, now)
		if is && (l.share.waits(kindGrant, f.ID) && have.Since.UnixMicro() > h.since || f.Removed && have.Since.UnixMicro() > h.since+nearly) {
			continue // ours is newer, and will be told
		}
		switch {
		case f.Removed && is:
			l.share.told(kindGrant, f.ID)
			l.grants.table.drop(h.group, h.key, now)
		case f.Removed || is && max(until-h.until, h.until-until) < nearly && have.Reason == h.data.Reason && have.Allow == h.data.Allow:
		default:
			if rules == nil {
				rules = l.rulesByName()
			}
			g := &grant{Grant: Grant{
				Domain: h.data.Domain, Limit: h.data.Limit, Key: h.data.Key, Allow: strings.TrimSpace(h.data.Allow),
				Since: time.UnixMicro(h.since), Until: time.UnixMicro(h.until), Reason: h.data.Reason,
			}}
			l.grants.understand(g, rules[BanLimit{g.Domain, g.Limit}], h.key)
			l.grants.table.set(h.group, h.key, h.until, g)
		}
	}
	if anew {
		l.grants.table.each(now, func(group uint64, key []byte, _ int64, _ *grant) {
			if id := factID(group, key); !there[id] {
				l.share.later(kindGrant, id)
			}
		})
	}
}

func (l *Limiter) rulesByName() map[BanLimit]*rule.Rule {
	rules := map[BanLimit]*rule.Rule{}
	if f := l.rules.Load(); f != nil {
		for _, r := range f.set.Rules() {
			rules[BanLimit{r.Domain, r.Name}] = r
		}
	}
	return rules
}
