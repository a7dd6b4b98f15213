package record

import (
	"cmp"
	"slices"

	"github.com/klauspost/compress/zstd"

	"github.com/weir-rl/weir/rule"
)

// spreadChunks is how many chunks Spread reads at most: half a megabyte.
const spreadChunks = 8

// Spread returns up to n recorded requests, spread over the time since the rules in force came into
// force. Older requests may lack attributes that these rules read. It does not hold up the deciding
// path: the chunks that it reads never change, or are copies.
func (r *Recorder) Spread(n int) []rule.Query {
	r.mu.Lock()
	from := int64(0)
	if last := len(r.mu.changes) - 1; last >= 0 {
		from = r.mu.changes[last]
	}
	chunks := r.mu.ring.take(int(r.level.Load()), from)
	r.mu.Unlock()
	slices.SortStableFunc(chunks, func(a, b Chunk) int { return cmp.Compare(a.To, b.To) })
	chosen := min(len(chunks), spreadChunks)
	list := make([]rule.Query, 0, n)
	z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxMemory(16<<20))
	if err != nil {
		return nil
	}
	defer z.Close()
	for i := range chosen {
		c := &chunks[(i+1)*len(chunks)/chosen-1] // the last one always
		// Later chunks make up for requests that earlier ones did not have.
		list = c.spread(z, from, (n-len(list))/(chosen-i), list)
	}
	return list
}

// spread appends up to n requests of the chunk that came from an instant on.
func (c *Chunk) spread(z *zstd.Decoder, from int64, n int, list []rule.Query) []rule.Query {
	raw := c.Data
	if c.Size >= 0 {
		var err error
		if raw, err = z.DecodeAll(c.Data, nil); err != nil {
			return list
		}
	}
	var d decoder
	var e Request
	var shapes shapes
	d.open(raw)
	stride, seen := max((c.Requests+n-1)/max(n, 1), 1), 0
	for ok, err := d.next(&e, &shapes); ok && err == nil && n > 0; ok, err = d.next(&e, &shapes) {
		if e.Answer() || e.Time < from {
			continue
		}
		if seen++; (seen-1)%stride == 0 {
			list, n = append(list, e.query()), n-1
		}
	}
	return list
}
