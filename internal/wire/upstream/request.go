package upstream

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Request is a request as it goes over the wire. Write it in order: Begin, Field for each line of
// the header, End, and ReadBody if it has a body. What must not go over the wire makes OK false,
// and the Request useless. Not safe for concurrent use. Make one with NewRequest.
type Request struct {
	b          []byte
	method     string
	length     int64     // of the body
	header     int       // length of b up to the body; 0 before End
	rest       io.Reader // what of the body is not in b; nil for nothing
	repeatable bool      // see Repeatable
	bad        bool
	leaver     Leaver
}

// Leaver decides about a request whose context ends while it waits for the header of its
// answer.
type Leaver interface {
	// Abandon returns the context by which the request goes on; nil if it is to be cut at once. It
	// is called in the goroutine of Client.Send or Response.Header, at most once.
	Abandon() context.Context
	// AbandonUnsent is asked if Abandon has returned nil, or was not asked, and the body is not
	// sent whole. The server learns that no more comes. It may work on all the same, so that
	// Client.Send returns when it has answered or closed the connection, or the context that
	// AbandonUnsent returns ends; at once for nil. It is called at most once, like Abandon.
	AbandonUnsent() context.Context
}

// AskBeforeCut has l asked before the request is cut, since its context has ended. Without that it
// is cut.
func (q *Request) AskBeforeCut(l Leaver) { q.leaver = l }

var requests = sync.Pool{New: func() any { return &Request{b: make([]byte, 0, 2<<10)} }}

// NewRequest returns an empty Request. Free gives it back.
func NewRequest() *Request { return requests.Get().(*Request) }

// maxKeptBuffer bounds the buffer that a Request keeps for the next one.
const maxKeptBuffer = 64 << 10

// Free ends the use of q.
func (q *Request) Free() {
	if cap(q.b) <= maxKeptBuffer {
		*q = Request{b: q.b[:0]}
		requests.Put(q)
	}
}

// OK reports whether all that was written so far may go over the wire. It is false after a method
// or a name that is no token, a target or a host with spaces or control characters, a value with
// control characters other than tabs, a field that frames the message, and a header of more than
// MaxHeader bytes.
func (q *Request) OK() bool { return !q.bad }

// complete reports whether q can be sent.
func (q *Request) complete() bool {
	return !q.bad && q.header > 0 && len(q.b) == q.header+q.first() && (q.rest != nil) == (q.length > int64(q.first()))
}

// first is how much of the body is sent along with the header.
func (q *Request) first() int {
	if q.repeatable && q.length <= MaxRepeat {
		return int(q.length)
	}
	return int(min(q.length, MaxBody))
}

// sendable reports whether q may be sent a second time: all of it is still held.
func (q *Request) sendable() bool { return q.repeatable && q.rest == nil }

// Bytes returns the bytes that have been written. They are valid until the next call.
func (q *Request) Bytes() []byte { return q.b }

// Begin writes the request line and the Host field. The target is given in parts, which are
// written one after the other.
func (q *Request) Begin(method, host string, target ...string) {
	q.method = method
	q.bad = len(q.b) > 0 || !validName(method) || host == "" || !visible(host)
	q.b = append(q.b, method...)
	q.b = append(q.b, ' ')
	start := len(q.b)
	for _, part := range target {
		q.bad = q.bad || !visible(part)
		q.b = append(q.b, part...)
	}
	q.bad = q.bad || len(q.b) == start
	q.b = append(q.b, " HTTP/1.1\r\nHost: "...)
	q.b = append(q.b, host...)
	q.b = append(q.b, "\r\n"...)
	q.repeatable = Repeatable(method)
}

// Repeatable reports whether a method means the same when its request arrives twice (idempotent,
// RFC 9110 9.2.2).
func Repeatable(method string) bool {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return true
	}
	return false
}

// RepeatKeys are the fields by which a server knows a request that it has had, whatever its method.
var RepeatKeys = []string{"Idempotency-Key", "X-Idempotency-Key"}

