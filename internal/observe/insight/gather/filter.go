package gather

import "sync/atomic"

// filter says which keys are in the samples. It always finds a key that is in them. It finds
// another key by mistake at most one time in 65,536.
type filter struct{ slots []atomic.Uint32 }

// A slot of a filter: 16 bits of the hash, the minute in which the key was last looked at, and how
// the key is thinned.
const (
	filterThin    = 0x1f
	filterUsed    = 1 << 5
	filterWatched = 1 << 6 // in the sample of refused keys: no decision is passed over
	filterMinute  = 0xff << 8
	filterHash    = 16
)

func newFilter(slots int) *filter { return &filter{slots: make([]atomic.Uint32, slots)} }

// find returns the slot of a key; its value is 0 if the key is not in. A filter is never full.
func (f *filter) find(hash uint64) (at *atomic.Uint32, value uint32) {
	i, tag := uint(hash), uint32(hash>>16)&0xffff
	for {
		at = &f.slots[i&uint(len(f.slots)-1)]
		if value = at.Load(); value == 0 || value>>filterHash == tag {
			return at, value
		}
		i++
	}
}

// put sets the value of a key.
func (f *filter) put(hash uint64, value uint32) {
	at, _ := f.find(hash)
	at.Store(uint32(hash>>16)&0xffff<<filterHash | value&(filterMinute|filterThin|filterWatched) | filterUsed)
}
