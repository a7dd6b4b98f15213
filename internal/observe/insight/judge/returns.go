package judge

import (
	"time"

	"github.com/weir-rl/weir/internal/observe/insight"
)

// MomentUnit is how exactly the times of requests are known that are compared, in µs.
const MomentUnit = 10_000

// Returns follow what a client does after a refusal. An episode begins with a refusal that says
// when to come back. The first request from then on ends it, and the client has obeyed if it sent
// none earlier. A client that keeps knocking has one episode, however often it knocks.
type Returns struct {
	insight.Episodes
	told    int64 // when it is to come back, µs; 0 while there is no episode
	begun   int64 // when it was refused last
	knocked bool
}

// patience is how long to wait for a client, at least, before it counts as having given up.
const patience = int64(10 * time.Minute / time.Microsecond)

// Note adds a request: whether it was refused, and when the client was told to come back; 0 if it
// was not told. Requests may be noted out of order: one from before the refusal is no return.
func (e *Returns) Note(at int64, refused bool, retry int64) {
	e.Expire(at)
	if e.told != 0 {
		if at < e.begun {
			return
		}
		if at/MomentUnit < e.told/MomentUnit {
			if !e.knocked {
				e.knocked = true
				e.Early++
			}
			if refused && retry > at {
				e.begin(at, retry)
			} else if !refused {
				e.told = 0
			}
			return
		}
		if !e.knocked {
			e.Obeyed++
		}
		e.told = 0
	}
	if refused && retry > at {
		e.knocked = false
		e.begin(at, retry)
	}
}

// Open reports whether an episode goes on.
func (e *Returns) Open() bool { return e.told != 0 }

func (e *Returns) begin(at, retry int64) { e.told, e.begun = retry, at }

// giveUp returns from when on the client has given up.
func (e *Returns) giveUp() int64 { return e.begun + max(patience, 10*(e.told-e.begun)) }

// Expire ends an episode whose client did not come back.
func (e *Returns) Expire(now int64) {
	if e.told == 0 || now < e.giveUp() {
		return
	}
	if !e.knocked {
		e.GaveUp++
	}
	e.told = 0
}
