package rule

import (
	"errors"
	"fmt"
	"strings"

	"github.com/weir-rl/weir/algo"
)

// Allowance is one entry of `allow`: a rate, and a burst if the entry is a mapping of the two.
type Allowance struct {
	Rate Rate
	// Burst is as in algo.Config: 0 if the entry names none, algo.NoBurst if it names 0.
	Burst int64
}

// String returns a in the notation that ParseAllow reads; parsing it gives a back.
func (a Allowance) String() string {
	if a.Burst == 0 {
		return a.Rate.String()
	}
	return fmt.Sprintf("{rate: %s, burst: %d}", a.Rate, max(a.Burst, 0))
}

// maxAllow is the most bytes that ParseAllow reads.
const maxAllow = 1024

const allowExpected = "expected a rate such as 1000/min, {rate: 4/min, burst: 20}, or a list of these"

// ParseAllow parses `allow` as it stands in a rule file, on one line: a rate (see ParseRate), a
// mapping {rate: …, burst: …}, or a list of these, with or without [ ] around it. A scalar may
// stand in quotes. It returns at least one entry, or an error that describes the fault.
func ParseAllow(text string) ([]Allowance, error) {
	if len(text) > maxAllow {
		return nil, errors.New("it is too long; " + allowExpected)
	}
	rest := strings.TrimSpace(text)
	if inner, ok := strings.CutPrefix(rest, "["); ok {
		if rest, ok = strings.CutSuffix(inner, "]"); !ok {
			return nil, errors.New("a ] is missing; " + allowExpected)
		}
	}
	var list []Allowance
	for {
		rest = strings.TrimSpace(rest)
		var item string
		if strings.HasPrefix(rest, "{") {
			end := strings.IndexByte(rest, '}')
			if end < 0 {
				return nil, errors.New("a } is missing; " + allowExpected)
			}
			item, rest = rest[:end+1], strings.TrimSpace(rest[end+1:])
			if rest != "" && rest[0] != ',' {
				return nil, fmt.Errorf("%q stands where a comma should; %s", rest, allowExpected)
			}
		} else {
			end := strings.IndexByte(rest, ',')
			if end < 0 {
				end = len(rest)
			}
			item, rest = rest[:end], rest[end:]
		}
		a, err := parseAllowance(item)
		if err != nil {
			return nil, err
		}
		list = append(list, a)
		if rest == "" {
			return list, nil
		}
		rest = rest[1:]
	}
}

// parseAllowance parses one entry.
func parseAllowance(text string) (a Allowance, err error) {
	inner, mapping := strings.CutPrefix(text, "{")
	if !mapping {
		a.Rate, err = ParseRate(unquote(text))
		return a, err
	}
	seen := map[string]bool{}
	for part := range strings.SplitSeq(strings.TrimSuffix(inner, "}"), ",") {
		name, value, ok := strings.Cut(part, ":")
		name, value = strings.TrimSpace(name), unquote(value)
		if !ok || seen[name] {
			return a, fmt.Errorf("%s: expected rate and burst, once each, as in {rate: 4/min, burst: 20}", text)
		}
		seen[name] = true
		switch name {
		case "rate":
			if a.Rate, err = ParseRate(value); err == nil && a.Rate.Unlimited {
				err = fmt.Errorf("%s: unlimited has no burst; write it alone", text)
			}
		case "burst":
			var burst Rate
			if burst, err = ParseRate(value); err != nil || burst.Window != 0 || burst.Unlimited || burst.Concurrent {
				err = fmt.Errorf("%s: burst: expected a number of requests", text)
			}
			if a.Burst = burst.N; a.Burst == 0 {
				a.Burst = algo.NoBurst
			}
		default:
			err = fmt.Errorf("%s: unknown key %q; there are rate and burst", text, name)
		}
		if err != nil {
			return a, err
		}
	}
	if !seen["rate"] {
		return a, fmt.Errorf("%s: rate is missing", text)
	}
	return a, nil
}

// unquote takes space and quotes off a scalar.
func unquote(text string) string {
	text = strings.TrimSpace(text)
	if n := len(text); n >= 2 && (text[0] == '"' || text[0] == '\'') && text[n-1] == text[0] {
		return text[1 : n-1]
	}
	return text
}
