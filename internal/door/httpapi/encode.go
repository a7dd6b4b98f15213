package httpapi

import (
	"context"
	"strconv"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/door/answer"
	"github.com/weir-rl/weir/rule"
)

// appendDecision appends the JSON of d, which is the body of an answer and an item of a batch's.
// margins are what handler.margins says of it.
func appendDecision(b []byte, d *weir.Decision, names []string, margins []margin) []byte {
	if d.Allowed {
		b = append(b, `{"allowed":true,"domain":`...)
	} else {
		b = append(b, `{"allowed":false,"domain":`...)
	}
	b = answer.AppendJSON(b, d.Domain)
	if d.UnknownDomain() {
		b = append(b, `,"unknown_domain":true`...)
	}
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
		if i < len(margins) && margins[i].soft > 0 {
			b = append(b[:len(b)-1], `,"used":`...)
			b = strconv.AppendInt(b, margins[i].used, 10)
			b = append(b, `,"refused":`...)
			b = append(strconv.AppendBool(b, margins[i].refused), '}')
		}
	}
	return append(b, `]}`...)
}

// margin is how a limit stands whose soft margin is in use; the zero value is of one that is not.
type margin struct {
	soft, used int64 // the capacity with the margin; the units of it used
	refused    bool  // a request with a cost of 1 would be refused
}

// margins finds the units used in soft margins, which a peek's result does not show. It returns one
// margin for each limit, and nil if there is none: nothing is looked up for requests that are
// charged, or while there is room below a limit.
func (h *handler) margins(ctx context.Context, c *call) []margin {
	d := &c.decision
	if !c.request.Peek || len(d.Limits) != len(d.Matches.Hits) {
		return nil
	}
	var list []margin
	for i := range d.Limits {
		r := &d.Limits[i]
		if r.Remaining > 0 || r.SoftLimit <= r.Limit {
			continue
		}
		k, err := h.limiter.Keys().Met(ctx, &d.Matches.Hits[i])
		if err != nil {
			continue // the peek itself was answered
		}
		if list == nil {
			list = make([]margin, len(d.Limits))
		}
		list[i] = margin{soft: r.SoftLimit, used: k.Used, refused: !k.Next.Allowed && !k.Next.Off &&
			k.Mode != rule.Shadow}
	}
	return list
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
