package page

import (
	"html/template"
	"math"
	"strconv"
	"strings"
)

// functions format figures as parts/text.js does, so that nothing changes before the reader's eyes
// when the script takes over.
var functions = template.FuncMap{"count": count, "share": share, "seconds": seconds, "rate": rate}

// count formats a number with thousands separators: 2,410,000.
func count(n uint64) string {
	s := strconv.FormatUint(n, 10)
	var b strings.Builder
	for i, c := range s {
		if i > 0 && (len(s)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(c)
	}
	return b.String()
}

// share formats part of all in percent: with one decimal and, below 0.1 %, with two significant
// digits.
func share(part, all uint64) string {
	if part == 0 || all == 0 {
		return "0 %"
	}
	p := float64(part) / float64(all) * 100
	switch {
	case p >= 99.95 && part < all:
		return "99.9 %"
	case p >= 0.1:
		return strings.TrimSuffix(strconv.FormatFloat(p, 'f', 1, 64), ".0") + " %"
	}
	return significant(p, 2) + " %"
}

// significant formats x with at most n significant digits, and without an exponent.
func significant(x float64, n int) string {
	if x == 0 {
		return "0"
	}
	decimals := max(0, n-1-int(math.Floor(math.Log10(math.Abs(x)))))
	s := strconv.FormatFloat(x, 'f', decimals, 64)
	if strings.Contains(s, ".") {
		s = strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
	}
	return s
}

// seconds formats a short time.
func seconds(s float64) string {
	switch {
	case s <= 0:
		return "–"
	case s < 1e-3:
		return significant(s*1e6, 3) + " µs"
	case s < 1:
		return significant(s*1e3, 3) + " ms"
	}
	return significant(s, 3) + " s"
}

// rate formats a number of requests a second.
func rate(perSecond float64) string {
	if perSecond >= 100 {
		return count(uint64(math.Round(perSecond)))
	}
	return significant(perSecond, 2)
}
