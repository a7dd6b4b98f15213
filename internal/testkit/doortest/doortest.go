// Package doortest holds the common parts of the doors' tests: limiters with a clock that stands
// still (NewLimiter), questions over HTTP (Ask), and servers in processes of their own, whose
// processor time is measured (CompareCPU).
package doortest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store/memory"
)

// Tokens returns tokens that were loaded from a file.
func Tokens[T any, P interface {
	*T
	Load(path string) error
}](t testing.TB, tokens ...string) P {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(path, []byte(strings.Join(tokens, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out := P(new(T))
	if err := out.Load(path); err != nil {
		t.Fatal(err)
	}
	return out
}

const LoginRules = `
domain: shop
limits:
  - name: login
    when: { path: /login }
    allow: 3/hour
    algorithm: sliding_log
`

var ErrStore = errors.New("connection refused to 10.0.0.7")

const ShopRules = `
domain: shop
limits:
  - name: api-per-user
    when: { path: "/api/**" }
    per: [user]
    allow: { rate: 10/min, burst: 10 }
  - name: two
    when: { kind: two }
    per: [user]
    allow: [2/min, 500/hour]
    algorithm: sliding_log
  - name: seen
    when: { kind: shadow }
    allow: 1/min
    on_limit: shadow
  - name: queue
    when: { kind: queue }
    allow: { rate: 1/s, burst: 4 }
    algorithm: leaky_bucket
  - name: slots
    when: { kind: slots }
    allow: 1 concurrent
  - name: never
    when: { kind: never }
    allow: 0/min
  - name: gentle
    when: { kind: soft }
    allow: 10/min
    throttle: { soft: 10% }
    algorithm: sliding_log
`

// Clock is a store's clock that stands still until a test moves it.
type Clock struct{ US int64 }

func (c *Clock) Now() int64 { return c.US }

func NewLimiter(t testing.TB, rules ...string) (*weir.Limiter, *memory.Store, *Clock) {
	t.Helper()
	clock := &Clock{US: 1_767_225_600_000_000}
	store, err := memory.New(memory.Options{Clock: clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	l, err := weir.New(store, weir.WithRules(Load(t, rules...)))
	if err != nil {
		t.Fatal(err)
	}
	return l, store, clock
}

func Load(t testing.TB, rules ...string) *rule.Set {
	t.Helper()
	var files []file.Source
	for i, r := range rules {
		files = append(files, file.Source{Name: fmt.Sprintf("%d.yaml", i), Data: []byte(r)})
	}
	set, _, err := file.Load(files, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

var Loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}

// Answer is a client's answer.
type Answer struct {
	Status int
	Header http.Header
	Body   string
}

// Ask sends one request to h as if from peer. Holding holds the answer against a description.
func Ask(h http.Handler, peer, method, target, body string, headers ...string) Answer {
	a := AskStub(h, peer, method, target, body, headers...)
	hold(method, target, a)
	return a
}

// AskStub is Ask for a handler that stands in for the one that is described.
func AskStub(h http.Handler, peer, method, target, body string, headers ...string) Answer {
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	if body == "" {
		r.Body = http.NoBody
	}
	r.RemoteAddr = peer
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return Answer{w.Code, w.Result().Header, w.Body.String()}
}

const (
	Friend   = "127.0.0.1:4711"
	Stranger = "192.0.2.9:4711"
)

// EqualJSON compares two JSON texts by value.
func EqualJSON(t *testing.T, got, want string) {
	t.Helper()
	var g, w any
	if err := json.Unmarshal([]byte(got), &g); err != nil {
		t.Fatalf("%v in %s", err, got)
	}
	if err := json.Unmarshal([]byte(want), &w); err != nil {
		t.Fatalf("%v in %s", err, want)
	}
	gb, _ := json.Marshal(g)
	wb, _ := json.Marshal(w)
	if string(gb) != string(wb) {
		t.Errorf("got  %s\nwant %s", gb, wb)
	}
}
