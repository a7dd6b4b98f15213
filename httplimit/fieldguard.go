package httplimit

import (
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir/httplimit/internal/spelling"
	"github.com/weir-rl/weir/internal/door"
	"github.com/weir-rl/weir/internal/door/answer"
	"github.com/weir-rl/weir/internal/util/httpfield"
	"github.com/weir-rl/weir/internal/util/sparselog"
	"github.com/weir-rl/weir/rule"
)

// RepeatedFields says how to treat requests in which a single-valued field comes twice, where a
// rule in force or an Identity reads it: a field of the header, or a parameter of the query.
// Servers differ in which of the values they act by, and may act by another one than the rules.
type RepeatedFields uint8

const (
	RefuseRepeatedFields RepeatedFields = iota // the request is answered 400
	// the lines of a field are joined by commas, and the first value of a parameter and of a cookie
	// counts
	KeepRepeatedFields
)

// LookalikeFields decides over fields whose names are not those that a rule in force or an Identity
// reads, but that servers may take for them: X_Api_Key is HTTP_X_API_KEY to a program behind CGI or
// WSGI, as X-Api-Key is.
type LookalikeFields uint8

const (
	RefuseLookalikeFields LookalikeFields = iota // the request is answered 400
	// such a field of the header is taken out of the request; a request with such a parameter of
	// the query is answered 400
	DropLookalikeFields
	KeepLookalikeFields // they are fields as any other
)

// FieldGuard refuses requests with fields that servers read in different ways, counts them, and
// logs them once in a minute. The zero value refuses all of them. It must not be changed once it is
// in use; several doors may share one. Safe for concurrent use.
//
// What cannot be read is refused whatever is set: Basic and bearer credentials that an Identity
// reads, if servers may take them for a user and they are not written as RFC 7617 and RFC 6750 have
// it (401, or 400 where header:Authorization reads them), values of cookies that hold what RFC 6265
// does not allow (400), signatures of AWS that name no access key or two where apikey reads them
// (400), values of fields with blanks around them that are none of HTTP's (400), and
// signed tokens in a field, a cookie or a parameter that are not written as an encoder writes them
// (400; see httpfield.CutSigned).
type FieldGuard struct {
	Repeated   RepeatedFields
	Lookalikes LookalikeFields
	Logger     *slog.Logger // nil means slog.Default()

	counts [fieldReasons]atomic.Uint64
	lines  [fieldReasons]sparselog.Line
}

// FieldStats counts the requests that a FieldGuard refused or changed, by reason.
type FieldStats struct {
	Repeated   uint64 // refused for a field that came twice
	Lookalike  uint64 // refused for a field with a name like one that is read
	Dropped    uint64 // lost such a field
	Cookies    uint64 // refused for more values of a cookie or an API key than are charged
	Unreadable uint64 // refused for credentials or cookies that cannot be read
	// Several are no refusals: a cookie or an API key came with different values, and the request
	// was charged under each.
	Several uint64
}

// Stats returns a reading.
func (g *FieldGuard) Stats() FieldStats {
	n := func(r fieldReason) uint64 { return g.counts[r].Load() }
	return FieldStats{n(repeated), n(lookalike), n(dropped), n(cookies), n(unreadable), n(several)}
}

type fieldReason uint8

const (
	repeated fieldReason = iota
	lookalike
	dropped
	cookies
	unreadable
	several
	fieldReasons
)

// FieldProblem is why a request is refused for its fields.
type FieldProblem struct {
	Status    int    // of the answer
	Detail    string // for people
	Challenge string // the WWW-Authenticate field of a 401
}

// Answer answers a request that has the problem.
func (p *FieldProblem) Answer(w http.ResponseWriter) {
	if p.Challenge != "" {
		w.Header().Set("Www-Authenticate", p.Challenge)
	}
	answer.ProblemDetails(w, p.Status, "", "", p.Detail, nil)
}

// Check looks at the fields of a request, which a must have been Reset to, by which rules decide
// (see weir.Limiter.Fields) or which the Identity reads. ok is false if the request is to be
// refused. It may take fields out of the request.
func (g *FieldGuard) Check(a *Attributes, f *rule.Fields) (p FieldProblem, ok bool) {
	if f == nil && (a.identity == nil || !a.identity.reads.any()) && !a.elsewhere {
		return p, true
	}
	if f == nil {
		f = &noFields
	}
	return g.check(a, f)
}

// CheckField is Check for one field of the header that rules read, for a door that gets each by
// itself: how many lines there are, and a value.
func (g *FieldGuard) CheckField(f *httpfield.HeaderField, lines int, value string) (p FieldProblem, ok bool) {
	if lines > 1 && g.Repeated == RefuseRepeatedFields {
		return g.repeatedField(f.Canonical, lines), false
	}
	return g.checkValue(f, value, readsWhole)
}

