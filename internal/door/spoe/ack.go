package spoe

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/internal/door/answer"
	"github.com/weir-rl/weir/internal/util/chars"
)

// variable is one of the variables that each ACK sets or unsets, in the order in which they are
// written. The last ones are left out first if a frame is too small.
type variable int

const (
	varDeny variable = iota
	varStatus
	varError
	varRetryAfter
	varSoft
	varLimit
	varRemaining
	varReset
	varLimitedBy
	varDecision
	varRateLimit
	varPolicy
	varWarning
	varContentType
	varBody
	variables
)

// Variables are the names of the variables that the agent sets for a transaction, without the
// prefix that HAProxy puts in front.
var Variables = [...]string{
	varDeny: "deny", varStatus: "status", varError: "error", varRetryAfter: "retry_after", varSoft: "soft",
	varLimit:     "limit",
	varRemaining: "remaining", varReset: "reset", varLimitedBy: "limited_by", varDecision: "decision",
	varRateLimit: "ratelimit",
	varPolicy:    "ratelimit_policy", varWarning: "warning", varContentType: "content_type", varBody: "body",
}

// The actions of an ACK, and the scope that they are for.
const (
	actionSet   = 1
	actionUnset = 2
	scopeTxn    = 2
)

// The beginnings of the actions, and how many bytes it takes to unset all variables behind one.
var (
	setters   [variables]string
	unsetters [variables]string
	unsetRest [variables]int
)

func init() {
	for v, name := range Variables {
		setters[v] = string(appendText([]byte{actionSet, 3, scopeTxn}, name))
		unsetters[v] = string(appendText([]byte{actionUnset, 2, scopeTxn}, name))
	}
	rest := 0
	for v := variables - 1; v >= 0; v-- {
		unsetRest[v] = rest
		rest += len(unsetters[v])
	}
}

// ack is an ACK that is being written. Each variable is written once, in their order: set, or
// unset, since a value from an earlier event of the same transaction must not stay.
type ack struct {
	buf   []byte
	start int // of the frame
	end   int // where it has to end
}

// begin begins an ACK of at most size bytes, at least minFrameLimit, behind b.
func (a *ack) begin(b []byte, stream, id uint64, size int) {
	a.buf, a.start, a.end = beginFrame(b, frameAck, stream, id), len(b), len(b)+4+size
}

// finish ends it, and returns the buffer.
func (a *ack) finish() []byte {
	b := endFrame(a.buf, a.start)
	a.buf = nil
	return b
}

// fits reports whether v may be set to a value of n bytes, type included, and there is still room
// to unset the others.
func (a *ack) fits(v variable, n int) bool {
	return len(a.buf)+len(setters[v])+n+unsetRest[v] <= a.end
}

func (a *ack) unset(v variable) { a.buf = append(a.buf, unsetters[v]...) }

func (a *ack) bool(v variable, truth bool) {
	b := byte(typeBool)
	if truth {
		b |= flagTrue
	}
	a.buf = append(append(a.buf, setters[v]...), b)
}

func (a *ack) number(v variable, n int64) {
	if !a.fits(v, 1+varintSize(uint64(n))) {
		a.unset(v)
		return
	}
	a.buf = appendVarint(append(append(a.buf, setters[v]...), typeInt64), uint64(n))
}

func (a *ack) text(v variable, s string) {
	if s == "" || !a.fits(v, textSize(s)) {
		a.unset(v)
		return
	}
	a.buf = appendText(append(append(a.buf, setters[v]...), typeString), s)
}

// textSize is the size of a string as typed data.
func textSize(s string) int { return 1 + varintSize(uint64(len(s))) + len(s) }

// header sets v to the value of a header.
func (a *ack) header(v variable, values []string) {
	if len(values) == 0 {
		a.unset(v)
		return
	}
	a.text(v, values[0])
}

