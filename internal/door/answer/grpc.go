package answer

import (
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/util/chars"
)

// Codes of gRPC (google.rpc.Code).
const (
	grpcOK                 = 0
	grpcCancelled          = 1
	grpcUnknown            = 2
	grpcInvalidArgument    = 3
	grpcDeadlineExceeded   = 4
	grpcNotFound           = 5
	grpcPermissionDenied   = 7
	grpcResourceExhausted  = 8
	grpcFailedPrecondition = 9
	grpcAborted            = 10
	grpcOutOfRange         = 11
	grpcUnimplemented      = 12
	grpcInternal           = 13
	grpcUnavailable        = 14
	grpcUnauthenticated    = 16
)

// GRPCCode is the gRPC code that corresponds to an HTTP status. It follows the statuses that
// google/rpc/code.proto names for the codes.
func GRPCCode(status int) int {
	switch status {
	case http.StatusBadRequest:
		return grpcInvalidArgument
	case http.StatusUnauthorized:
		return grpcUnauthenticated
	case http.StatusForbidden:
		return grpcPermissionDenied
	case http.StatusNotFound:
		return grpcNotFound
	case http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return grpcUnimplemented
	case http.StatusRequestTimeout, http.StatusGatewayTimeout:
		return grpcDeadlineExceeded
	case http.StatusConflict:
		return grpcAborted
	case http.StatusPreconditionFailed:
		return grpcFailedPrecondition
	case http.StatusRequestEntityTooLarge:
		return grpcOutOfRange // RESOURCE_EXHAUSTED would have the call made again
	case http.StatusTooManyRequests:
		return grpcResourceExhausted
	case 499: // the client hung up
		return grpcCancelled
	case http.StatusInternalServerError:
		return grpcInternal
	case http.StatusBadGateway, http.StatusServiceUnavailable:
		return grpcUnavailable
	}
	if status < 300 {
		return grpcOK
	}
	return grpcUnknown
}

// ForGRPC returns the writer for an answer of our own to r, where no server behind answers. It is
// w, except for a gRPC call: there trailers without a message take the place of an HTTP answer
// (Trailers-Only, gRPC over HTTP2), since gRPC's clients look at nothing else, and read any HTTP
// status other than 200 as UNAVAILABLE or UNKNOWN.
func ForGRPC(w http.ResponseWriter, r *http.Request) http.ResponseWriter {
	if !IsGRPC(r) {
		return w
	}
	return AsGRPC(w)
}

// AsGRPC is ForGRPC for a call of gRPC.
func AsGRPC(w http.ResponseWriter) http.ResponseWriter {
	if _, ok := w.(*grpcWriter); ok {
		return w
	}
	return &grpcWriter{ResponseWriter: w}
}

// IsGRPC reports whether r is a call of gRPC: application/grpc over HTTP/2, alone or with + or ;
// behind.
func IsGRPC(r *http.Request) bool {
	if r.ProtoMajor != 2 || r.Method != http.MethodPost {
		return false
	}
	types := r.Header["Content-Type"]
	if len(types) != 1 {
		return false
	}
	rest, ok := strings.CutPrefix(types[0], "application/grpc")
	return ok && (rest == "" || rest[0] == '+' || rest[0] == ';')
}

// grpcWriter is ForGRPC's.
type grpcWriter struct {
	http.ResponseWriter
	over bool
}

