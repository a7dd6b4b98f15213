package httplimit

import (
	"net/http"

	"github.com/weir-rl/weir/internal/door"
	"github.com/weir-rl/weir/internal/door/answer"
)

// EncodedSlash decides over a request whose path holds an encoded slash (%2F), or a
// backslash as it is or encoded (%5C). Some servers take these for slashes, resolve .. behind them,
// and so read another path than the rules do: /x%2F..%2Flogin is /login to them. The table in
// docs/operating/ambiguous-requests.md shows which.
type EncodedSlash uint8

const (
	RefuseEncodedSlash EncodedSlash = iota // the request is answered 400
	// %2F and %5C are parts of a segment, such as of an object's name
	KeepEncodedSlash
)

// refuseTarget answers a request whose host or path servers read in different ways, and reports
// whether it has.
func (g *Gate) refuseTarget(w http.ResponseWriter, r *http.Request, a *Attributes) bool {
	detail := ""
	if !door.ValidHost(r.Host) {
		detail = "The host of the request is malformed."
	} else if what := door.AmbiguousPath(a.rawPath, g.o.EncodedSlash == KeepEncodedSlash); what != "" {
		detail = door.AmbiguousPathDetail(what, g.o.slashSetting())
	} else {
		return false
	}
	g.o.CORS.Allow(w.Header(), r, g.o.Headers)
	answer.ProblemDetails(w, http.StatusBadRequest, "", "", detail, nil)
	return true
}

// slashSetting names the setting that keeps encoded slashes.
func (o *Options) slashSetting() string {
	if o.Door == "proxy" {
		return door.KeepSlash
	}
	return "EncodedSlash: httplimit.KeepEncodedSlash"
}

// refuseFields answers a request with fields that servers read in different ways, and reports
// whether it has.
func (g *Gate) refuseFields(w http.ResponseWriter, r *http.Request, a *Attributes) bool {
	set, _ := g.limiter.Rules()
	p, ok := g.o.Fields.Check(a, set.Fields(g.o.Domain))
	if ok {
		return false
	}
	g.o.CORS.Allow(w.Header(), r, g.o.Headers)
	p.Answer(w)
	return true
}
