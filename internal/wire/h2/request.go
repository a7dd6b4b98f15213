package h2

import (
	"bytes"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2/hpack"

	"github.com/weir-rl/weir/internal/wire/accept"
)

// request is the header of a request.
type request struct {
	method, scheme, path, authority string
	fields                          []hpack.HeaderField // without pseudo-header fields
	length                          int64               // Content-Length; -1 if absent

	unary       Unary // answers it; nil means Options.Handler
	contentType string
	encoding    string        // grpc-encoding; "" and identity mean none
	timeout     time.Duration // grpc-timeout; 0 means none
	hasTimeout  bool
	badTimeout  bool

	size      int  // of the fields, as SETTINGS_MAX_HEADER_LIST_SIZE counts
	announces bool // it announces trailers, which net/http then looks at
	malformed bool // to be answered with a stream error
	tooLarge  bool // more than Options.MaxHeaderBytes
	shared    bool // held by a headerCache: never changed, never given back
}

func (r *request) reset() {
	clear(r.fields)
	*r = request{fields: r.fields[:0], length: -1}
}

// Bounds of one header block on the wire.
const (
	minBlock         = 256 << 10
	maxContinuations = 32
)

// maxBlock bounds the bytes of a header block: a larger one ends the connection. One that is larger
// than Options.MaxHeaderBytes alone has to be decoded all the same, since the blocks behind it
// refer to its fields, and ends only its stream. Indexed fields are smaller on the wire than in the
// size of the list, so that every list within its own limit fits.
func (s *Server) maxBlock() int { return max(minBlock, 2*s.o.MaxHeaderBytes) }

// headerReader decodes the header blocks of a connection. Once their fields are in the dynamic
// table, clients send the same block for almost every call. So the last few blocks that do not
// change the table are cached with their contents. Not safe for concurrent use.
type headerReader struct {
	s       *Server
	decoder *hpack.Decoder
	free    []*request
	cached  [4]cachedBlock
	next    int // of cached, to be replaced next

	// While a block is decoded.
	into    *request
	size    int
	regular bool // a regular field has come
	trailer bool
	seen    byte                // pseudo-header fields, as bits
	more    []hpack.HeaderField // those beyond maxKeptFields, so that few buffers are thrown away
}

// cachedBlock is a block with its contents, valid while the dynamic table stays the same.
type cachedBlock struct {
	block   []byte
	request *request
}

const (
	seenMethod = 1 << iota
	seenScheme
	seenPath
	seenAuthority
)

func newHeaderReader(s *Server) *headerReader {
	h := &headerReader{s: s}
	h.decoder = hpack.NewDecoder(4096, h.field)
	h.decoder.SetMaxStringLength(s.maxBlock())
	return h
}

// read decodes block. The request is the caller's until it gives it back with release. After an
// error the connection's decoder can no longer be used.
func (h *headerReader) read(block []byte) (*request, error) {
	for i := range h.cached {
		if k := &h.cached[i]; bytes.Equal(k.block, block) && k.request != nil {
			return k.request, nil
		}
	}
	r := h.acquire()
	if err := h.decode(r, block, false); err != nil {
		return nil, err
	}
	h.complete(r)
	if changesTable(block) {
		h.forget()
	} else if !r.malformed && !r.tooLarge && len(block) <= 512 && len(r.fields) <= maxKeptFields {
		r.shared = true
		k := &h.cached[h.next]
		h.next = (h.next + 1) % len(h.cached)
		k.block, k.request = append(k.block[:0], block...), r
	}
	return r, nil
}

// readTrailer decodes the block of a trailer, and reports whether it is well-formed, and whether it
// holds fields that belong in a header, and the memory they cost.
func (h *headerReader) readTrailer(block []byte) (fields http.Header, cost int, ok, odd bool, err error) {
	r := h.acquire()
	defer h.release(r)
	if err := h.decode(r, block, true); err != nil {
		return nil, 0, false, false, err
	}
	if changesTable(block) {
		h.forget()
	}
	ok = !r.malformed && !r.tooLarge
	if ok && h.s.o.Methods == nil { // gRPC has none of its clients
		fields = make(http.Header, len(r.fields))
		for _, f := range r.fields {
			fields.Add(f.Name, f.Value)
			odd = odd || !httpguts.ValidTrailerHeader(http.CanonicalHeaderKey(f.Name))
		}
	}
	return fields, headCost(len(r.fields), r.size), ok, odd, nil
}

func (h *headerReader) decode(r *request, block []byte, trailer bool) error {
	h.into, h.size, h.regular, h.trailer, h.seen = r, 0, false, trailer, 0
	h.decoder.SetEmitEnabled(true)
	if _, err := h.decoder.Write(block); err != nil {
		return connError{compressionError, err.Error()}
	}
	if err := h.decoder.Close(); err != nil {
		return connError{compressionError, err.Error()}
	}
	h.into, r.size = nil, h.size
	if len(h.more) > 0 {
		r.fields = slices.Concat(r.fields, h.more)
		clear(h.more)
		h.more = h.more[:0]
	}
	return nil
}

func (h *headerReader) forget() {
	for i := range h.cached {
		h.cached[i].request = nil
	}
}

func (h *headerReader) acquire() *request {
	if n := len(h.free); n > 0 {
		r := h.free[n-1]
		h.free = h.free[:n-1]
		return r
	}
	return &request{length: -1}
}

// maxKeptFields bounds the fields of a request that is kept for others.
const maxKeptFields = 64

