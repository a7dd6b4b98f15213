package redis

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	weir "github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// Release implements weir.Store.
func (s *Store) Release(ctx context.Context, c *rule.Counter, key []byte, slot uint64) (bool, error) {
	if c == nil {
		return false, errors.New("redis store: Release needs a Counter")
	}
	if c.Limit == nil || c.Limit.Algorithm() != algo.Concurrency || slot == 0 {
		return false, nil
	}
	clients, err := s.connected()
	if err != nil {
		return false, err
	}
	p := s.partitionOf(c, key)
	id := binary.LittleEndian.AppendUint64(nil, slot)
	timeout := strconv.FormatInt(c.Limit.Config().Timeout.Microseconds(), 10)
	result, err := s.call(ctx, clients.other, functionRelease, []string{string(p.appendKey(nil, c.ID, key))}, []string{s.virtualNow(), timeout, string(id)})
	if err != nil {
		return false, fmt.Errorf("redis store: %w", err)
	}
	n, err := result.ToInt64()
	return n == 1, err
}

// KeyInfo is one key with its state, as an operator sees it.
type KeyInfo struct {
	Key    []byte
	Result algo.Result // of a peek
}

// Peek returns the state of one key; ok is false if it is fresh.
func (s *Store) Peek(ctx context.Context, c *rule.Counter, key []byte) (info KeyInfo, ok bool, err error) {
	clients, err := s.connected()
	if err != nil || c == nil || c.Limit == nil {
		return KeyInfo{}, false, err
	}
	p := s.partitionOf(c, key)
	infos, err := s.peek(ctx, clients.other, p, c, [][]byte{key})
	if err != nil || len(infos) == 0 {
		return KeyInfo{}, false, err
	}
	return infos[0], true, nil
}

// peek reads keys of one counter and partition; fresh ones are left out.
func (s *Store) peek(ctx context.Context, client rueidis.Client, p *partition, c *rule.Counter, keys [][]byte) ([]KeyInfo, error) {
	scene := p.newScene()
	of := make([]int, len(keys))
	for i, key := range keys {
		of[i] = scene.addCharges([]weir.Charge{{Counter: c, Limit: c.Limit, Key: key}})[0]
	}
	now, err := scene.read(ctx, client)
	if err != nil {
		return nil, fmt.Errorf("redis store: %w", err)
	}
	var infos []KeyInfo
	for i, key := range keys {
		st := &scene.places[of[i]].st
		if c.Limit.Fresh(st, now) {
			continue
		}
		margin, _ := scene.marginOf(of[i])
		infos = append(infos, KeyInfo{Key: bytes.Clone(key), Result: c.Limit.CheckWith(st, margin, now, algo.Ask{MaxDelay: -1})})
	}
	return infos, nil
}

// Reset forgets one key; ok is false if there was nothing to forget.
func (s *Store) Reset(ctx context.Context, c *rule.Counter, key []byte) (ok bool, err error) {
	if c == nil || c.Limit == nil {
		return false, nil
	}
	err = s.partitionOf(c, key).swap(ctx, func(scene *scene) func(int64) {
		scene.addCharges([]weir.Charge{{Counter: c, Limit: c.Limit, Key: key}})
		return func(now int64) {
			ok = false
			for i := range scene.places {
				pl := &scene.places[i]
				ok = ok || !pl.twin.limit.Fresh(&pl.st, now)
				pl.st, pl.write = algo.State{}, true
			}
		}
	})
	if err != nil {
		return false, err
	}
	if s.refusals != nil {
		s.refusals.open(c.ID, key)
	}
	return ok, nil
}

// maxScanned bounds the keys that Hottest looks at on each server.
const maxScanned = 200_000

// Hottest returns up to n keys of the counter that have used most of their limit, most used first. It looks at up to
// 200,000 keys of each server, a thousand at a time; where there are more, its answer is a sample.
func (s *Store) Hottest(ctx context.Context, c *rule.Counter, n int) ([]KeyInfo, error) {
	clients, err := s.connected()
	if err != nil || c == nil || c.Limit == nil || n <= 0 {
		return nil, err
	}
	client := clients.other
	var hot []KeyInfo
	for _, node := range client.Nodes() {
		role, err := node.Do(ctx, node.B().Role().Build()).ToArray()
		if err != nil {
			return nil, fmt.Errorf("redis store: ROLE: %w", err)
		}
		if len(role) == 0 {
			continue
		}
		if name, _ := role[0].ToString(); name != "master" {
			continue
		}
		seen := map[string]struct{}{} // SCAN may return a key twice
		found := map[*partition][][]byte{}
		id := s.twinOf(c.Limit).valueID(c)
		cursor := uint64(0)
		for scanned := 0; scanned < maxScanned; scanned += 1000 {
			entry, err := node.Do(ctx, node.B().Scan().Cursor(cursor).Match(escape(s.o.Prefix+formatVersion)+"*").Count(1000).Build()).AsScanEntry()
			if err != nil {
				return nil, fmt.Errorf("redis store: %w", err)
			}
			for _, key := range entry.Elements {
				if _, twice := seen[key]; twice {
					continue
				}
				if p := s.holds(key, id); p != nil {
					seen[key] = struct{}{}
					found[p] = append(found[p], []byte(key[len(p.prefix)+8:]))
				}
			}
			if cursor = entry.Cursor; cursor == 0 {
				break
			}
		}
		for p, keys := range found {
			for some := range slices.Chunk(keys, 1000) {
				infos, err := s.peek(ctx, client, p, c, some)
				if err != nil {
					return nil, err
				}
				hot = append(hot, infos...)
			}
			slices.SortFunc(hot, compareUse)
			hot = hot[:min(n, len(hot))]
		}
	}
	return hot, nil
}

// holds returns the partition of a key in Redis, if it is one of a counter or group.
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

// escape makes a pattern of SCAN that matches text.
func escape(text string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(text)
}

// used returns the share of the limit that is used up.
func (k *KeyInfo) used() float64 {
	if k.Result.Limit <= 0 {
		return 1
	}
	return 1 - float64(k.Result.Remaining)/float64(k.Result.Limit)
}

func compareUse(a, b KeyInfo) int {
	return cmp.Or(cmp.Compare(b.used(), a.used()), cmp.Compare(b.Result.ResetAfter, a.Result.ResetAfter), bytes.Compare(a.Key, b.Key))
}
