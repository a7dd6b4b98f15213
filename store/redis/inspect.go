package redis

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// Release implements store.Store.
func (s *Store) Release(ctx context.Context, c *rule.Counter, key []byte, slot uint64) (bool, error) {
	if c == nil {
		return false, errors.New("redis store: Release needs a Counter")
	}
	if c.Limit == nil || !c.Limit.HasSlots() || slot == 0 {
		return false, nil
	}
	clients, err := s.connected()
	if err != nil {
		return false, err
	}
	p := s.partitionOf(c, key)
	id := binary.LittleEndian.AppendUint64(nil, slot)
	timeout := strconv.FormatInt(c.Limit.Config().Timeout.Microseconds(), 10)
	result, err := s.once(ctx, clients.other, p, lua().release, []string{string(p.appendKey(nil, c.ID, key))},
		[]string{s.virtualNow(), timeout, string(id)})
	if err != nil {
		return false, fmt.Errorf("redis store: %w", err)
	}
	n, err := result.ToInt64()
	return n == 1, err
}

var _ store.Inspector = (*Store)(nil)

// Inspect implements store.Inspector. Keys of one partition are read in groups, each at one
// instant.
func (s *Store) Inspect(ctx context.Context, v *store.View, keys [][]byte, visit func(store.KeyState)) error {
	clients, err := s.connected()
	if err != nil || v.Counter == nil {
		return err
	}
	of := map[*partition][][]byte{}
	for _, key := range keys {
		p := s.partitionOf(v.Counter, key)
		of[p] = append(of[p], key)
	}
	for p, keys := range of {
		for some := range slices.Chunk(keys, scanCount) {
			if err := p.inspect(ctx, clients.other, v, some, visit); err != nil {
				return err
			}
		}
	}
	return nil
}

// inspect reads keys of the partition.
func (p *partition) inspect(ctx context.Context, client rueidis.Client, v *store.View, keys [][]byte,
	visit func(store.KeyState)) error {
	plan := p.newSwapPlan()
	var charges []store.Charge
	for _, key := range keys {
		if l := v.Limit(key); l != nil {
			charges = append(charges, store.Charge{Counter: v.Counter, Limit: l, Key: key})
		}
	}
	if len(charges) == 0 {
		return nil
	}
	of := plan.addCharges(charges)
	now, err := plan.read(ctx, client)
	if err != nil {
		return fmt.Errorf("redis store: %w", err)
	}
	for i := range charges {
		c, st := &charges[i], &plan.states[of[i]].St
		beside := plan.besideOf(of[i]).In()
		c.Limit.Roll(st, beside, now)
		if c.Limit.Fresh(st, now) && c.Limit.LentAt(beside, now).Out() == 0 {
			continue
		}
		visit(v.State(c.Key, c.Limit, st, beside, now))
	}
	return nil
}

// Reset implements store.Inspector.
func (s *Store) Reset(ctx context.Context, c *rule.Counter, key []byte) (ok bool, err error) {
	if c == nil || c.Limit == nil {
		return false, nil
	}
	err = s.partitionOf(c, key).swap(ctx, func(plan *swapPlan) func(int64) {
		of := plan.addCharges([]store.Charge{{Counter: c, Limit: c.Limit, Key: key}})[0]
		plan.asKept = true
		return func(now int64) {
			ok = false
			l, lease := plan.under(c.Limit, of), plan.lentOf(of)
			if lease != nil {
				record := &plan.states[plan.states[of].beside-1]
				record.codec = s.codecOf(l.Lease())
				record.carryRecord()
				l.Roll(&plan.states[of].St, lease, now)
			}
			for i := range plan.states {
				ref := &plan.states[i]
				if ref.codec.kind == kindRecord { // units out stay out
					ref.write = true
					continue
				}
				ok = ok || !ref.codec.limit.Fresh(&ref.St, now)
				if i == of {
					l.Reset(&ref.St, lease, now)
				} else {
					ref.St = algo.State{}
				}
				ref.write = true
			}
		}
	})
	if err != nil {
		return false, err
	}
	if s.refusals != nil {
		s.refusals.invalidate(c.ID, key)
	}
	return ok, nil
}

// scanCount is how many keys one SCAN looks at: Redis serves nobody else meanwhile.
const scanCount = 1000

