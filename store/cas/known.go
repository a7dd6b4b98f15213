package cas

import "unsafe"

// entry is this node's knowledge of one value.
type entry struct {
	name  []byte
	place uint64

	// of its owner, while it has one
	version uint64
	data    []byte // never changed while somebody else may read it
	spare   []byte // room for the next data
	known   bool   // version and data were read; else nothing is taken to lie there

	// guarded by Store.mu
	size    int     // its share of known.bytes
	pins    int     // calls that name it
	owner   *worker // the one that decides on it; nil: none
	claimed uint64  // the scan of the queue in which a waiting call kept it from later ones

	// working memory of the owner
	group int32 // index of a call of its group; below 0: none yet
	run   int   // writes one after the other, without a pause in which others could come through
	wrote int64 // when the last of them had come back, by the monotonic clock, in ns
	at    int32 // index in the plan; below 0: none yet
}

// known is the bounded table of entries; guarded by Store.mu.
type known struct {
	m     map[string]*entry
	most  int // entries, unless calls name more
	bytes int // of names and data
}

// meanBytes bounds what values take in memory: so much for each entry that the table may hold.
const meanBytes = 512

// entryBytes is about the size of an entry without its name and its data.
const entryBytes = 160

func (k *known) init(most int) { k.m, k.most = map[string]*entry{}, most }

// pin returns the entry of a name, which stays until it is released as often.
func (k *known) pin(name []byte, place uint64) *entry {
	e := k.m[string(name)]
	if e == nil {
		k.makeRoom()
		e = &entry{name: append([]byte(nil), name...), place: place}
		k.m[unsafe.String(unsafe.SliceData(e.name), len(e.name))] = e
		k.count(e)
	}
	e.pins++
	return e
}

// makeRoom drops some entries if the table is full. It looks at a few only, in the random order of
// a map.
func (k *known) makeRoom() {
	if len(k.m) < k.most && k.bytes < k.most*meanBytes {
		return
	}
	looked := 0
	for name, e := range k.m {
		if e.pins == 0 && e.owner == nil {
			delete(k.m, name)
			k.bytes -= e.size
		}
		if looked++; looked >= 8 || len(k.m) < k.most-1 && k.bytes < k.most*meanBytes {
			return
		}
	}
}

// keepSpare is the size above which room for the next data is not kept.
const keepSpare = 4 << 10

// set notes what lies under a key; the data is the table's from then on.
func (e *entry) set(version uint64, data []byte) {
	e.keep(e.data)
	e.version, e.data, e.known = version, data, true
}

// keep keeps room for the next data, unless it is large.
func (e *entry) keep(room []byte) {
	if e.spare = nil; cap(room) <= keepSpare {
		e.spare = room[:0]
	}
}

// forget notes that it is not known what lies under a key.
func (e *entry) forget() { e.version, e.data, e.spare, e.known = 0, nil, nil, false }

// count counts the present size of an entry.
func (k *known) count(e *entry) {
	size := len(e.name) + entryBytes + cap(e.data) + cap(e.spare)
	k.bytes += size - e.size
	e.size = size
}