// Unwrap is for http.ResponseController.
func (g *grpcWriter) Unwrap() http.ResponseWriter { return g.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (g *grpcWriter) WriteHeader(status int) {
	if status >= 200 {
		g.problem(status, http.StatusText(status))
	}
}

// Write implements http.ResponseWriter. It drops p, which is for people with a browser.
func (g *grpcWriter) Write(p []byte) (int, error) {
	g.WriteHeader(http.StatusOK)
	return len(p), nil
}

// problem ends the call with an HTTP status and words for it. When to come back is in Retry-After.
func (g *grpcWriter) problem(status int, detail string) {
	s := grpcStatus{code: GRPCCode(status), message: detail}
	if seconds, err := strconv.ParseInt(g.Header().Get("Retry-After"), 10, 32); err == nil && seconds > 0 {
		s.wait(time.Duration(seconds) * time.Second)
	}
	g.end(&s)
}

// end ends the call.
func (g *grpcWriter) end(s *grpcStatus) {
	if g.over {
		return
	}
	g.over = true
	h := g.Header()
	for _, name := range []string{"Content-Length", "X-Content-Type-Options", "Content-Security-Policy", "Vary"} {
		delete(h, name)
	}
	h["Content-Type"] = []string{"application/grpc"}
	h["Grpc-Status"] = []string{strconv.Itoa(s.code)}
	h["Grpc-Message"] = []string{chars.GRPCMessage(s.message)}
	if len(s.details) > 0 {
		h["Grpc-Status-Details-Bin"] = []string{base64.RawStdEncoding.EncodeToString(s.encode())}
	}
	if s.pushBack != "" {
		h["Grpc-Retry-Pushback-Ms"] = []string{s.pushBack}
	}
	g.ResponseWriter.WriteHeader(http.StatusOK)
}

// Refusal is how a rule wants a call to be refused; the zero value is the default.
type Refusal struct {
	Status  int         // by HTTP; 0 means 429
	Message string      // "" means the default
	Header  http.Header // beside ours, and in their place; Grpc-Status in it is the code
}

// RefuseGRPC ends a call of gRPC that was refused, if w is ForGRPC's, and reports whether it has.
// It ends as grpclimit ends one: with RESOURCE_EXHAUSTED unless the rule says otherwise, RetryInfo,
// QuotaFailure, ErrorInfo and grpc-retry-pushback-ms. The rate-limit headers are the caller's.
func RefuseGRPC(w http.ResponseWriter, d *weir.Decision, o Refusal) bool {
	g, ok := w.(*grpcWriter)
	if !ok {
		return false
	}
	s := grpcStatus{code: grpcResourceExhausted, message: o.Message}
	if o.Status != 0 {
		if s.code = GRPCCode(o.Status); s.code == grpcOK {
			s.code = grpcResourceExhausted // which a refusal cannot be
		}
	}
	h := g.Header()
	for name, lines := range o.Header {
		h[name] = lines
	}
	if code, err := strconv.Atoi(o.Header.Get("Grpc-Status")); err == nil && code > 0 && code <= 16 {
		s.code = code
	}
	name := "a limit"
	if near := d.Nearest(); near != nil {
		name = near.Window.Name
	}
	retry, ok := d.Retry()
	if s.message == "" {
		s.message = "rate limit " + strconv.Quote(name) + " exceeded; retry in " + retry.String()
		if !ok {
			s.message = "rate limit " + strconv.Quote(name) + " exceeded; this call can never pass it"
		}
	}
	if s.pushBack = "-1"; ok {
		s.wait(retry)
	}
	s.quotaFailure(d)
	if d.ID != 0 {
		s.errorInfo("RATE_LIMITED", [2]string{"limit", name}, [2]string{"decision", d.ID.String()})
	}
	g.end(&s)
	return true
}

// grpcStatus is a google.rpc.Status.
type grpcStatus struct {
	code     int
	message  string
	details  []byte // as they stand in the message
	pushBack string // of grpc-retry-pushback-ms; "" for none
}

// wait adds when the call may come again.
func (s *grpcStatus) wait(d time.Duration) {
	s.pushBack = strconv.FormatInt(min(int64((d+time.Millisecond-1)/time.Millisecond), 1<<31-1), 10)
	var delay []byte
	delay = appendInt(delay, 1, int64(d/time.Second))
	delay = appendInt(delay, 2, int64(d%time.Second))
	s.detail("RetryInfo", appendBytes(nil, 1, delay))
}

// quotaFailure adds which limits refused.
func (s *grpcStatus) quotaFailure(d *weir.Decision) {
	var all []byte
	for i := range d.Limits {
		l := &d.Limits[i]
		if !d.Refuses(l) {
			continue
		}
		says := "at most " + strconv.FormatInt(l.Limit, 10) + " at a time"
		if l.Window.Seconds > 0 {
			says = "at most " + strconv.FormatInt(l.Limit, 10) + " in " + strconv.FormatInt(l.Window.Seconds,
				10) + " s (" + l.Window.Counter.Limit.Algorithm().String() + ")"
		}
		var one []byte
		one = appendBytes(one, 1, "limit:"+l.Window.Name)
		one = appendBytes(one, 2, says)
		one = appendBytes(one, 5, l.Window.Name)
		one = appendInt(one, 7, l.Limit)
		all = appendBytes(all, 1, one)
	}
	s.detail("QuotaFailure", all)
}

// errorInfo adds a reason with values that belong to it.
func (s *grpcStatus) errorInfo(reason string, values ...[2]string) {
	info := appendBytes(nil, 1, reason)
	info = appendBytes(info, 2, "github.com/weir-rl/weir")
	for _, v := range values {
		info = appendBytes(info, 3, appendBytes(appendBytes(nil, 1, v[0]), 2, v[1]))
	}
	s.detail("ErrorInfo", info)
}

// detail adds a message of google.rpc, as a google.protobuf.Any.
func (s *grpcStatus) detail(name string, message []byte) {
	s.details = appendBytes(s.details, 3,
		appendBytes(appendBytes(nil, 1, "type.googleapis.com/google.rpc."+name), 2, message))
}

func (s *grpcStatus) encode() []byte {
	b := appendInt(nil, 1, int64(s.code))
	return append(appendBytes(b, 2, strings.ToValidUTF8(s.message, "\uFFFD")), s.details...)
}

// appendBytes appends a field of protobuf that holds bytes, a text or a message.
func appendBytes[T string | []byte](b []byte, field int, value T) []byte {
	if len(value) == 0 {
		return b
	}
	b = appendVarint(appendVarint(b, uint64(field)<<3|2), uint64(len(value)))
	return append(b, value...)
}

// appendInt appends a field of protobuf that holds an integer.
func appendInt(b []byte, field int, value int64) []byte {
	if value == 0 {
		return b
	}
	return appendVarint(appendVarint(b, uint64(field)<<3), uint64(value))
}

func appendVarint(b []byte, v uint64) []byte {
	for ; v >= 0x80; v >>= 7 {
		b = append(b, byte(v)|0x80)
	}
	return append(b, byte(v))
}
