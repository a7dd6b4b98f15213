package playground

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/rule"
)

// Bounds on one run, which a browser makes in a moment.
const (
	mostRequests = 2000
	longest      = 400 * 24 * time.Hour
)

// request is one request, at its instant.
type request struct {
	at         time.Duration
	line       int
	text       string
	domain     string
	hits       int64
	attributes weir.Pairs
}

// parse reads requests, one a line:
//
//	TIME [xN] [every DURATION] ATTRIBUTE=VALUE...
//
// "5s x3 every 1s user=ada" is three requests of ada, from five seconds after the start on. A value
// with spaces stands in double quotes. domain and hits are not attributes: they are the domain and
// the cost of the request. Lines that begin with # are comments. Faults name the line.
func parse(text string) (list []request, faults []string) {
	for i, line := range strings.Split(text, "\n") {
		words, err := split(line)
		if err == nil && len(words) > 0 && len(list) <= mostRequests {
			list, err = appendLine(list, words, i+1)
		}
		if err != nil {
			faults = append(faults, fmt.Sprintf("requests:%d: %v\n    %s", i+1, err, strings.TrimSpace(line)))
		}
	}
	if len(list) > mostRequests {
		faults = append(faults, fmt.Sprintf("requests: at most %d requests are sent", mostRequests))
	}
	slices.SortStableFunc(list, func(a, b request) int { return cmp.Compare(a.at, b.at) })
	return list, faults
}

func appendLine(list []request, words []string, line int) ([]request, error) {
	at, err := duration(words[0])
	if err != nil {
		return list, fmt.Errorf("a line begins with a time, such as 0s or 1m30s: %w", err)
	}
	words = words[1:]
	times, every := 1, time.Duration(0)
	if len(words) > 0 && strings.HasPrefix(words[0], "x") && !strings.Contains(words[0], "=") {
		if times, err = strconv.Atoi(words[0][1:]); err != nil || times < 1 || times > mostRequests {
			return list, fmt.Errorf("%s is no number of requests: x1 to x%d", words[0], mostRequests)
		}
		words = words[1:]
	}
	if len(words) > 0 && words[0] == "every" {
		if len(words) == 1 {
			return list, fmt.Errorf("every needs a duration, such as every 1s")
		}
		if every, err = duration(words[1]); err != nil {
			return list, fmt.Errorf("every: %w", err)
		}
		words = words[2:]
	}
	r := request{line: line, text: strings.Join(words, " ")}
	for _, word := range words {
		if err := r.add(word); err != nil {
			return list, err
		}
	}
	if times > 1 && every > (longest-at)/time.Duration(times-1) {
		return list, fmt.Errorf("the last request comes more than %d days after the start", int(longest.Hours())/24)
	}
	for n := range times {
		if len(list) > mostRequests {
			break
		}
		r.at = at + time.Duration(n)*every
		list = append(list, r)
	}
	return list, nil
}

func (r *request) add(word string) error {
	name, value, ok := strings.Cut(word, "=")
	switch {
	case !ok:
		return fmt.Errorf("%q is no attribute: write name=value", word)
	case name == "domain":
		r.domain = value
	case name == "hits":
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil || n < 1 || n > 1<<40 {
			return fmt.Errorf("hits is a number of at least 1; got %q", value)
		}
		r.hits = n
	case !rule.ValidAttribute(name):
		return fmt.Errorf("%q is no name of an attribute", name)
	default:
		r.attributes = append(r.attributes, rule.Pair{Name: name, Value: value})
	}
	return nil
}

// duration reads a time between 0 and the longest.
func duration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err == nil && (d < 0 || d > longest) {
		err = fmt.Errorf("%q is not between 0s and %d days", text, int(longest.Hours())/24)
	}
	return d, err
}

// split cuts a line at spaces, except within double quotes; a comment has no words.
func split(line string) (words []string, err error) {
	if strings.HasPrefix(strings.TrimSpace(line), "#") {
		return nil, nil
	}
	var word strings.Builder
	quoted, any := false, false
	for _, c := range line + " " {
		switch {
		case c == '"':
			quoted, any = !quoted, true
		case !quoted && (c == ' ' || c == '\t' || c == '\r'):
			if any {
				words = append(words, word.String())
			}
			word.Reset()
			any = false
		default:
			word.WriteRune(c)
			any = true
		}
	}
	if quoted {
		return nil, fmt.Errorf("a double quote is not closed")
	}
	return words, nil
}
