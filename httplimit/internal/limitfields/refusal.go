package limitfields

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// Refusal is an answer's verdict on the request: whether the server refused it for a limit of its
// own, and how long it asks to wait; 0 if it does not say.
type Refusal struct {
	Refused bool
	Wait    time.Duration
	Never   bool // it asks for no time, and that the request is not sent again
}

// RefusalOf reads an answer that came at now, with the hints of its header. It may put another
// body in the place of the answer's, which reads the same.
func RefusalOf(ctx context.Context, resp *http.Response, hints []Hint, now time.Time) (f Refusal) {
	h := resp.Header
	wait, asks := retryAfterOf(h, now)
	f.Wait = wait
	body := false // whether it may say more
	switch resp.StatusCode {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		f.Refused, body = true, !asks
	case http.StatusForbidden: // GitHub, which has this status for all else that it forbids, too
		none := slices.ContainsFunc(hints, func(p Hint) bool { return p.Left == 0 && p.Reset > 0 })
		is := len(h["X-Github-Request-Id"]) > 0
		f.Refused = is && (asks || none)
		body = is && !f.Refused
	case http.StatusBadRequest: // many services of AWS
		kind := h.Get("X-Amzn-Errortype")
		f.Refused = isThrottled(kind)
		body = (f.Refused || kind == "") && !asks && len(h["X-Amzn-Requestid"]) > 0
	}
	if body {
		told := readRefusal(peek(ctx, resp))
		f.Refused = f.Refused || told.Refused
		f.Wait = told.Wait
	}
	if f.Refused && f.Wait == 0 && !asks {
		f.Never = strings.EqualFold(h.Get("X-Should-Retry"), "false")
		f.Wait = usedUpUntil(hints)
		if f.Wait == 0 && resp.StatusCode == http.StatusTooManyRequests {
			f.Wait = untilReset(h, hints, now)
		}
	}
	return f
}

// Bounds on how a body is looked at before the caller gets it.
const (
	MaxPeeked = 16 << 10    // bytes
	PeekTime  = time.Second // of waiting for them
)

// peeked is a body whose first bytes are read ahead.
type peeked struct {
	io.ReadCloser
	done chan struct{} // closed when nothing more is read ahead

	mu    sync.Mutex
	more  sync.Cond // something was read, or nothing more is
	head  []byte    // was read ahead, and the reader of the body has not had it
	ended bool      // nothing more is read ahead
	late  bool      // nothing more is to be
	err   error     // behind head
}

// peek returns the first bytes of the body of an answer: all of it, or nil if it is too long or
// does not come in time. The caller of the transport reads it from its beginning all the same.
func peek(ctx context.Context, resp *http.Response) []byte {
	if resp.Body == nil || resp.Body == http.NoBody || resp.ContentLength > MaxPeeked {
		return nil
	}
	b := &peeked{ReadCloser: resp.Body, done: make(chan struct{})}
	b.more.L = &b.mu
	resp.Body = b
	go b.readAhead()
	timer := time.NewTimer(PeekTime)
	defer timer.Stop()
	select {
	case <-b.done:
	case <-timer.C:
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.late = true
	if b.err == io.EOF && len(b.head) <= MaxPeeked {
		return b.head
	}
	return nil
}

// readAhead reads until there is enough, or somebody else reads on.
func (b *peeked) readAhead() {
	defer close(b.done)
	piece := make([]byte, 4<<10)
	for ended := false; !ended; {
		n, err := b.ReadCloser.Read(piece)
		b.mu.Lock()
		b.head = append(b.head, piece[:n]...)
		b.err = err
		ended = err != nil || b.late || len(b.head) > MaxPeeked
		b.ended = ended
		b.more.Broadcast()
		b.mu.Unlock()
	}
}

// Read implements io.Reader.
func (b *peeked) Read(p []byte) (n int, err error) {
	b.mu.Lock()
	for len(b.head) == 0 && !b.ended {
		b.more.Wait()
	}
	n, err = copy(p, b.head), b.err
	b.head = b.head[n:]
	left := len(b.head)
	b.mu.Unlock()
	switch {
	case n > 0 || left > 0:
		return n, nil
	case err != nil:
		return 0, err
	}
	return b.ReadCloser.Read(p)
}

// errorBody is what providers say of a refusal in its body, as far as it is read here.
type errorBody struct {
	// Error is Google's: google.rpc.Status in JSON, with google.rpc.RetryInfo among its details.
	Error struct {
		Details []struct {
			Type       string `json:"@type"`
			RetryDelay string `json:"retryDelay"`
		} `json:"details"`
	} `json:"error"`
	// Type and RetryAfterSeconds are AWS's.
	Type              string          `json:"__type"`
	RetryAfterSeconds json.RawMessage `json:"retryAfterSeconds"`
	// Message is GitHub's.
	Message string `json:"message"`
}

// githubPause is how long GitHub wants to be left alone when it refuses a request by a secondary
// limit and does not say for how long.
const githubPause = time.Minute

// readRefusal reads the body of an answer. It passes over unknown content.
func readRefusal(body []byte) (f Refusal) {
	body = bytes.TrimLeft(body, " \t\r\n")
	if len(body) == 0 {
		return f
	}
	if body[0] == '<' {
		f.Refused = isThrottled(xmlCode(body))
		return f
	}
	var e errorBody
	d := json.NewDecoder(bytes.NewReader(body))
	if body[0] == '[' { // Google's streams are lists
		_, _ = d.Token()
	}
	_ = d.Decode(&e) // a field of another type is left out, the others are there
	for _, detail := range e.Error.Details {
		if strings.HasSuffix(detail.Type, "google.rpc.RetryInfo") {
			if d, err := time.ParseDuration(detail.RetryDelay); err == nil {
				f.Wait = max(f.Wait, d)
			}
		}
	}
	if n, ok := decimal(strings.Trim(string(e.RetryAfterSeconds), `"`)); ok {
		f.Wait = max(f.Wait, times(n, time.Second))
	}
	f.Refused = isThrottled(e.Type)
	if strings.Contains(e.Message, "secondary rate limit") || strings.Contains(e.Message, "abuse detection") {
		f.Refused, f.Wait = true, max(f.Wait, githubPause)
	}
	return f
}

// xmlCode returns the code of an error of AWS in XML; "" if there is none.
func xmlCode(body []byte) string {
	_, rest, _ := bytes.Cut(body, []byte("<Code>"))
	code, _, ok := bytes.Cut(rest, []byte("</Code>"))
	if !ok {
		return ""
	}
	return string(code)
}

// throttled are the errors by which AWS refuses a request for its rate, by the list of its own
// clients.
var throttled = [...]string{
	"Throttling", "ThrottlingException", "ThrottledException", "RequestThrottledException", "RequestThrottled",
	"TooManyRequestsException",
	"ProvisionedThroughputExceededException", "RequestLimitExceeded", "BandwidthLimitExceeded",
	"LimitExceededException", "SlowDown", "EC2ThrottledException",
}

// isThrottled reports whether an error of AWS is one of these. It may be named within a namespace,
// as com.amazonaws.dynamodb.v20120810#ThrottlingException, and with an address behind a colon.
func isThrottled(name string) bool {
	name, _, _ = strings.Cut(name, ":")
	return slices.Contains(throttled[:], strings.TrimSpace(name[strings.LastIndexByte(name, '#')+1:]))
}