// seconds sets v to the value of a header: as a number, if it is one.
func (a *ack) seconds(v variable, values []string) {
	if len(values) > 0 {
		if n, err := strconv.ParseInt(values[0], 10, 64); err == nil {
			a.number(v, n)
			return
		}
	}
	a.header(v, values)
}

// families are the headers that variables hold.
const families = httplimit.XDelta | httplimit.Draft11

// recorder is the answer that an HTTP door would give.
type recorder struct {
	header http.Header
	status int
	body   []byte
}

func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) WriteHeader(status int)      { r.status = status }
func (r *recorder) Write(b []byte) (int, error) { r.body = append(r.body, b...); return len(b), nil }

func (r *recorder) reset() {
	clear(r.header)
	r.status, r.body = 0, r.body[:0]
}

// passed writes the variables of a request that is let through.
func (c *call) passed() {
	a, d := &c.ack, &c.decision
	near := d.Nearest()
	a.bool(varDeny, false)
	a.unset(varStatus)
	a.unset(varError)
	a.unset(varRetryAfter)
	a.bool(varSoft, d.SoftExceeded())
	if near == nil {
		for v := varLimit; v < variables; v++ {
			if v == varWarning && d.UnknownDomain() {
				a.text(v, answer.UnknownDomain)
				continue
			}
			a.unset(v)
		}
		return
	}
	a.number(varLimit, near.Limit)
	a.number(varRemaining, near.Remaining)
	if near.ResetAfter == algo.Never {
		a.unset(varReset)
	} else {
		a.number(varReset, answer.CeilSeconds(near.ResetAfter))
	}
	a.unset(varLimitedBy)
	a.unset(varDecision)
	c.field = answer.AppendRateLimits(c.field[:0], d)
	a.text(varRateLimit, chars.View(c.field))
	c.field = answer.AppendPolicies(c.field[:0], d)
	a.text(varPolicy, chars.View(c.field))
	c.field = answer.AppendWarning(c.field[:0], d)
	a.text(varWarning, chars.View(c.field))
	a.unset(varContentType)
	a.unset(varBody)
}

// refused writes the variables of a refusal, taken from the answer of an HTTP door (c.recorder).
// problem is "" for a decision.
func (c *call) refused(problem string, limitedBy []string) {
	a, r := &c.ack, &c.recorder
	a.bool(varDeny, true)
	a.number(varStatus, int64(r.status))
	a.text(varError, problem)
	a.seconds(varRetryAfter, r.header["Retry-After"])
	a.bool(varSoft, false)
	a.seconds(varLimit, r.header["X-Ratelimit-Limit"])
	a.seconds(varRemaining, r.header["X-Ratelimit-Remaining"])
	a.seconds(varReset, r.header["X-Ratelimit-Reset"])
	c.field = c.field[:0]
	for i, name := range limitedBy {
		if i > 0 {
			c.field = append(c.field, ',')
		}
		c.field = append(c.field, name...)
	}
	a.text(varLimitedBy, chars.View(c.field))
	a.header(varDecision, r.header["X-Ratelimit-Decision"])
	a.header(varRateLimit, r.header["Ratelimit"])
	a.header(varPolicy, r.header["Ratelimit-Policy"])
	a.header(varWarning, r.header["X-Ratelimit-Warning"])
	contentType := ""
	if values := r.header["Content-Type"]; len(values) > 0 {
		contentType = values[0]
	}
	body := strings.TrimSuffix(chars.View(r.body), "\n") // HAProxy 2.6 would write %0A
	if body == "" || !a.fits(varContentType, textSize(contentType)+len(setters[varBody])+textSize(body)) {
		contentType, body = "", "" // neither without the other
	}
	a.text(varContentType, contentType)
	a.text(varBody, body)
}

// undecided writes the variables of a request that could not be decided: not even deny is set, so
// that HAProxy's configuration decides.
func (c *call) undecided(problem string) {
	a := &c.ack
	a.unset(varDeny)
	a.unset(varStatus)
	a.text(varError, problem)
	for v := varError + 1; v < variables; v++ {
		a.unset(v)
	}
}
