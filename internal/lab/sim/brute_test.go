package sim

import (
	"cmp"
	"math/big"
	"net/netip"
	"slices"
)

// Brute-force counters, written from docs/how-it-works/algorithms.md and sharing nothing with algo:
// each keeps the instants of all admitted requests of a key and recomputes from them, in exact
// rational arithmetic where fractions occur.

// bruteLimit decides whether a request at now is admitted, given the instants (µs, ascending) of
// all requests that were admitted before.
type bruteLimit func(admitted []int64, now int64) bool

// lastIn counts the instants, which are ascending, that are > after.
func lastIn(admitted []int64, after int64) int64 {
	n := int64(0)
	for i := len(admitted) - 1; i >= 0 && admitted[i] > after; i-- {
		n++
	}
	return n
}

func bruteFixedWindow(n, window int64) bruteLimit {
	return func(admitted []int64, now int64) bool {
		return lastIn(admitted, now/window*window-1) < n
	}
}

func bruteSlidingLog(n, window int64) bruteLimit {
	return func(admitted []int64, now int64) bool {
		return lastIn(admitted, now-window) < n
	}
}

func bruteSlidingWindow(n, window, buckets int64) bruteLimit {
	sub := window / buckets
	return func(admitted []int64, now int64) bool {
		current := now / sub
		whole, cut := int64(0), int64(0)
		for i := len(admitted) - 1; i >= 0; i-- {
			switch age := current - admitted[i]/sub; {
			case age < buckets:
				whole++
			case age == buckets:
				cut++
			default:
				i = 0
			}
		}
		overlap := big.NewRat(sub-now%sub, sub)
		estimate := new(big.Rat).Add(big.NewRat(whole, 1), new(big.Rat).Mul(big.NewRat(cut, 1), overlap))
		floor := new(big.Int).Div(estimate.Num(), estimate.Denom())
		return floor.Int64()+1 <= n
	}
}

// bruteTokenBucket replays the whole history of the key for each request: min(B, tokens + d × N /
// W). Tokens are counted as fractions over W, so that they are integers.
func bruteTokenBucket(n, window, burst int64) bruteLimit {
	return func(admitted []int64, now int64) bool {
		tokens, last := burst*window, now
		for i, at := range admitted {
			if i > 0 {
				tokens = min(burst*window, tokens+(at-last)*n)
			}
			tokens -= window
			last = at
		}
		if len(admitted) > 0 {
			tokens = min(burst*window, tokens+(now-last)*n)
		}
		return tokens >= window
	}
}

// bruteLeakyBucket replays the departures: each leaves W/N after the one before, and the turn of a
// newcomer may lie at most B × W/N ahead. Instants are fractions over N, so that they are
// integers.
func bruteLeakyBucket(n, window, size int64) bruteLimit {
	return func(admitted []int64, now int64) bool {
		turn := int64(0) // when the next may leave
		for _, at := range admitted {
			turn = max(turn, at*n) + window
		}
		return turn-now*n <= size*window
	}
}

// bruteRequest is one line of a log.
type bruteRequest struct {
	time   int64
	client string
}

type bruteCounts struct {
	allowed, denied, keys, keysDenied int64
}

// bruteKey is the key of a client: an IPv6 address by its /64.
func bruteKey(client string) string {
	if a, err := netip.ParseAddr(client); err == nil && a.Is6() && !a.Is4In6() {
		return netip.PrefixFrom(a, 64).Masked().String()
	}
	return client
}

// brute counts requests under one limit for each client.
func brute(requests []bruteRequest, limit bruteLimit) bruteCounts {
	requests = slices.Clone(requests)
	slices.SortStableFunc(requests, func(a, b bruteRequest) int { return cmp.Compare(a.time, b.time) })
	byKey := make(map[string][]int64)
	for _, r := range requests {
		byKey[bruteKey(r.client)] = append(byKey[bruteKey(r.client)], r.time)
	}
	var c bruteCounts
	for _, times := range byKey {
		c.keys++
		var admitted []int64
		denied := int64(0)
		for _, now := range times {
			if limit(admitted, now) {
				admitted = append(admitted, now)
				c.allowed++
			} else {
				denied++
			}
		}
		c.denied += denied
		if denied > 0 {
			c.keysDenied++
		}
	}
	return c
}
