package server

import (
	"strconv"
	"time"

	weir "github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// appendDecision appends the JSON of d, which is the body of an answer and an item of a batch's.
func appendDecision(b []byte, d *weir.Decision, names []string) []byte {
	if d.Allowed {
		b = append(b, `{"allowed":true,"domain":`...)
	} else {
		b = append(b, `{"allowed":false,"domain":`...)
	}
	b = appendString(b, d.Domain)
	b = append(b, `,"limited_by":[`...)
	for i, name := range names {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, name)
	}
	b = append(b, `],"retry_after":`...)
	b = appendSeconds(b, d.RetryAfter)
	if !d.Allowed && d.ID != 0 {
		b = append(d.ID.AppendTo(append(b, `,"decision":"`...)), '"')
	}
	b = append(b, `,"limits":[`...)
	for i := range d.Limits {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendLimit(b, &d.Limits[i])
	}
	return append(b, `]}`...)
}

func appendLimit(b []byte, r *weir.LimitResult) []byte {
	b = append(b, `{"name":`...)
	b = appendString(b, r.Window.Name)
	b = append(b, `,"algorithm":"`...)
	b = append(b, r.Window.Counter.Limit.Algorithm().String()...)
	b = append(b, `","allowed":`...)
	b = strconv.AppendBool(b, r.Allowed)
	b = append(b, `,"limit":`...)
	b = strconv.AppendInt(b, r.Limit, 10)
	b = append(b, `,"window":`...)
	b = appendSeconds(b, windowOf(r.Window).Microseconds())
	b = append(b, `,"remaining":`...)
	b = strconv.AppendInt(b, r.Remaining, 10)
	b = append(b, `,"retry_after":`...)
	b = appendSeconds(b, r.RetryAfter)
	b = append(b, `,"reset_after":`...)
	b = appendSeconds(b, r.ResetAfter)
	b = append(b, `,"near_limit":`...)
	b = strconv.AppendBool(b, r.NearLimit)
	b = append(b, `,"soft_exceeded":`...)
	b = strconv.AppendBool(b, r.Soft)
	if r.SoftLimit != r.Limit {
		b = append(b, `,"soft_limit":`...)
		b = strconv.AppendInt(b, r.SoftLimit, 10)
	}
	b = append(b, `,"shadow":`...)
	b = strconv.AppendBool(b, r.Mode == rule.Shadow)
	b = append(b, `,"delay":`...)
	b = appendSeconds(b, r.Delay)
	if r.Slot != "" {
		b = append(b, `,"slot":`...)
		b = appendString(b, r.Slot)
	}
	return append(b, '}')
}

// windowOf returns W; 0 for concurrency.
func windowOf(w *rule.Window) time.Duration {
	if w.Limit != nil {
		return w.Limit.Config().Window
	}
	return w.Counter.Limit.Config().Window
}

// appendSeconds appends a time of µs as seconds, with as many digits as it takes; algo.Never is null.
func appendSeconds(b []byte, us int64) []byte {
	if us == algo.Never {
		return append(b, "null"...)
	}
	b = strconv.AppendInt(b, us/1e6, 10)
	frac := us % 1e6
	if frac == 0 {
		return b
	}
	digits := [7]byte{'.'}
	for i := 6; i > 0; i-- {
		digits[i] = byte('0' + frac%10)
		frac /= 10
	}
	end := len(digits)
	for digits[end-1] == '0' {
		end--
	}
	return append(b, digits[:end]...)
}

// appendString appends s, which is valid UTF-8, as a JSON string.
func appendString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	from := 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		b = append(b, s[from:i]...)
		from = i + 1
		if c == '"' || c == '\\' {
			b = append(b, '\\', c)
		} else {
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	b = append(b, s[from:]...)
	return append(b, '"')
}
