package httplimit

import (
	"net/http"

	"github.com/weir-rl/weir/httplimit/internal/spelling"
	"github.com/weir-rl/weir/internal/door"
	"github.com/weir-rl/weir/internal/door/answer"
	"github.com/weir-rl/weir/internal/util/httpfield"
	"github.com/weir-rl/weir/rule"
)

// Programs behind CGI, WSGI and FastCGI know a field by its name in upper case with underscores:
// most servers make an underscore of each dash, lighttpd of each character that is neither a letter
// nor a digit. So a name with another of these characters than a dash may be taken for one that is
// read. Nearly no request has such a name, and few names are even as long as one that is read.

// lengths is a set of lengths of names.
type lengths uint64

func (l *lengths) add(name string) { *l |= 1 << min(len(name), 63) }

func (l lengths) has(name string) bool { return l>>min(len(name), 63)&1 != 0 }

// hasOddName reports whether a field has a name with a character that is neither letter, digit nor
// dash, and is as long as a name that is read, or like one of X-Forwarded.
func hasOddName(h http.Header, read lengths) bool {
	for name := range h {
		if (read.has(name) || len(name) > len(forwardedPrefix) && name[0] == 'X' && isForwardedName(name)) &&
			spelling.IsOddName(name) {
			return true
		}
	}
	return false
}

// checkNames looks at the name of each field: servers may take it for one that is read, or that
// names the client.
func (g *FieldGuard) checkNames(a *Attributes, f *rule.Fields, reads *fieldReads) (FieldProblem, bool) {
	for name := range a.r.Header {
		like, why := likeRead(name, f, reads), whyLookalike
		if like == "" && a.clientIP.Lookalike(name) {
			like, why = a.clientIP.Field(), whyForged
			if len(name) != len(like) || !spelling.Alike(name, like) {
				like = http.CanonicalHeaderKey(door.Dashed(name))
			}
		}
		if like == "" {
			continue
		}
		if g.Lookalikes == DropLookalikeFields && !a.elsewhere {
			g.note(dropped, name)
			delete(a.r.Header, name)
			continue
		}
		return g.refuse(lookalike, name,
			"The request has a field "+answer.Printable(name)+", which some servers take for "+like+"."+why,
			"fields.lookalikes"), false
	}
	return FieldProblem{}, true
}

// likeRead returns the field that is read for which a server may take one of another name; "" if
// there is none, or if that is read, too.
func likeRead(name string, f *rule.Fields, reads *fieldReads) string {
	for _, list := range [...][]httpfield.HeaderField{f.Headers, reads.headers} {
		for i := range list {
			field := &list[i]
			if field.Dashed && len(name) == len(field.Name) && name != field.Canonical &&
				spelling.Alike(name, field.Name) &&
				!isRead(name, f, reads) {
				return field.Canonical
			}
		}
	}
	return ""
}

// checkTrailer looks at the trailers that a request announces: some servers put them among the
// fields of the header, behind what rules have read there.
func (g *FieldGuard) checkTrailer(a *Attributes, f *rule.Fields, reads *fieldReads) (FieldProblem, bool) {
	if g.Repeated == KeepRepeatedFields {
		return FieldProblem{}, true
	}
	for name := range a.r.Trailer {
		if like := likeRead(name, f, reads); like != "" || isRead(name, f, reads) {
			return g.refuse(repeated, name,
				"The request announces a trailer "+answer.Printable(name)+", which some servers take for a field of its header."+whyRepeated, "fields.repeated"), false
		}
	}
	return FieldProblem{}, true
}

const forwardedPrefix = "x-forwarded-"

// Lookalike reports whether a server may take a field of this name for the one in which the client
// is named, or for one of X-Forwarded, and the name is not quite that: X_Forwarded_For, or
// CF_Connecting_IP. No proxy sets such a field.
func (c ClientIP) Lookalike(name string) bool {
	if isForwardedName(name) || len(name) == len(c.Header) && spelling.Alike(name, c.Header) {
		return spelling.IsOddName(name) && name != c.Field()
	}
	return false
}

func isForwardedName(name string) bool {
	return len(name) > len(forwardedPrefix) && spelling.Alike(name[:len(forwardedPrefix)], forwardedPrefix)
}

// Forwarding reports whether a field says where a request came from, as proxies set it: the field
// in which the client is named, Forwarded, one of X-Forwarded, or a name that servers may take for
// one of them. The name is a canonical one.
func (c ClientIP) Forwarding(name string) bool {
	return name == headerForwarded || isForwardedName(name) || name == c.Field() || c.Lookalike(name)
}

// DropsForged reports whether a door that passes requests on is to leave out a field, since servers
// may take it for one that only proxies set (see ClientIP.Lookalike) or for one of own, which the
// door sets itself. Such a field is counted and logged.
func (g *FieldGuard) DropsForged(c ClientIP, name string, own ...string) bool {
	if forged := c.Lookalike(name) || likeOwn(name, own); !forged || g.Lookalikes == KeepLookalikeFields {
		return false
	}
	g.note(dropped, name)
	return true
}

func likeOwn(name string, own []string) bool {
	for _, each := range own {
		if len(name) == len(each) && spelling.Alike(name, each) && spelling.IsOddName(name) {
			return true
		}
	}
	return false
}
