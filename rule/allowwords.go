package rule

import (
	"fmt"
	"regexp"
	"strings"
	"sync"

	"github.com/weir-rl/weir/algo"
)

// allowPatterns find the parts of numbers in words.
var allowPatterns = sync.OnceValue(func() (p struct{ grouped, between, burst, rate, noise *regexp.Regexp }) {
	p.grouped = regexp.MustCompile(`\b[0-9]{1,3}(?:,[0-9]{3})+\b`) // 1,000
	p.between = regexp.MustCompile(`(?i)\s*[,;]\s*(?:and\s+)?|\s+and\s+`)
	p.burst = regexp.MustCompile(`(?i)^(.*?)(?:\s+with)?(?:\s+an?)?\s*\bburst(?:\s+of)?\s*:?\s*([0-9]+)$`)
	p.rate = regexp.MustCompile(`(?i)^(\S+)\s+(?:\S+\s+)?(?:per|an?|every)\s+(.+)$`)
	p.noise = regexp.MustCompile(`(?i)[,;]\s*by a schedule\b`)
	return p
})

// AllowNotation returns the numbers of a limit that a person wrote in the notation of ParseAllow.
// It takes that notation, which it returns as it is, and words as weir prints them: "30 per
// minute", "1,000 an hour", "10 per minute, burst 20, 500 per hour", "5 at a time". Rule files take
// the notation alone. The error describes the fault.
func AllowNotation(text string) (string, error) {
	if len(text) > maxAllow {
		_, err := ParseAllow(text)
		return "", err
	}
	p := allowPatterns()
	text = strings.TrimSpace(p.grouped.ReplaceAllStringFunc(text,
		func(n string) string { return strings.ReplaceAll(n, ",", "") }))
	_, err := ParseAllow(text)
	switch {
	case err == nil:
		return text, nil
	case text == "" || strings.Contains(text, "{"):
		return "", err
	}
	words := strings.TrimSuffix(strings.TrimPrefix(p.noise.ReplaceAllString(text, ""), "["), "]")
	var list []Allowance
	for i, item := range p.between.Split(strings.TrimSpace(words), -1) {
		var burst int64
		if m := p.burst.FindStringSubmatch(item); m != nil {
			n, err := parseCount(m[2])
			if err != nil {
				return "", fmt.Errorf("burst: %w", err)
			}
			if burst = n; n == 0 {
				burst = algo.NoBurst
			}
			if item = m[1]; item == "" { // of the entry before
				if i == 0 || list[len(list)-1].Burst != 0 {
					return "", fmt.Errorf("burst %d: expected it behind a rate, once each, as in 10/min, burst 20", n)
				}
				list[len(list)-1].Burst = burst
				continue
			}
		}
		rate, err := typedRate(unquote(item))
		if err != nil {
			return "", err
		}
		list = append(list, Allowance{Rate: rate, Burst: burst})
	}
	for _, a := range list {
		if a.Burst != 0 && (a.Rate.Window == 0 || a.Rate.Unlimited) {
			return "", fmt.Errorf("%s has no burst: a burst is for a rate, as in 10/min, burst 20", a.Rate)
		}
	}
	text = AllowText(list)
	if _, err := ParseAllow(text); err != nil { // too long
		return "", err
	}
	return text, nil
}

// typedRate parses a rate, also in words. The error names the number or the unit if one of them is
// wrong.
func typedRate(text string) (Rate, error) {
	r, err := parseRate(text)
	if err == nil {
		return r, nil
	}
	if meant := rateInWords(text); meant != "" {
		return parseRate(meant)
	}
	if m := allowPatterns().rate.FindStringSubmatch(text); m != nil {
		if _, inPart := parseRate(m[1] + "/" + strings.ToLower(m[2])); inPart != nil {
			return Rate{}, inPart
		}
	}
	return Rate{}, err
}

// AllowText returns entries in the notation that ParseAllow reads.
func AllowText(list []Allowance) string {
	if len(list) == 1 {
		return list[0].String()
	}
	texts := make([]string, len(list))
	for i, a := range list {
		texts[i] = a.String()
	}
	return "[" + strings.Join(texts, ", ") + "]"
}

// AllowanceOf returns the entry of `allow` that gives a limit its numbers. It names a burst only if
// that differs from the rate's own number, which is the default.
func AllowanceOf(c algo.Config) Allowance {
	a := Allowance{Rate: Rate{N: c.N}}
	if c.Algorithm.HasSlots() {
		a.Rate.Concurrent = true
		return a
	}
	a.Rate.Window = c.Window
	for _, u := range units {
		if u.window == c.Window {
			a.Rate.Unit = u.name
		}
	}
	if c.Algorithm.HasBurst() && c.Burst != 0 && max(0, c.Burst) != c.N {
		a.Burst = c.Burst
	}
	return a
}