// Field writes a line of the header. Several values are joined by commas. Without any it writes
// nothing.
func (q *Request) Field(name string, values ...string) {
	if len(values) == 0 {
		return
	}
	if !validName(name) || framing(name) || len(q.b) == 0 || q.header > 0 {
		q.bad = true
	}
	if len(name) >= len(RepeatKeys[0]) &&
		(strings.EqualFold(name, RepeatKeys[0]) || strings.EqualFold(name, RepeatKeys[1])) {
		q.repeatable = true
	}
	q.b = append(append(q.b, name...), ": "...)
	for i, value := range values {
		if !validValue(value) {
			q.bad = true
		}
		switch {
		case len(values) == 1:
			value = textproto.TrimString(value)
		case i == 0:
			value = strings.TrimLeft(value, " \t")
		default:
			q.b = append(q.b, ", "...)
			if i == len(values)-1 {
				value = strings.TrimRight(value, " \t")
			}
		}
		q.b = append(q.b, value...)
	}
	q.b = append(q.b, "\r\n"...)
}

// framing reports whether a field belongs to the connection or says where the request ends. Such
// fields are left to Begin and End, or have a meaning that this package does not implement.
func framing(name string) bool {
	switch len(name) {
	case 2:
		return strings.EqualFold(name, "TE")
	case 4:
		return strings.EqualFold(name, "Host")
	case 6:
		return strings.EqualFold(name, "Expect")
	case 7:
		return strings.EqualFold(name, "Upgrade") || strings.EqualFold(name, "Trailer")
	case 10:
		return strings.EqualFold(name, "Connection") || strings.EqualFold(name, "Keep-Alive")
	case 14:
		return strings.EqualFold(name, "Content-Length")
	case 16:
		return strings.EqualFold(name, "Proxy-Connection")
	case 17:
		return strings.EqualFold(name, "Transfer-Encoding")
	}
	return false
}

// End ends the header of a request that has a body of length bytes; 0 for none.
func (q *Request) End(length int64) {
	if length < 0 || len(q.b) == 0 || len(q.b) > MaxHeader || q.header > 0 {
		q.bad = true
		return
	}
	switch {
	case length > 0:
		q.b = append(q.b, "Content-Length: "...)
		q.b = strconv.AppendInt(q.b, length, 10)
		q.b = append(q.b, "\r\n"...)
	case q.method == http.MethodPost || q.method == http.MethodPut || q.method == http.MethodPatch:
		q.b = append(q.b, "Content-Length: 0\r\n"...)
	}
	q.b = append(q.b, "\r\n"...)
	q.header, q.length = len(q.b), length
}

var errBody = errors.New("upstream: a body is read once, after End said that there is one")

// ReadBody reads the body, which must be as long as End said: all of it, or the first MaxBody bytes
// of one that is larger than that (MaxRepeat where the request may be sent again). The rest is then
// read while it is sent, by another goroutine, which may go on with it for as long as a read takes
// after the response was closed. Room is made as the body comes: a client that announces much and
// sends little holds little.
func (q *Request) ReadBody(body io.Reader) error {
	if q.bad || q.length == 0 || len(q.b) != q.header {
		return errBody
	}
	end := q.header + q.first()
	most := end + 1 // so that the end is met in the same read
	if q.length > int64(q.first()) {
		q.rest, most = body, end
	}
	for {
		if q.rest != nil && len(q.b) == end {
			return nil
		}
		if len(q.b) == cap(q.b) {
			q.b = slices.Grow(q.b, min(most-len(q.b), max(len(q.b), 4<<10)))
		}
		n, err := body.Read(q.b[len(q.b):min(most, cap(q.b))])
		q.b = q.b[:len(q.b)+n]
		switch {
		case err == io.EOF && len(q.b) == end:
			return nil
		case err == io.EOF || len(q.b) > end:
			return io.ErrUnexpectedEOF
		case err != nil:
			return err
		}
	}
}
