package orders

import (
	"maps"
	"sync"
	"time"
)

// endedFor is for how long an end is remembered, in µs: longer than a node takes to publish an
// order, or to count denials.
const endedFor = int64(10 * time.Second / time.Microsecond)

// ended remembers which orders have been ended lately, here or on another node. An order that was
// made before its end may come later: another node was about to publish it, or denials were about
// to be counted. The zero value is ready to use.
type ended struct {
	mu   sync.Mutex
	at   map[string]int64 // by the id of the fact, in µs
	most int              // how many there may be until those that are over are dropped
}

// note notes that the order of an id was ended.
func (e *ended) note(id string, at, now int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if now-at >= endedFor {
		return
	}
	if e.at == nil {
		e.at = map[string]int64{}
	}
	e.at[id] = max(e.at[id], at)
	if len(e.at) > e.most {
		maps.DeleteFunc(e.at, func(_ string, at int64) bool { return now-at >= endedFor })
		e.most = max(1000, 2*len(e.at))
	}
}

// forget forgets the end of an order that is made anew on purpose.
func (e *ended) forget(id string) {
	e.mu.Lock()
	delete(e.at, id)
	e.mu.Unlock()
}

// since reports whether an order that was made at an instant has been ended since.
func (e *ended) since(id string, made, now int64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	at, ok := e.at[id]
	return ok && made < at && now-at < endedFor
}
