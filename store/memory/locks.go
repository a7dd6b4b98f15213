package memory

import "math/bits"

// shardSet is the shards that a call locks, a bit for each.
type shardSet [maxShards / 64]uint64

func (set *shardSet) add(shard uint64) { set[shard/64] |= 1 << (shard % 64) }

// lock locks the shards, in ascending order, so that two calls never wait for each other.
func (set *shardSet) lock(s *Store) {
	for i, rest := range set {
		for ; rest != 0; rest &= rest - 1 {
			s.shards[i*64+bits.TrailingZeros64(rest)].lock()
		}
	}
}

// unlock unlocks the shards, and empties the set.
func (set *shardSet) unlock(s *Store) {
	for i, rest := range set {
		for ; rest != 0; rest &= rest - 1 {
			s.shards[i*64+bits.TrailingZeros64(rest)].mu.Unlock()
		}
	}
	*set = shardSet{}
}