// spare is what h keeps for further requests.
func (h *headerReader) spare() (n int) {
	n = fieldCost / 2 * cap(h.more)
	for _, r := range h.free {
		n += fieldCost/2*cap(r.fields) + streamCost/4
	}
	for i := range h.cached {
		if r := h.cached[i].request; r != nil {
			n += fieldCost/2*cap(r.fields) + streamCost/2
		}
	}
	return n
}

// release takes r back.
func (h *headerReader) release(r *request) {
	if r.shared || len(h.free) >= 8 || cap(r.fields) > maxKeptFields {
		return
	}
	r.reset()
	h.free = append(h.free, r)
}

// field takes one field of the block that is being decoded.
func (h *headerReader) field(f hpack.HeaderField) {
	r := h.into
	if h.size += int(f.Size()); h.size > h.s.o.MaxHeaderBytes {
		r.tooLarge = true
		h.decoder.SetEmitEnabled(false)
		return
	}
	if f.IsPseudo() {
		h.pseudo(r, f)
		return
	}
	h.regular = true
	switch f.Name {
	case "content-type":
		r.contentType = f.Value
	case "trailer":
		r.announces = true
	case "te":
		if f.Value != "trailers" {
			r.malformed = true
		}
	case "grpc-encoding":
		r.encoding = f.Value
	case "grpc-timeout":
		var ok bool
		if r.timeout, ok = accept.GRPCTimeout(f.Value); !ok {
			r.badTimeout = true
		}
		r.hasTimeout = ok
	case "content-length":
		n, err := strconv.ParseUint(f.Value, 10, 63)
		if err != nil || r.length >= 0 && r.length != int64(n) {
			r.malformed = true
		}
		r.length = int64(n)
	case "connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade":
		r.malformed = true
	default:
		if !validName(f.Name) {
			r.malformed = true
		}
	}
	if !httpguts.ValidHeaderFieldValue(f.Value) {
		r.malformed = true
	}
	if len(r.fields) < maxKeptFields {
		r.fields = append(r.fields, f)
	} else {
		h.more = append(h.more, f)
	}
}

func (h *headerReader) pseudo(r *request, f hpack.HeaderField) {
	var into *string
	var bit byte
	switch f.Name {
	case ":method":
		into, bit = &r.method, seenMethod
	case ":scheme":
		into, bit = &r.scheme, seenScheme
	case ":path":
		into, bit = &r.path, seenPath
	case ":authority":
		into, bit = &r.authority, seenAuthority
	}
	if into == nil || h.regular || h.trailer || h.seen&bit != 0 || !httpguts.ValidHeaderFieldValue(f.Value) {
		r.malformed = true
		return
	}
	h.seen |= bit
	*into = f.Value
}

// validName reports whether HTTP/2 allows a field name.
func validName(name string) bool {
	if name == "" {
		return false
	}
	for i := range len(name) {
		if b := name[i]; b >= 'A' && b <= 'Z' || b >= 0x80 || !httpguts.IsTokenRune(rune(b)) {
			return false
		}
	}
	return true
}

// complete makes the checks that need the whole header, and chooses the handler of the request.
func (h *headerReader) complete(r *request) {
	if r.tooLarge {
		return
	}
	if !httpguts.ValidHeaderFieldName(r.method) || h.seen&seenMethod == 0 {
		r.malformed = true
	}
	if r.method == "CONNECT" { // which has neither :scheme nor :path
		if h.seen&(seenScheme|seenPath) != 0 || r.authority == "" {
			r.malformed = true
		}
		return
	}
	if h.seen&(seenScheme|seenPath) != seenScheme|seenPath || r.scheme == "" || r.path == "" ||
		r.path[0] != '/' && r.path != "*" {
		r.malformed = true
	}
	if r.method == "POST" && isGRPC(r.contentType) {
		r.unary = h.s.o.Methods[r.path]
	}
	if r.unary == nil && (r.scheme != "http" && r.scheme != "https" || strings.Contains(r.authority, "@")) {
		r.malformed = true
	}
}

// isGRPC reports whether a Content-Type is application/grpc, alone or with + or ; behind.
func isGRPC(contentType string) bool {
	rest, ok := strings.CutPrefix(contentType, "application/grpc")
	return ok && (rest == "" || rest[0] == '+' || rest[0] == ';')
}

// changesTable reports whether decoding block changes the dynamic table, or may.
func changesTable(block []byte) bool {
	for len(block) > 0 {
		b := block[0]
		var ok bool
		switch {
		case b&0x80 != 0: // indexed
			if _, block, ok = cutInt(block, 7); !ok {
				return true
			}
		case b&0xf0 == 0 || b&0xf0 == 0x10: // a literal that is not indexed
			var index uint64
			if index, block, ok = cutInt(block, 4); !ok {
				return true
			}
			if index == 0 {
				if block, ok = skipString(block); !ok {
					return true
				}
			}
			if block, ok = skipString(block); !ok {
				return true
			}
		default:
			return true
		}
	}
	return false
}

func skipString(b []byte) ([]byte, bool) {
	n, rest, ok := cutInt(b, 7)
	if !ok || n > uint64(len(rest)) {
		return nil, false
	}
	return rest[n:], true
}

// cutInt cuts an HPACK integer off b.
func cutInt(b []byte, bits int) (n uint64, rest []byte, ok bool) {
	if len(b) == 0 {
		return 0, nil, false
	}
	limit := uint64(1)<<bits - 1
	n, b = uint64(b[0])&limit, b[1:]
	if n < limit {
		return n, b, true
	}
	for shift := 0; len(b) > 0 && shift <= 28; shift += 7 {
		d := b[0]
		b = b[1:]
		n += uint64(d&0x7f) << shift
		if d < 0x80 {
			return n, b, true
		}
	}
	return 0, nil, false
}