// checkValue looks at the value of a field that is read.
func (g *FieldGuard) checkValue(f *httpfield.HeaderField, value string, reads authReads) (FieldProblem, bool) {
	if spelling.IsPadded(value) {
		return g.paddedField(f.Canonical), false
	}
	if f.Canonical == "Authorization" || f.Canonical == "Proxy-Authorization" {
		if scheme := reads.misspelled(value); scheme != "" {
			return g.unreadable(f.Canonical, scheme, reads), false
		}
	}
	if !httpfield.WellFormed(f.Name, value) {
		return g.unreadableToken("field " + f.Canonical), false
	}
	return FieldProblem{}, true
}

var noFields rule.Fields

// fieldReads are the fields that an Identity reads.
type fieldReads struct {
	headers       []httpfield.HeaderField // those that have one value
	authorization authReads
	cookies       bool
	query         *rule.Fields // the parameters of the query that apikey reads; else nil
}

func (r *fieldReads) any() bool { return len(r.headers) > 0 || r.cookies }

var noReads fieldReads

func (g *FieldGuard) check(a *Attributes, f *rule.Fields) (FieldProblem, bool) {
	reads := &noReads
	if a.identity != nil {
		reads = &a.identity.reads
	}
	auth := reads.authorization
	if hasField(f.Headers, "authorization") {
		auth |= readsWhole
	}
	if len(f.Headers) > 0 || len(reads.headers) > 0 || f.AllHeaders || a.elsewhere {
		if p, ok := g.checkHeader(a, f, reads, auth); !ok {
			return p, false
		}
	}
	if p, ok := g.CheckQuery(a, f); !ok {
		return p, false
	}
	if reads.query != nil {
		if p, ok := g.CheckQuery(a, reads.query); !ok {
			return p, false
		}
	}
	if lines := a.r.Header["Cookie"]; reads.query != nil || reads.cookies && len(lines) > 0 {
		if p, ok := g.checkReadings(a, lines); !ok {
			return p, false
		}
	}
	if f.Paths {
		a.also = door.ReadParameters(a, a.Path(), a.also)
	}
	return FieldProblem{}, true
}

// checkHeader looks for fields of the header that come twice, or under another name, and for values
// that cannot be read. auth are the parts of the Authorization field that are read.
func (g *FieldGuard) checkHeader(a *Attributes, f *rule.Fields, reads *fieldReads,
	auth authReads) (FieldProblem, bool) {
	h := a.r.Header
	alike, odd := a.elsewhere, false // whether other names may be taken for one that is read
	var read lengths
	for _, list := range [...][]httpfield.HeaderField{f.Headers, reads.headers} {
		for i := range list {
			field := &list[i]
			if field.Dashed {
				alike, odd = true, odd || field.Odd
				read.add(field.Name)
			}
			switch lines := h[field.Canonical]; {
			case len(lines) > 1 && g.Repeated == RefuseRepeatedFields:
				return g.repeatedField(field.Canonical, len(lines)), false
			case len(lines) == 1:
				credentials := readsWhole
				if field.Canonical == "Authorization" {
					credentials = auth
				}
				if p, ok := g.checkValue(field, lines[0], credentials); !ok {
					return p, false
				}
			}
		}
	}
	read.add(a.clientIP.Header)
	if g.Lookalikes != KeepLookalikeFields && (odd || alike && hasOddName(h, read)) {
		if p, ok := g.checkNames(a, f, reads); !ok {
			return p, false
		}
	}
	if len(a.r.Trailer) > 0 {
		if p, ok := g.checkTrailer(a, f, reads); !ok {
			return p, false
		}
	}
	if f.AllHeaders && g.Repeated == RefuseRepeatedFields {
		for name, lines := range h {
			if len(lines) > 1 && !httpfield.ListField(strings.ToLower(name)) {
				return g.repeatedField(name, len(lines)), false
			}
		}
	}
	return FieldProblem{}, true
}

// isRead reports whether rules or the Identity read a field by this very name.
func isRead(name string, f *rule.Fields, reads *fieldReads) bool {
	name = strings.ToLower(name)
	return hasField(f.Headers, name) || hasField(reads.headers, name)
}

func hasField(list []httpfield.HeaderField, name string) bool {
	for i := range list {
		if list[i].Name == name {
			return true
		}
	}
	return false
}

func (g *FieldGuard) paddedField(name string) FieldProblem {
	return g.refuse(unreadable, name,
		"The value of the field "+name+" begins or ends with a blank of another kind than HTTP has, which some servers take off.", "")
}

func (g *FieldGuard) repeatedField(name string, lines int) FieldProblem {
	return g.refuse(repeated, name, "The request has the field "+name+" "+strconv.Itoa(lines)+" times."+whyRepeated,
		"fields.repeated")
}

const (
	whyRepeated  = " Servers act by different ones, so a rate limit might count by another than the server behind it acts by. Send it once."
	whyLookalike = " A rate limit counts by the latter alone. Send that."
	whyForged    = " That one only a proxy may set."
)

