package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/door/answer"
	"github.com/weir-rl/weir/internal/door/auth"
	"github.com/weir-rl/weir/internal/testkit/doortest"
	"github.com/weir-rl/weir/store"
)

const tokenRules = `
domain: shop
limits:
  - {name: tokens, per: [user], allow: 1000/hour, algorithm: sliding_log}
  - {name: quick, when: {kind: quick}, per: [user], allow: 100000/hour, cost_timeout: 20s}
  - {name: big, when: {kind: big}, per: [team], allow: 1000000/hour}
  - {name: queue, when: {kind: queue}, allow: {rate: 1/s, burst: 4}, algorithm: leaky_bucket}
`

// reserved is the part of an answer that only reservations have.
type reserved struct {
	Allowed     bool
	Reservation *string
	ExpiresIn   *float64 `json:"expires_in"`
	Limits      []struct{ Remaining int64 }
}

func readReserved(t *testing.T, a doortest.Answer) reserved {
	t.Helper()
	var r reserved
	if err := json.Unmarshal([]byte(a.Body), &r); err != nil {
		t.Fatalf("%v in %s", err, a.Body)
	}
	return r
}

// The example of docs/guides/costs.md: an estimate is reserved, the real cost committed.
func TestReserveAnswer(t *testing.T) {
	l, _, _ := doortest.NewLimiter(t, tokenRules)
	h := New(l, Options{})
	a := doortest.Ask(h, doortest.Stranger, "POST", "/api/v1/reserve",
		`{"attributes": {"user": "ada"}, "hits": 900, "timeout": 120}`)
	r := readReserved(t, a)
	if a.Status != 200 || r.Reservation == nil || len(*r.Reservation) != 26 || r.ExpiresIn == nil ||
		*r.ExpiresIn != 120 {
		t.Fatalf("%d %s", a.Status, a.Body)
	}
	doortest.EqualJSON(t, a.Body, fmt.Sprintf(`{"allowed": true, "domain": "shop", "limited_by": [], "retry_after": 0,
		"limits": [{"name": "tokens", "algorithm": "sliding_log", "allowed": true, "limit": 1000, "window": 3600, "remaining": 100,
		"retry_after": 0, "reset_after": 3600, "near_limit": true, "soft_exceeded": false, "shadow": false, "delay": 0}],
		"reservation": %q, "expires_in": 120}`, *r.Reservation))
	for name, want := range map[string]string{"Content-Type": "application/json", "Cache-Control": "no-store",
		"X-RateLimit-Remaining": "100"} {
		if got := a.Header.Get(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	a = doortest.Ask(h, doortest.Stranger, "POST", "/api/v1/reserve", `{"attributes": {"user": "ada"}, "hits": 900}`)
	if none := readReserved(t, a); a.Status != 429 || none.Allowed || none.Reservation != nil ||
		none.ExpiresIn != nil || a.Header.Get("Retry-After") != "3600" {
		t.Fatalf("%d %s", a.Status, a.Body)
	}
	commit := fmt.Sprintf(`{"reservation": %q, "hits": 312}`, *r.Reservation)
	if a = doortest.Ask(h, doortest.Stranger, "POST", "/api/v1/commit", commit); a.Status != 204 || a.Body != "" ||
		a.Header.Get("Cache-Control") != "no-store" {
		t.Fatalf("%d %s", a.Status, a.Body)
	}
	if a = doortest.Ask(h, doortest.Stranger, "POST", "/api/v1/commit", commit); a.Status != 404 ||
		!strings.Contains(a.Body, `"field":"reservation"`) {
		t.Fatalf("again: %d %s", a.Status, a.Body)
	}
	if a = doortest.Ask(h, doortest.Stranger, "GET", "/api/v1/limit?user=ada&hits=0", ""); !strings.Contains(a.Body,
		`"remaining":688,`) {
		t.Fatalf("after the commit: %s", a.Body)
	}
}

func TestReserveSteps(t *testing.T) {
	l, _, clock := doortest.NewLimiter(t, tokenRules)
	h := New(l, Options{Trust: auth.Trust{Peers: doortest.Loopback}})
	remaining := func(want int64) {
		t.Helper()
		if a := doortest.Ask(h, doortest.Stranger, "GET", "/api/v1/limit?user=bob&hits=0", ""); !strings.Contains(
			a.Body, fmt.Sprintf(`"remaining":%d,`, want)) {
			t.Errorf("want %d left: %s", want, a.Body)
		}
	}
	reserve := func(peer, body string, status int) reserved {
		t.Helper()
		a := doortest.Ask(h, peer, "POST", "/api/v1/reserve", body)
		if a.Status != status {
			t.Fatalf("%s: got %d %s", body, a.Status, a.Body)
		}
		if status == http.StatusForbidden {
			return reserved{}
		}
		return readReserved(t, a)
	}
	// Cancelled.
	r := reserve(doortest.Stranger, `{"attributes":{"user":"bob"},"hits":400}`, 200)
	if *r.ExpiresIn != 300 {
		t.Errorf("the default is %v", *r.ExpiresIn)
	}
	remaining(600)
	if a := doortest.Ask(h, doortest.Stranger, "POST", "/api/v1/cancel", fmt.Sprintf(`{"reservation":%q}`, *r.Reservation)); a.Status != 204 {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	remaining(1000)
	if a := doortest.Ask(h, doortest.Stranger, "POST", "/api/v1/cancel", fmt.Sprintf(`{"reservation":%q}`, *r.Reservation)); a.Status != 404 {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	// Timed out; the shortest time-out of a rule holds.
	r = reserve(doortest.Stranger, `{"attributes":{"user":"bob","kind":"quick"},"hits":400,"timeout":3600}`, 200)
	if *r.ExpiresIn != 20 {
		t.Errorf("a rule says 20 s, the answer %v", *r.ExpiresIn)
	}
	clock.US += (21 * time.Second).Microseconds()
	if n, err := l.Reservations().Sweep(t.Context()); n != 1 || err != nil {
		t.Errorf("swept %d, %v", n, err)
	}
	remaining(1000)
	if a := doortest.Ask(h, doortest.Stranger, "POST", "/api/v1/commit", fmt.Sprintf(`{"reservation":%q,"hits":5}`, *r.Reservation)); a.Status != 404 {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	remaining(1000)
	// Nothing is held of a queue.
	if r = reserve(doortest.Stranger, `{"attributes":{"kind":"queue"}}`, 200); !r.Allowed || r.Reservation != nil ||
		r.ExpiresIn != nil {
		t.Errorf("%+v", r)
	}
	// More than 1,000 hits need trust, in both steps.
	reserve(doortest.Stranger, `{"attributes":{"kind":"big","team":"a"},"hits":1001}`, 403)
	r = reserve(doortest.Friend, `{"attributes":{"kind":"big","team":"a"},"hits":50000}`, 200)
	body := fmt.Sprintf(`{"reservation":%q,"hits":1001}`, *r.Reservation)
	if a := doortest.Ask(h, doortest.Stranger, "POST", "/api/v1/commit", body); a.Status != 403 ||
		!strings.Contains(a.Body, `"field":"hits"`) {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	if a := doortest.Ask(h, doortest.Friend, "POST", "/api/v1/commit", body); a.Status != 204 {
		t.Errorf("the refused commit took the reservation: %d %s", a.Status, a.Body)
	}
	r = reserve(doortest.Stranger, `{"attributes":{"kind":"big","team":"a"},"hits":1}`, 200)
	if a := doortest.Ask(h, doortest.Stranger, "POST", "/api/v1/commit", fmt.Sprintf(`{"reservation":%q,"hits":1000}`, *r.Reservation)); a.Status != 204 {
		t.Errorf("%d %s", a.Status, a.Body)
	}
}

func TestBadReserveBodies(t *testing.T) {
	l, store, _ := doortest.NewLimiter(t, tokenRules)
	h := New(l, Options{})
	const id = "AAAAAAAAAAAAAAAAAAAAAAAAAA"
	for _, c := range []struct {
		path, body, field string
		status            int
	}{
		{"reserve", ``, "body", 400},
		{"reserve", `[]`, "body", 400},
		{"reserve", `{"hits":0}`, "hits", 400},
		{"reserve", `{"hits":-1}`, "hits", 400},
		{"reserve", `{"hits":2147483648}`, "hits", 400},
		{"reserve", `{"timeout":0}`, "timeout", 400},
		{"reserve", `{"timeout":-1}`, "timeout", 400},
		{"reserve", `{"timeout":3600.1}`, "timeout", 400},
		{"reserve", `{"timeout":1e400}`, "timeout", 400},
		{"reserve", `{"timeout":"60"}`, "timeout", 400},
		{"reserve", `{"timeout":null}`, "timeout", 400},
		{"reserve", `{"timeout":NaN}`, "timeout", 400},
		{"reserve", `{"timeout":60,"timeout":60}`, "timeout", 400},
		{"reserve", `{"attributes":{"user":"ada"},"time":60}`, "time", 400},
		{"reserve", `{"attributes":{"user":1}}`, "attributes.user", 400},
		{"reserve", `{} {}`, "body", 400},
		{"limit", `{"timeout":60}`, "timeout", 400},
		{"commit", ``, "body", 400},
		{"commit", `{}`, "reservation", 400},
		{"commit", `{"reservation":"` + id + `"}`, "hits", 400},
		{"commit", `{"reservation":"` + id + `","hits":-1}`, "hits", 400},
		{"commit", `{"reservation":"` + id + `","hits":1.5}`, "hits", 400},
		{"commit", `{"reservation":"` + id + `","hits":2147483648}`, "hits", 400},
		{"commit", `{"reservation":"` + id + `","hits":1,"hits":1}`, "hits", 400},
		{"commit", `{"reservation":"` + id + `","reservation":"` + id + `","hits":1}`, "reservation", 400},
		{"commit", `{"reservation":7,"hits":1}`, "reservation", 400},
		{"commit", `{"reservation":null,"hits":1}`, "reservation", 400},
		{"commit", `{"reservation":"` + id + `","hits":1,"x":1}`, "x", 400},
		{"commit", `{"reservation":"` + id + `","hits":1}x`, "body", 400},
		{"commit", `{"reservation":"` + id + `","hits":1}`, "reservation", 404},
		{"commit", `{"reservation":"","hits":1}`, "reservation", 404},
		{"commit", `{"reservation":"\u0000\r\n*1","hits":1}`, "reservation", 404},
		{"commit", `{"reservation":"` + strings.Repeat("A", 1<<19) + `","hits":1}`, "reservation", 404},
		{"commit", `{"reservation":"` + strings.Repeat("A", 1<<20) + `","hits":1}`, "body", 413},
		{"cancel", `{}`, "reservation", 400},
		{"cancel", `{"reservation":"` + id + `","hits":1}`, "hits", 400},
		{"cancel", `{"reservation":"` + id + `"}`, "reservation", 404},
	} {
		a := doortest.Ask(h, doortest.Stranger, "POST", "/api/v1/"+c.path, c.body)
		short := c.body[:min(len(c.body), 80)]
		if a.Status != c.status || !strings.Contains(a.Body, fmt.Sprintf(`"field":%q`, c.field)) ||
			a.Header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s %s: got %d %s, want %d naming %s", c.path, short, a.Status, a.Body, c.status, c.field)
		}
	}
	if s := l.Reservations().Stats(); s != (weir.ReservationStats{}) {
		t.Errorf("bad bodies made reservations: %+v", s)
	}
	_ = store
}

// notHolding is a store that decides, and cannot hold a note.
type notHolding struct{ store.Reserver }

func (notHolding) Hold(context.Context, string, []byte, time.Duration) error {
	return doortest.ErrStore
}
func (notHolding) Claim(context.Context, string) ([]byte, bool, error) {
	return nil, false, doortest.ErrStore
}

func TestReserveStoreError(t *testing.T) {
	_, s, _ := doortest.NewLimiter(t, tokenRules)
	rules := tokenRules + "  - {name: open, when: {kind: open}, allow: 100/min, on_store_error: allow}\n"
	for name, tt := range map[string]struct {
		store  store.Store
		status int
		open   int // where the rule says allow
	}{
		// it holds no reservations at all
		"no answer":       {doortest.FailingStore{Err: doortest.ErrStore}, 501, 501},
		"notes fail":      {notHolding{any(s).(store.Reserver)}, 503, 200},
		"no reservations": {struct{ store.Store }{s}, 501, 501},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := weir.New(tt.store, weir.WithRules(doortest.Load(t, rules)))
			if err != nil {
				t.Fatal(err)
			}
			h := New(l, Options{})
			// What the pool holds of a request before must not decide the next one.
			doortest.Ask(h, doortest.Stranger, "POST", "/api/v1/limit", `{"attributes":{"kind":"open"}}`)
			a := doortest.Ask(h, doortest.Stranger, "POST", "/api/v1/reserve", `{"attributes":{"user":"ada"}}`)
			if a.Status != tt.status || a.Header.Get("Cache-Control") != "no-store" ||
				strings.Contains(a.Body, doortest.ErrStore.Error()) {
				t.Errorf("got %d %s", a.Status, a.Body)
			}
			if a = doortest.Ask(h, doortest.Stranger, "POST", "/api/v1/reserve", `{"attributes":{"kind":"open"}}`); a.Status != tt.open {
				t.Errorf("on_store_error: allow: got %d %s", a.Status, a.Body)
			}
			if a.Status == 200 {
				if r := readReserved(t, a); r.Reservation != nil || !r.Allowed || len(r.Limits) != 0 {
					t.Errorf("%s", a.Body)
				}
			}
			a = doortest.Ask(h, doortest.Stranger, "POST", "/api/v1/commit",
				`{"reservation":"AAAAAAAAAAAAAAAAAAAAAAAAAA","hits":1}`)
			if a.Status != tt.status || strings.Contains(a.Body, doortest.ErrStore.Error()) {
				t.Errorf("commit: got %d %s", a.Status, a.Body)
			}
		})
	}
}

// FuzzReserve: to any input, the three paths answer as described, and never hold more than was
// admitted.
func FuzzReserve(f *testing.F) {
	for _, s := range []string{
		`{"attributes": {"user": "ada"}, "hits": 900, "timeout": 120}`, `{"reservation": "AAAAAAAAAAAAAAAAAAAAAAAAAA", "hits": 312}`,
		`{"reservation": "AAAAAAAAAAAAAAAAAAAAAAAAAA"}`, `{"timeout":1e-9}`, `{"timeout":1e-400}`, `{"hits":1,"timeout":3600}`, `{"hits":1}{}`, `{"a":`, `{"":`, "{\"domain\":\"\xc0\"}",
	} {
		f.Add([]byte(s))
	}
	l, _, _ := doortest.NewLimiter(f, tokenRules)
	h := New(l, Options{})
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, path := range []string{"reserve", "commit", "cancel"} {
			before := l.Reservations().Stats().Made
			a := doortest.Ask(h, doortest.Stranger, "POST", "/api/v1/"+path, string(body))
			made := l.Reservations().Stats().Made - before
			switch a.Status {
			case 200, 429:
				r := readReserved(t, a)
				if path != "reserve" || (r.Reservation != nil) != (made == 1) ||
					r.Reservation != nil && !(*r.ExpiresIn > 0 && *r.ExpiresIn <= 3600) {
					t.Errorf("%s %q: %d %s", path, body, a.Status, a.Body)
				}
			case 400, 403, 404, 413:
				if made != 0 || a.Header.Get("Content-Type") != "application/problem+json" {
					t.Errorf("%s %q: %d %s", path, body, a.Status, a.Body)
				}
			default:
				t.Errorf("%s %q: %d %s", path, body, a.Status, a.Body)
			}
			var d decoder
			var err error
			if path == "reserve" {
				d = decoder{s: string(body)}
				_, err = d.reserve(new(question))
			} else {
				d = decoder{s: string(body)}
				_, _, err = d.commit(path == "cancel")
			}
			if _, ok := errors.AsType[*answer.FieldError](err); err != nil && !ok {
				t.Errorf("%s %q: the error %v is of no field", path, body, err)
			}
			// A body that is read is JSON.
			if err == nil && !json.Valid(body) {
				t.Errorf("%s %q: taken, but no JSON", path, body)
			}
		}
	})
}
