package judge

import (
	"math"
	"slices"
	"time"

	"github.com/weir-rl/weir/internal/util/human"
)

// A proposal to change a rule is made only once it is steady: for an hour in which requests met the
// rule, the limit that would do lay on one of two neighbouring round numbers. The proposal is the
// larger of the two. It then stays for as long as what would do is no further from it than one
// round number.

const (
	steadyFor = int64(time.Hour / time.Second)
	// longestLook bounds the time between two judgements that counts: of more nothing is known.
	longestLook = int64(10 * time.Minute / time.Second)
)

// Memory is what is remembered of a rule from one judgement to the next. The zero value remembers
// nothing. Times are in seconds.
type Memory struct {
	At         int64       `json:"at"`  // when it was judged: Facts.To
	Met        uint64      `json:"met"` // Facts.Met
	Candidates []Candidate `json:"candidates,omitempty"`
}

// Candidate is what would be proposed with a verdict, and how steady that is.
type Candidate struct {
	Verdict string `json:"verdict"`
	At      int64  `json:"at"`  // of the last judgement in which it came up
	For     int64  `json:"for"` // that it has been steady, while requests came
	// Low and High are its smallest and largest limits in this time, as round numbers. Once it is
	// steady, High is proposed.
	Low  []int64 `json:"low,omitempty"`
	High []int64 `json:"high,omitempty"`
	Text string  `json:"text,omitempty"` // of one that is no number
}

// steadied notes what would be proposed with a verdict now: limits for some of the windows, or a
// text. It reports whether that is steady, and which limits to propose then. A limit of 0 stands
// for the one in force.
func (j *judge) steadied(verdict string, limits []int64, text string) (propose []int64, steady bool) {
	if j.Replay {
		return limits, true // a log is over, and nothing moves any more
	}
	now := make([]int64, len(limits))
	for i, n := range limits {
		if now[i] = n; n == 0 {
			now[i] = notchUp(float64(j.Windows[i].Limit))
		}
	}
	c := Candidate{Verdict: verdict, Low: now, High: now, Text: text}
	at := slices.IndexFunc(j.before.Candidates, func(c Candidate) bool { return c.Verdict == verdict })
	if at >= 0 && j.before.Candidates[at].takes(now, text) {
		c = j.before.Candidates[at]
		if c.For < steadyFor {
			c.Low, c.High = slices.Clone(c.Low), slices.Clone(c.High)
			for i, n := range now {
				c.Low[i], c.High[i] = min(c.Low[i], n), max(c.High[i], n)
			}
		}
		// It counts from one judgement to the next if it came up in both, and requests came. Met
		// falls when the time that is judged begins later.
		if c.At == j.before.At && j.Met > j.before.Met {
			c.For += min(max(j.after.At-c.At, 0), longestLook)
		}
	}
	c.At = j.after.At
	j.after.Candidates = append(j.after.Candidates, c)
	if c.For < steadyFor {
		return nil, false
	}
	propose = slices.Clone(c.High)
	for i := range propose {
		if limits[i] == 0 && propose[i] == now[i] {
			propose[i] = 0
		}
	}
	return propose, true
}

// takes reports whether a candidate goes on as it is if this would be proposed now.
func (c *Candidate) takes(now []int64, text string) bool {
	if text != c.Text || len(now) != len(c.Low) || len(now) != len(c.High) {
		return false
	}
	for i, n := range now {
		low, high := min(c.Low[i], n), max(c.High[i], n)
		if c.For >= steadyFor { // High is what stays
			low, high = min(c.High[i], n), max(c.High[i], n)
		}
		if notch(float64(high))-notch(float64(low)) > 1 {
			return false
		}
	}
	return true
}

// keepAbsent keeps the candidates that did not come up now, but not long ago: a verdict at its
// bound comes and goes.
func (j *judge) keepAbsent() {
	for _, c := range j.before.Candidates {
		came := slices.ContainsFunc(j.after.Candidates, func(now Candidate) bool { return now.Verdict == c.Verdict })
		if !came && j.after.At-c.At < steadyFor {
			j.after.Candidates = append(j.after.Candidates, c)
		}
	}
}

// notYet says that what would be proposed with a verdict is not steady yet, and for how long it has
// been.
func (j *judge) notYet(verdict string) string {
	text := " A change is proposed once the same one has held for an hour of requests"
	for _, c := range j.after.Candidates {
		if c.Verdict == verdict && c.For >= 60 {
			text += "; so far it has for " + human.Count(c.For/60, "minute")
		}
	}
	return text + "."
}

// notches are the round numbers, smallest first: each is at most a third above the one before, from
// 3 on.
var notches = func() (list []int64) {
	list = []int64{1, 2, 3, 4, 5, 6, 8}
	for scale := int64(1); scale <= 1e16; scale *= 10 {
		for _, n := range [...]int64{10, 12, 15, 20, 25, 30, 40, 50, 60, 80} {
			list = append(list, n*scale)
		}
	}
	return list
}()

// notch returns the place in notches of the smallest round number that is n or more.
func notch(n float64) int {
	at, _ := slices.BinarySearch(notches, int64(math.Ceil(min(n, 8e17)-1e-9)))
	return min(at, len(notches)-1)
}

// notchUp returns the smallest round number that is n or more, notchDown the largest one that is n
// or less, 1 at least.
func notchUp(n float64) int64 { return notches[notch(n)] }

func notchDown(n float64) int64 {
	at := notch(n)
	if at > 0 && float64(notches[at]) > n+1e-9 {
		at--
	}
	return notches[at]
}
