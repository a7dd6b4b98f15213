package spoe

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/testkit/doortest"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
)

// This is HAProxy's side of the protocol, written apart from the agent's after doc/SPOE.txt, so
// that the two check each other.

// number encodes a variable-length integer as HAProxy's encode_varint does.
func number(i uint64) (b []byte) {
	if i < 240 {
		return []byte{byte(i)}
	}
	b = append(b, byte(i)|240)
	i = (i - 240) >> 4
	for i >= 128 {
		b = append(b, byte(i)|128)
		i = (i - 128) >> 7
	}
	return append(b, byte(i))
}

func str(s string) []byte { return append(number(uint64(len(s))), s...) }

// typed encodes a Go value as typed data; nil is NULL.
func typed(v any) []byte {
	switch v := v.(type) {
	case nil:
		return []byte{0}
	case bool:
		if v {
			return []byte{0x11}
		}
		return []byte{0x01}
	case int32:
		return append([]byte{2}, number(uint64(int64(v)))...)
	case uint32:
		return append([]byte{3}, number(uint64(v))...)
	case int:
		return append([]byte{4}, number(uint64(v))...)
	case uint64:
		return append([]byte{5}, number(v)...)
	case netip.Addr:
		if v.Is4() {
			return append([]byte{6}, v.AsSlice()...)
		}
		return append([]byte{7}, v.AsSlice()...)
	case string:
		return append([]byte{8}, str(v)...)
	case []byte:
		return append([]byte{9}, str(string(v))...)
	}
	panic(fmt.Sprintf("%T", v))
}

// pairs encodes names and values in turn.
func pairs(items ...any) (b []byte) {
	for i := 0; i < len(items); i += 2 {
		b = append(append(b, str(items[i].(string))...), typed(items[i+1])...)
	}
	return b
}

func message(name string, items ...any) []byte {
	b := append(str(name), byte(len(items)/2))
	return append(b, pairs(items...)...)
}

// rawFrame encodes a frame with its length.
func rawFrame(kind byte, flags uint32, stream, id uint64, payload []byte) []byte {
	b := []byte{kind}
	b = binary.BigEndian.AppendUint32(b, flags)
	b = append(b, number(stream)...)
	b = append(b, number(id)...)
	b = append(b, payload...)
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
}

// helloFrom26 is what HAProxy 2.6 sends.
func helloFrom26() []byte {
	return rawFrame(1, 1, 0, 0, pairs("supported-versions", "2.0", "max-frame-size", uint32(16380), "capabilities",
		"pipelining,async", "engine-id", "74AE6C0B-9E9B-4D2F-A0B2-58EDB5ABCA11"))
}

func notify(stream, id uint64, messages ...[]byte) []byte {
	var payload []byte
	for _, m := range messages {
		payload = append(payload, m...)
	}
	return rawFrame(3, 1, stream, id, payload)
}

// reply is a frame of the agent's.
type reply struct {
	kind       byte
	flags      uint32
	stream, id uint64
	payload    []byte
	size       int
}

// peer is a connection of HAProxy's.
type peer struct {
	t    testing.TB
	conn net.Conn
	r    *bufio.Reader
}

func dial(t testing.TB, addr string) *peer {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return newPeer(t, c)
}

func newPeer(t testing.TB, c net.Conn) *peer { return &peer{t, c, bufio.NewReader(c)} }

func (p *peer) send(b []byte) {
	p.t.Helper()
	if _, err := p.conn.Write(b); err != nil {
		p.t.Fatal(err)
	}
}

// takeNumber reads a variable-length integer off the front of b, which it must hold.
func takeNumber(b *[]byte) uint64 {
	i := uint64((*b)[0])
	*b = (*b)[1:]
	if i < 240 {
		return i
	}
	for shift := 4; ; shift += 7 {
		c := (*b)[0]
		*b = (*b)[1:]
		i += uint64(c) << shift
		if c < 128 {
			return i
		}
	}
}

func takeString(b *[]byte) string {
	n := takeNumber(b)
	s := string((*b)[:n])
	*b = (*b)[n:]
	return s
}

func takeTyped(b *[]byte) any {
	kind := (*b)[0]
	*b = (*b)[1:]
	switch kind & 0xf {
	case 0:
		return nil
	case 1:
		return kind&0x10 != 0
	case 2, 3, 4, 5:
		return int64(takeNumber(b))
	case 8, 9:
		return takeString(b)
	}
	panic(fmt.Sprintf("type %d", kind))
}

func (p *peer) read() (reply, error) {
	var head [4]byte
	if _, err := io.ReadFull(p.r, head[:]); err != nil {
		return reply{}, err
	}
	b := make([]byte, binary.BigEndian.Uint32(head[:]))
	if _, err := io.ReadFull(p.r, b); err != nil {
		return reply{}, err
	}
	r := reply{kind: b[0], flags: binary.BigEndian.Uint32(b[1:]), size: len(b)}
	b = b[5:]
	r.stream = takeNumber(&b)
	r.id = takeNumber(&b)
	r.payload = b
	return r, nil
}