// Scan implements store.Inspector: it scans the masters one after the other, with SCAN.
// Scanned.Looked is the COUNT that SCAN was given, which is about how many keys it looks at.
func (s *Store) Scan(ctx context.Context, v *store.View, from string, limit int,
	visit func(store.KeyState)) (store.Scanned, error) {
	var out store.Scanned
	clients, err := s.connected()
	if err != nil || v.Counter == nil || v.Counter.Limit == nil {
		return out, err
	}
	masters, names, err := mastersOf(ctx, clients.other)
	if err != nil {
		return out, err
	}
	sizes := map[string]int{}
	for name, node := range masters {
		n, err := node.Do(ctx, node.B().Dbsize().Build()).AsInt64()
		if _, refused := rueidis.IsRedisErr(err); err != nil && !refused {
			return out, fmt.Errorf("redis store: DBSIZE: %w", err)
		}
		sizes[name] = int(n) // 0 if an ACL refuses it
		out.Of += int(n)
	}
	at, cursor := scanPosition(from, names)
	id := s.codecOf(v.Counter.Limit).valueID(v.Counter)
	pattern := escape(s.o.Prefix+formatVersion) + "*" + escape(string(binary.BigEndian.AppendUint64(nil, id))) + "*"
	seen := map[string]struct{}{} // SCAN may return a key twice
	for ; at < len(names); at, cursor = at+1, 0 {
		node, ofNode := masters[names[at]], 0
		for {
			if out.Looked >= limit && out.Looked > 0 {
				out.Next = strconv.FormatUint(cursor, 10) + " " + names[at]
				return out, nil
			}
			entry, err := node.Do(ctx,
				node.B().Scan().Cursor(cursor).Match(pattern).Count(scanCount).Build()).AsScanEntry()
			if err != nil {
				return out, fmt.Errorf("redis store: SCAN: %w", err)
			}
			looked := scanCount
			if size := sizes[names[at]]; size > 0 {
				looked = max(0, min(scanCount, size-ofNode))
			}
			ofNode, out.Looked = ofNode+looked, out.Looked+looked
			found := map[*partition][][]byte{}
			for _, key := range entry.Elements {
				p := s.holds(key, id)
				if _, twice := seen[key]; p == nil || twice {
					continue
				}
				seen[key] = struct{}{}
				found[p] = append(found[p], []byte(key[len(p.prefix)+8:]))
			}
			for p, keys := range found {
				if err := p.inspect(ctx, clients.other, v, keys, visit); err != nil {
					return out, err
				}
			}
			if cursor = entry.Cursor; cursor == 0 {
				break
			}
		}
	}
	return out, nil
}

// mastersOf returns the servers that hold keys, and their names in order.
func mastersOf(ctx context.Context, client rueidis.Client) (masters map[string]rueidis.Client, names []string,
	err error) {
	masters = map[string]rueidis.Client{}
	for name, node := range client.Nodes() {
		role, err := node.Do(ctx, node.B().Role().Build()).ToArray()
		if err != nil {
			return nil, nil, fmt.Errorf("redis store: ROLE: %w", err)
		}
		if len(role) == 0 {
			continue
		}
		if is, _ := role[0].ToString(); is == "master" {
			masters[name] = node
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return masters, names, nil
}

// scanPosition reads what Scan returned as Scanned.Next. It is the beginning if that server is no
// longer a master.
func scanPosition(from string, names []string) (at int, cursor uint64) {
	number, name, _ := strings.Cut(from, " ")
	cursor, err := strconv.ParseUint(number, 10, 64)
	if at, ok := slices.BinarySearch(names, name); ok && err == nil {
		return at, cursor
	}
	return 0, 0
}

// holds returns the partition of a key in Redis if it is a key of the counter or group id, else
// nil.
func (s *Store) holds(key string, id uint64) *partition {
	for _, p := range s.partitions {
		if strings.HasPrefix(key, p.prefix) {
			if rest := key[len(p.prefix):]; len(rest) >= 8 && binary.BigEndian.Uint64([]byte(rest[:8])) == id {
				return p
			}
			return nil
		}
	}
	return nil
}

// escape returns a pattern for SCAN that matches text itself.
func escape(text string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(text)
}
