package insight

import (
	"hash/fnv"
	"strings"
	"time"
)

// BanCounts are how many requests each ban has refused, on some nodes.
type BanCounts struct {
	Began time.Time         // since when all of the nodes count, and none has left
	Of    map[uint64]uint64 // by BanID; 0 is left out
}

// BanID names a ban on all nodes.
func BanID(domain, rule string, key []string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(domain + "\x00" + rule + "\x00" + strings.Join(key, "\x00")))
	return h.Sum64()
}