// unreadable refuses credentials that cannot be read.
func (g *FieldGuard) unreadable(name, scheme string, reads authReads) FieldProblem {
	p := g.refuse(unreadable, scheme,
		"The "+name+" field holds "+scheme+" credentials that are not written as they should be, so that servers read them in different ways.", "")
	if reads&readsBasic != 0 && scheme == "Basic" || reads&readsBearer != 0 && scheme == "Bearer" {
		p.Status, p.Challenge = http.StatusUnauthorized, `Bearer error="invalid_token"`
		if scheme == "Basic" {
			p.Challenge = `Basic realm="limited"`
		}
	}
	return p
}

// unreadableToken refuses a signed token that servers read in different ways.
func (g *FieldGuard) unreadableToken(where string) FieldProblem {
	return g.refuse(unreadable, where,
		"The "+where+" holds a signed token that is not written as an encoder writes it. Some servers take no notice of that, and a rate limit might count one client as many.", "")
}

// maxReadings is up to how many readings of one request are charged.
const maxReadings = 4

// checkReadings reads the cookies and the API keys of the Identity. If one of them has several
// values, the request has several readings.
func (g *FieldGuard) checkReadings(a *Attributes, lines []string) (FieldProblem, bool) {
	id := a.identity
	readings := 1
	var all [][]string // by index of the source; nil while each has one value
	var room [maxReadings + 1]string
	for i := range id.sources {
		s := &id.sources[i]
		var values []string
		switch s.kind {
		case fromCookie:
			c := &spelling.Cookie{Name: s.arg, Folded: s.folded}
			var ok bool
			if values, ok = c.Values(lines, maxReadings, room[:0]); !ok {
				return g.refuse(unreadable, c.Name,
					"The cookie "+c.Name+" cannot be read: servers read such a value, or such a field, in different ways.", ""), false
			}
		case fromAPIKey:
			if values = apiKeys(a.r, a.query, room[:0]); len(values) == 1 {
				continue // it is hashed when somebody asks for it
			}
		default:
			continue
		}
		v := &a.known[i]
		v.asked = true
		if len(values) == 0 {
			continue
		}
		if v.value, v.ok = values[0], true; s.inScratch() {
			v.value, a.scratch = hashed(values[0], a.scratch)
		}
		// A client that names several keys has not repeated one field.
		if len(values) == 1 || g.Repeated == KeepRepeatedFields && s.kind == fromCookie {
			continue
		}
		if s.inScratch() {
			hashAll(values)
		}
		if readings *= len(values); readings > maxReadings {
			what := "API key"
			if s.kind == fromCookie {
				what = "cookie " + s.arg
			}
			return g.refuse(cookies, what,
				"The "+what+" comes with more values than are looked at: "+strconv.Itoa(maxReadings)+" in all, of all cookies and API keys that tell who somebody is. Servers take different ones of them.", "fields.repeated"), false
		}
		if all == nil {
			all = make([][]string, len(id.sources))
		}
		all[i] = slices.Clone(values)
	}
	if all != nil {
		g.note(several, "")
		a.readAlso(all, readings)
	}
	return FieldProblem{}, true
}

// readAlso makes the readings of a request beside a itself: a cookie or an API key has one of its
// values in each.
func (a *Attributes) readAlso(values [][]string, readings int) {
	for n := 1; n < readings; n++ {
		b := *a
		b.known, b.also, b.scratch = slices.Clone(a.known), nil, nil
		for i, rest := 0, n; i < len(values); i++ {
			if k := len(values[i]); k > 1 {
				b.known[i].value = values[i][rest%k]
				rest /= k
			}
		}
		a.also = append(a.also, &b)
	}
}

// Also returns the readings of the request beside a itself, for weir.Request.Also, once
// FieldGuard.Check has looked at it; nil for nearly all requests.
func (a *Attributes) Also() []rule.Attributes { return a.also }

// refuse counts a request that is refused. setting is what lets it pass, by its name; "" for
// nothing.
func (g *FieldGuard) refuse(why fieldReason, name, detail, setting string) FieldProblem {
	g.note(why, name)
	if setting != "" {
		detail += " The setting " + setting + " decides over such requests."
	}
	return FieldProblem{Status: http.StatusBadRequest, Detail: detail}
}

var fieldReasonTexts = [fieldReasons]string{
	repeated:   "requests are refused that have twice what has one value (fields.repeated)",
	lookalike:  "requests are refused for a field with a name that servers take for one that is read (fields.lookalikes)",
	dropped:    "fields are taken out of requests whose names servers take for one that is read (fields.lookalikes)",
	cookies:    "requests are refused since a cookie or an API key came with too many values (fields.repeated)",
	unreadable: "requests are refused since servers read their credentials or cookies in different ways",
	several:    "requests are charged under each value of a cookie or an API key that came with several",
}

// note counts a request, and logs such requests once in a minute.
func (g *FieldGuard) note(why fieldReason, name string) {
	g.counts[why].Add(1)
	n := g.lines[why].Due(time.Minute)
	if n == 0 {
		return
	}
	log := g.Logger
	if log == nil {
		log = slog.Default()
	}
	log.Warn(fieldReasonTexts[why], "latest", sparselog.Excerpt(answer.Printable(name)), "requests", n)
}
