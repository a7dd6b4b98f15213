package store

import (
	"context"
	"time"

	"github.com/weir-rl/weir/algo"
)

// Lender is implemented by stores that lend units ahead: they set units of a limit aside for a
// holder, which then admits requests with these by itself, and reports their use later. See
// algo.Limit.TakeAhead, and docs/how-it-works/algorithms.md, which proves that no request is
// admitted beyond the limit. Implementations are safe for concurrent use.
//
// A limit lends if Charge.Limit has a Lease, and the Counter has one. The units lent under a key
// are then a second state of it, the record: it is kept under Counter.Lease and the same key, and
// each method of the store that reads or changes the one takes the other into account: Take and
// TakeAhead, Settle, Inspect and Scan, and Reset, which leaves units out as they are. A record, and
// the state beside it, must not be forgotten while units of it are out, whatever the store does to
// keep within its bounds.
type Lender interface {
	Store
	// TakeAhead is Take that lends. ahead[i] goes with charges[i]; the two have the same length.
	//
	// First, it takes down all reports (algo.Limit.Learn), whether the call is admitted or not.
	// Then it decides as Take does. If the call is admitted (see Verdict), each charge that was
	// admitted itself, and whose limit is in force, is lent up to Want units (algo.Limit.Lend); a
	// Shadow charge that was denied gets none, and does not keep the others from theirs. A call
	// that is denied is lent nothing at all. A charge of 0 may want units too. A limit that does
	// not lend ignores reports.
	//
	// Got, Until and Out are set for each charge, and 0 if the limit does not lend; Until is by the
	// clock of now. The results describe the limits before the lending. A store that has no room to
	// keep a record lends nothing; so does one where it is not certain that it keeps the state.
	//
	// A call is decided anew each time: no remembered refusal answers it. asked is an instant of
	// Monotonic no later than now, and as late as the store can tell: the beginning of the
	// decision, or when the question was sent over a network. So asked + (Until − now) is never
	// after the true end of the units lent.
	//
	// minWait and maxWait bound the wait without a context: a store that answers over a network
	// waits for at least minWait, may then give up when it takes the other side to be away, and
	// does so after maxWait; 0 for maxWait means that ctx alone ends the wait.
	//
	// Errors are as of Take. After ErrNotCharged nothing was taken down nor lent, and the same
	// report may be made again. After any other error that is unknown, so no report may be made
	// twice: the reported and the lent units count as used in the end. The fields of ahead that are
	// filled in are then 0.
	TakeAhead(
		ctx context.Context, minWait, maxWait time.Duration, charges []Charge, ahead []algo.Ahead,
		results []algo.Result,
	) (now, asked int64, err error)
}

// begun is where Monotonic begins.
var begun = time.Now()

// Monotonic returns how long this process has run, in ns. It never goes back, and knows nothing of
// changes of the wall clock. On most systems it stands still while the machine is suspended.
func Monotonic() int64 { return int64(time.Since(begun)) }