func (p *peer) next() reply {
	p.t.Helper()
	r, err := p.read()
	if err != nil {
		p.t.Fatal(err)
	}
	if r.flags != 1 {
		p.t.Fatalf("flags %x: only FIN is to be set", r.flags)
	}
	return r
}

// keys reads a KV list.
func (r reply) keys() map[string]any {
	m := map[string]any{}
	for b := r.payload; len(b) > 0; {
		name := takeString(&b)
		m[name] = takeTyped(&b)
	}
	return m
}

// vars reads the actions of an ACK: nil for a variable that is unset.
func (r reply) vars(t testing.TB) map[string]any {
	t.Helper()
	m := map[string]any{}
	for b := r.payload; len(b) > 0; {
		action, args, scope := b[0], b[1], b[2]
		b = b[3:]
		if scope != 2 || action == 1 && args != 3 || action == 2 && args != 2 || action > 2 || action < 1 {
			t.Fatalf("action %d with %d arguments in scope %d", action, args, scope)
		}
		name := takeString(&b)
		if _, twice := m[name]; twice {
			t.Fatalf("%s twice", name)
		}
		m[name] = nil
		if action == 1 {
			m[name] = takeTyped(&b)
		}
	}
	return m
}

// greet introduces the peer as HAProxy 2.6.
func (p *peer) greet() *peer {
	p.t.Helper()
	p.send(helloFrom26())
	if r := p.next(); r.kind != 101 {
		p.t.Fatalf("frame %d: %v", r.kind, r.keys())
	}
	return p
}

// ask sends one message and returns the variables.
func (p *peer) ask(items ...any) map[string]any {
	p.t.Helper()
	p.send(notify(7, 1, message("check-request", items...)))
	r := p.next()
	if r.kind != 103 || r.stream != 7 || r.id != 1 {
		p.t.Fatalf("frame %d of stream %d, id %d", r.kind, r.stream, r.id)
	}
	return r.vars(p.t)
}

// ends reads a DISCONNECT with a status, and the end of the connection.
func (p *peer) ends(want status) {
	p.t.Helper()
	r := p.next()
	if r.kind != 102 || r.stream != 0 || r.id != 0 {
		p.t.Fatalf("frame %d of stream %d, id %d, want an AGENT-DISCONNECT", r.kind, r.stream, r.id)
	}
	if keys := r.keys(); keys["status-code"] != int64(want) || keys["message"] != want.String() || len(keys) != 2 {
		p.t.Fatalf("it disconnects with %v, want %d", keys, want)
	}
	p.gone()
}

// gone reads the end of the connection.
func (p *peer) gone() {
	p.t.Helper()
	if r, err := p.read(); err == nil {
		p.t.Fatalf("a frame %d where the connection should end", r.kind)
	} else if !errors.Is(err, io.EOF) {
		p.t.Fatal(err)
	}
}

const apiRules = `
domain: api
limits:
  - name: per-address
    when: { path: /api/* }
    per: [ip]
    allow: 3/hour
    algorithm: sliding_log
`

func newLimiter(t testing.TB, files ...string) *weir.Limiter {
	t.Helper()
	return newLimiterOver(t, nil, files...)
}

func newLimiterOver(t testing.TB, store store.Store, files ...string) *weir.Limiter {
	t.Helper()
	var sources []file.Source
	for i, text := range files {
		sources = append(sources, file.Source{Name: fmt.Sprintf("%d.yaml", i), Data: []byte(text)})
	}
	set, _, err := file.Load(sources, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if store == nil {
		m, err := memory.New(memory.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		store = m
	}
	l, err := weir.New(store, weir.WithRules(set))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// serve serves an agent until the test ends, and returns its address.
func serve(t testing.TB, a *Agent) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- a.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience.Left(t))
		defer cancel()
		if err := a.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return l.Addr().String()
}

// limiterFor is newLimiter over a store for which o is right: with workers, one that has to wait
// for every second decision.
func limiterFor(t testing.TB, o Options, files ...string) *weir.Limiter {
	t.Helper()
	if o.Parallel == 0 {
		return newLimiter(t, files...)
	}
	var n atomic.Int64
	return newLimiterOver(t, waiting(t, func([]store.Charge) bool { return n.Add(1)%2 == 0 }, nil), files...)
}

// waiting is a memory store behind a network.
func waiting(t testing.TB, waits func([]store.Charge) bool, gate <-chan struct{}) *doortest.WaitingStore {
	t.Helper()
	inner, err := memory.New(memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { inner.Close() })
	return &doortest.WaitingStore{Store: inner, Waits: waits, Gate: gate, Far: true}
}

// both runs a test against an agent whose connections decide by themselves, and one with workers.
func both(t *testing.T, test func(t *testing.T, o Options)) {
	t.Run("in order", func(t *testing.T) { test(t, Options{}) })
	t.Run("workers", func(t *testing.T) { test(t, Options{Parallel: 8}) })
}

// logged keeps what a logger writes.
type logged struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *logged) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *logged) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }
