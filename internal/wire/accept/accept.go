// Package accept reads the media types and the encoding that a client accepts (RFC 9110, 12.5), and
// how long it waits for its answer.
package accept

import (
	"net/http"
	"strings"
)

// Gzip reports whether the client takes gzip (RFC 9110, 12.5.3). All browsers say so in these
// words; other clients get plain answers.
func Gzip(r *http.Request) bool {
	for coding := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		name, q, _ := strings.Cut(coding, ";")
		if strings.TrimSpace(name) == "gzip" && strings.ReplaceAll(q, " ", "") != "q=0" {
			return true
		}
	}
	return false
}

// longestAccept is how much of an Accept header is looked at, in bytes.
const longestAccept = 4096

// Preferred returns the index of the media type that a client prefers by its Accept header (RFC
// 9110, 12.5.1): the one of the highest quality, then the one that the header names most precisely,
// then the first. It is 0 if the client accepts none of them.
func Preferred(accept string, types ...string) int {
	if accept == "" || accept == "*/*" {
		return 0 // nearly all programs
	}
	best, bestQuality, bestDetail := 0, 0, 0
	for i, t := range types {
		if q, detail := Quality(accept, t); q > bestQuality || q == bestQuality && q > 0 && detail > bestDetail {
			best, bestQuality, bestDetail = i, q, detail
		}
	}
	return best
}

// Quality returns the quality of a media type in thousandths, and how precisely the header names
// it: 3 by its name, 2 by its first part, 1 by */*, 0 not at all. Of the ranges that match, the
// most precise one holds. An empty header accepts everything.
func Quality(accept, mediaType string) (q, detail int) {
	if len(accept) > longestAccept {
		accept = accept[:longestAccept]
	}
	if strings.TrimSpace(accept) == "" {
		return 1000, 0
	}
	for part := range strings.SplitSeq(accept, ",") {
		name, parameters, _ := strings.Cut(part, ";")
		d := matches(strings.TrimSpace(name), mediaType)
		if d == 0 || d < detail {
			continue
		}
		weight := 1000
		for p := range strings.SplitSeq(parameters, ";") {
			if k, v, ok := strings.Cut(strings.TrimSpace(p), "="); ok && strings.EqualFold(strings.TrimSpace(k), "q") {
				weight = qvalue(strings.TrimSpace(v))
			}
		}
		if d > detail || weight > q {
			q, detail = weight, d
		}
	}
	return q, detail
}

// matches returns how precisely a media range names a type, as Quality does.
func matches(name, mediaType string) int {
	switch {
	case strings.EqualFold(name, mediaType):
		return 3
	case mediaType == "application/json" && len(name) > len("application/+json") &&
		strings.EqualFold(name[:len("application/")], "application/") &&
		strings.EqualFold(name[len(name)-len("+json"):], "+json"):
		return 3 // problem details and the like: a client that reads those reads JSON
	case name == "*/*":
		return 1
	}
	if kind, ok := strings.CutSuffix(name, "/*"); ok {
		if first, _, _ := strings.Cut(mediaType, "/"); strings.EqualFold(kind, first) {
			return 2
		}
	}
	return 0
}

// qvalue reads a weight in thousandths: 0 to 1 with up to three decimals. Anything else counts as
// 0.
func qvalue(s string) int {
	whole, decimals, _ := strings.Cut(s, ".")
	if whole != "0" && whole != "1" || len(decimals) > 3 {
		return 0
	}
	n := 0
	for i := range 3 {
		n *= 10
		if i < len(decimals) {
			if decimals[i] < '0' || decimals[i] > '9' {
				return 0
			}
			n += int(decimals[i] - '0')
		}
	}
	if whole == "1" {
		if n > 0 {
			return 0
		}
		return 1000
	}
	return n
}
