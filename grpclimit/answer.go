package grpclimit

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/door/answer"
)

// header is the metadata of the answer to a call that passed; nil for none.
func (g *Gate) header(c *call) metadata.MD {
	nearest := c.decision.Nearest()
	switch {
	case g.o.NoHeaders:
		return nil
	case nearest == nil && c.decision.UnknownDomain():
		return metadata.MD{"ratelimit-warning": {answer.UnknownDomain}}
	case nearest == nil:
		return nil
	}
	return headers(&c.decision, nearest)
}

// headers is the metadata of an answer.
func headers(d *weir.Decision, nearest *weir.LimitResult) metadata.MD {
	md := metadata.MD{
		"ratelimit-limit":     {strconv.FormatInt(nearest.Limit, 10)},
		"ratelimit-remaining": {strconv.FormatInt(nearest.Remaining, 10)},
		"ratelimit-reset":     {strconv.FormatInt(answer.CeilSeconds(nearest.ResetAfter), 10)},
	}
	if d.SoftExceeded() {
		md["ratelimit-soft"] = []string{"exceeded"}
	}
	if warning := warning(d); warning != "" {
		md["ratelimit-warning"] = []string{warning}
	}
	if !d.Allowed && d.RetryAfter != algo.Never {
		md["retry-after"] = []string{strconv.FormatInt(max(1, answer.CeilSeconds(d.RetryAfter)), 10)}
	}
	return md
}

// warning is unknown_domain, or names the limits that are near to refusing: `near_limit;
// limit="name"` each; "" if there is nothing to warn of.
func warning(d *weir.Decision) string {
	if d.UnknownDomain() {
		return answer.UnknownDomain
	}
	var list []string
	for i := range d.Limits {
		if l := &d.Limits[i]; d.Warns(l) {
			// metadata is ASCII
			list = append(list, "near_limit; limit="+strconv.QuoteToASCII(l.Window.Name))
		}
	}
	return strings.Join(list, ", ")
}

const pushBackKey = "grpc-retry-pushback-ms"

// trailer is the metadata of a call that ends with an error of ours; nil for none. A client retries
// only calls that are answered by a trailer alone (gRFC A6). The trailer says when to retry: after
// a refusal when the limit admits it, or never; after other errors in a second.
func (g *Gate) trailer(c *call, err error) metadata.MD {
	if g.o.NoHeaders {
		return nil
	}
	d := &c.decision
	switch status.Code(err) {
	case codes.ResourceExhausted:
		md := headers(d, d.Nearest())
		after := int64(-1)
		if d.RetryAfter != algo.Never {
			after = min((d.RetryAfter+999)/1000, math.MaxInt32) // no client waits longer
		}
		md.Set(pushBackKey, strconv.FormatInt(after, 10))
		return md
	case codes.Unavailable:
		return metadata.Pairs(pushBackKey, "1000")
	}
	return nil // it hung up
}

// refusal is the error of a refused call.
func refusal(d *weir.Decision, nearest *weir.LimitResult) error {
	message := fmt.Sprintf("rate limit %q exceeded", nearest.Window.Name)
	var details []protoadapt.MessageV1
	if d.UnknownDomain() {
		message = fmt.Sprintf("no rules are there for the domain %q", d.Domain)
	} else if retry, ok := d.Retry(); !ok {
		message += "; this call can never pass it"
	} else {
		message += "; retry in " + retry.String()
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(retry)})
	}
	failure := &errdetails.QuotaFailure{}
	for i := range d.Limits {
		l := &d.Limits[i]
		if !d.Refuses(l) || d.UnknownDomain() {
			continue
		}
		description := fmt.Sprintf("at most %d at a time", l.Limit)
		if l.Window.Seconds > 0 {
			description = fmt.Sprintf("at most %d in %d s (%s)", l.Limit, l.Window.Seconds,
				l.Window.Counter.Limit.Algorithm())
		}
		failure.Violations = append(failure.Violations, &errdetails.QuotaFailure_Violation{
			Subject:     "limit:" + l.Window.Name,
			Description: description,
			QuotaId:     l.Window.Name,
			QuotaValue:  l.Limit,
		})
	}
	details = append(details, failure)
	if d.ID != 0 {
		details = append(details, &errdetails.ErrorInfo{
			Reason: "RATE_LIMITED", Domain: "github.com/weir-rl/weir",
			Metadata: map[string]string{"limit": nearest.Window.Name, "decision": d.ID.String()},
		})
	}
	s, err := status.New(codes.ResourceExhausted, message).WithDetails(details...)
	if err != nil { // a detail cannot be marshalled: the code and the message matter more
		return status.Error(codes.ResourceExhausted, message)
	}
	return s.Err()
}
