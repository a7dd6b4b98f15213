package httpapi

import (
	"strconv"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/answer"
	"github.com/weir-rl/weir/rule"
)

// appendDecision appends the JSON of d, which is the body of an answer and an item of a batch's.
func appendDecision(b []byte, d *weir.Decision, names []string) []byte {
	if d.Allowed {
		b = append(b, `{"allowed":true,"domain":`...)
	} else {
		b = append(b, `{"allowed":false,"domain":`...)
	}
	b = answer.AppendJSON(b, d.Domain)
	b = append(b, `,"limited_by":[`...)
	for i, name := range names {
		if i > 0 {
			b = append(b, ',')
		}
		b = answer.AppendJSON(b, name)
	}
	b = append(b, `],"retry_after":`...)
	b = answer.AppendSeconds(b, d.RetryAfter)
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
	b = answer.AppendJSON(b, r.Window.Name)
	b = append(b, `,"algorithm":"`...)
	b = append(b, r.Window.Counter.Limit.Algorithm().String()...)
	b = append(b, `","allowed":`...)
	b = strconv.AppendBool(b, r.Allowed)
	b = append(b, `,"limit":`...)
	b = strconv.AppendInt(b, r.Limit, 10)
	b = append(b, `,"window":`...)
	b = answer.AppendSeconds(b, windowOf(r.Window).Microseconds())
	b = append(b, `,"remaining":`...)
	b = strconv.AppendInt(b, r.Remaining, 10)
	b = append(b, `,"retry_after":`...)
	b = answer.AppendSeconds(b, r.RetryAfter)
	b = append(b, `,"reset_after":`...)
	b = answer.AppendSeconds(b, r.ResetAfter)
	b = append(b, `,"near_limit":`...)
	b = strconv.AppendBool(b, r.Near)
	b = append(b, `,"soft_exceeded":`...)
	b = strconv.AppendBool(b, r.Soft)
	if r.SoftLimit != r.Limit {
		b = append(b, `,"soft_limit":`...)
		b = strconv.AppendInt(b, r.SoftLimit, 10)
	}
	b = append(b, `,"shadow":`...)
	b = strconv.AppendBool(b, r.Mode == rule.Shadow)
	b = append(b, `,"delay":`...)
	b = answer.AppendSeconds(b, r.Delay)
	if r.Slot != "" {
		b = append(b, `,"slot":`...)
		b = answer.AppendJSON(b, r.Slot)
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
