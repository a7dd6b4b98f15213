package snapshot

import "github.com/weir-rl/weir/internal/util/pack"

// The lanes of a series: the counts of a rule or a domain over time. For a domain, refused includes
// refusals by a ban, near includes soft margins, and soft and alone are empty.
const (
	LaneMet = iota
	LaneRefused
	LaneAlone
	LaneNear
	LaneSoft
	LaneBanned
	LaneWould
	Lanes
)

// Bucket holds the counts of one step of time.
type Bucket [Lanes]uint32

func (b *Bucket) Add(x *Bucket) {
	for i := range b {
		if b[i] += x[i]; b[i] < x[i] {
			b[i] = 1<<32 - 1
		}
	}
}

// Code writes or reads a bucket. One in which nothing happened is a single 0.
func (b *Bucket) Code(c *pack.Coder) {
	used := uint64(0)
	for i, v := range b {
		if v != 0 {
			used |= 1 << i
		}
	}
	c.Uint(&used)
	for i := range b {
		if used>>i&1 == 1 {
			x := uint64(b[i])
			c.Uint(&x)
			b[i] = uint32(x)
		}
	}
}

// Counts are the counts of a rule or a domain, by lane.
type Counts [Lanes]uint64

// Strip is a series: Steps[i] begins at Snapshot.From + i × Snapshot.Step.
type Strip [][Lanes]uint32

func (c *Counts) add(x *Counts) {
	for i := range c {
		c[i] += x[i]
	}
}

// AddBucket adds the counts of a step.
func (c *Counts) AddBucket(b *Bucket) {
	for i, v := range b {
		c[i] += uint64(v)
	}
}

// merge adds a series that begins shift steps later.
func (s *Strip) merge(x Strip, shift int) {
	if shift > len(*s) || shift < -len(x) {
		return
	}
	for i := range x {
		at := i + shift
		if at < 0 {
			continue
		}
		for at >= len(*s) {
			*s = append(*s, [Lanes]uint32{})
		}
		(*Bucket)(&(*s)[at]).Add((*Bucket)(&x[i]))
	}
}

// addStrip adds the steps of strip to the steps of into.
func addStrip(into, strip Strip) {
	for i := range strip[:min(len(strip), len(into))] {
		(*Bucket)(&into[i]).Add((*Bucket)(&strip[i]))
	}
}
