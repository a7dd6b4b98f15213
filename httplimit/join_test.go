package httplimit

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/dunglas/httpsfv"
)

// lines are header fields, by names as docs spell them.
type lines map[string]string

func (f lines) header() http.Header {
	h := http.Header{}
	for name, value := range f {
		for line := range strings.SplitSeq(value, "\n") {
			h.Add(name, line)
		}
	}
	return h
}

// A header that describes another limit already is joined with the fields that Write adds.
func TestWriteBesideAnother(t *testing.T) {
	const rules = "limits: [{name: ours, allow: 10/hour, algorithm: fixed_window, cost: 5}]"
	const policy, left = `"ours";q=10;w=3600`, `"ours";r=5;t=3600` // half is left
	own := lines{"X-RateLimit-Limit": "10", "X-RateLimit-Remaining": "5", "X-RateLimit-Reset": "3600"}
	for _, c := range []struct {
		name    string
		family  Headers
		refused bool
		have    lines
		want    lines
	}{
		{"a smaller share stays as a whole", 0, false,
			lines{"X-RateLimit-Limit": "100000", "X-RateLimit-Remaining": "49999", "X-RateLimit-Reset": "1767229200"},
			lines{"X-RateLimit-Limit": "100000", "X-RateLimit-Remaining": "49999", "X-RateLimit-Reset": "1767229200",
				"RateLimit-Policy": policy, "RateLimit": left}},
		{"a larger one goes as a whole", 0, false,
			lines{"X-RateLimit-Limit": "7", "X-RateLimit-Remaining": "4", "X-RateLimit-Retry-After": "9"},
			lines{"X-RateLimit-Limit": "10", "X-RateLimit-Remaining": "5", "X-RateLimit-Reset": "3600",
				"RateLimit-Policy": policy, "RateLimit": left}},
		{"the same share: what is there stays", XDelta, false,
			lines{"X-RateLimit-Limit": "2", "X-RateLimit-Remaining": "1"},
			lines{"X-RateLimit-Limit": "2", "X-RateLimit-Remaining": "1"}},
		{"nothing is left", XDelta, false, lines{"X-RateLimit-Remaining": "0", "Retry-After": "7"}, lines{"X-RateLimit-Remaining": "0", "Retry-After": "7"}},
		{"numbers beyond 32 bits", XDelta, false,
			lines{"X-RateLimit-Limit": "9007199254740991", "X-RateLimit-Remaining": "4503599627370495"},
			lines{"X-RateLimit-Limit": "9007199254740991", "X-RateLimit-Remaining": "4503599627370495"}},
		{"Envoy's form", XDelta, false,
			lines{"X-RateLimit-Limit": "100, 100;w=60", "X-RateLimit-Remaining": "3", "X-RateLimit-Reset": "9"},
			lines{"X-RateLimit-Limit": "100, 100;w=60", "X-RateLimit-Remaining": "3", "X-RateLimit-Reset": "9"}},
		{"what cannot be read", XDelta, false, lines{"X-RateLimit-Limit": "a lot", "X-RateLimit-Remaining": "2"}, own},
		{"no limit", XDelta, false, lines{"X-RateLimit-Remaining": "2"}, own},
		{"no number that remains", XDelta, false, lines{"X-RateLimit-Limit": "2"}, own},
		{"a refusal of ours", XDelta, true, lines{"X-RateLimit-Limit": "100", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "9", "Retry-After": "9"},
			lines{"X-RateLimit-Limit": "10", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "3600",
				"X-RateLimit-Retry-After": "3600", "Retry-After": "3600"}},
		{"lists", Draft11, false, lines{"RateLimit-Policy": `"theirs";q=7;w=1`, "RateLimit": `"theirs";r=1;t=1`},
			lines{"RateLimit-Policy": `"theirs";q=7;w=1, ` + policy, "RateLimit": `"theirs";r=1;t=1, ` + left}},
		{"lists of several lines", Draft11, false, lines{"RateLimit": "\"a\";r=1;t=1\n\"b\";r=2;t=1"},
			lines{"RateLimit-Policy": policy, "RateLimit": `"a";r=1;t=1, "b";r=2;t=1, ` + left}},
		{"what was written before", Draft11, false, lines{"RateLimit-Policy": `"a";q=7, ` + policy, "RateLimit": `"a";r=1, ` + left},
			lines{"RateLimit-Policy": `"a";q=7, ` + policy, "RateLimit": `"a";r=1, ` + left}},
		{"a malformed list", Draft11, false, lines{"RateLimit": `"a;r=1`}, lines{"RateLimit-Policy": policy, "RateLimit": left}},
		{"draft 7, further", Draft11, false, lines{"RateLimit": "limit=100, remaining=51, reset=5", "RateLimit-Policy": "100;w=60"},
			lines{"RateLimit-Policy": policy, "RateLimit": left}},
		{"draft 7, nearer", Draft11, false, lines{"RateLimit": "limit=100, remaining=49, reset=5", "RateLimit-Policy": "100;w=60"},
			lines{"RateLimit": "limit=100, remaining=49, reset=5", "RateLimit-Policy": "100;w=60"}},
		{"draft 3", Draft03, false, lines{"RateLimit-Limit": "100", "RateLimit-Remaining": "49", "RateLimit-Reset": "9", "RateLimit-Policy": "100;w=60"},
			lines{"RateLimit-Limit": "100", "RateLimit-Remaining": "49", "RateLimit-Reset": "9",
				"RateLimit-Policy": "100;w=60, 10;w=3600"}},
		{"draft 3, further", Draft03, false, lines{"RateLimit-Limit": "100", "RateLimit-Remaining": "51"},
			lines{"RateLimit-Limit": "10", "RateLimit-Remaining": "5", "RateLimit-Reset": "3600",
				"RateLimit-Policy": "10;w=3600"}},
		{"marks", XDelta, false, lines{"X-RateLimit-Soft": "exceeded", "X-RateLimit-Warning": `near_limit; limit="theirs"`, "X-RateLimit-Decision": "4vq8r2mxw0c7e"},
			lines{"X-RateLimit-Limit": "10", "X-RateLimit-Remaining": "5", "X-RateLimit-Reset": "3600",
				"X-RateLimit-Soft": "exceeded", "X-RateLimit-Warning": `near_limit; limit="theirs"`, "X-RateLimit-Decision": "4vq8r2mxw0c7e"}},
		{"no family", Off, false, lines{"X-RateLimit-Limit": "7", "X-RateLimit-Remaining": "4", "RateLimit": `"a";r=1`},
			lines{"X-RateLimit-Limit": "7", "X-RateLimit-Remaining": "4", "RateLimit": `"a";r=1`}},
		{"another family", Draft11, false, lines{"X-RateLimit-Limit": "7", "X-RateLimit-Remaining": "4"},
			lines{"X-RateLimit-Limit": "7", "X-RateLimit-Remaining": "4", "RateLimit-Policy": policy,
				"RateLimit": left}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLimiter(t, &clock{}, rules)
			if c.refused {
				decide(t, l, 2)
			}
			h := c.have.header()
			c.family.Write(h, decide(t, l, 1))
			if c.refused {
				h.Del("X-RateLimit-Decision")
			}
			if want := c.want.header(); !maps.EqualFunc(h, want, slices.Equal) {
				t.Errorf("got  %v\nwant %v", h, want)
			}
			again := h.Clone()
			c.family.Write(again, decide(t, l, 0)) // the same numbers
			if !c.refused && !maps.EqualFunc(h, again, slices.Equal) {
				t.Errorf("written twice: %v", again)
			}
		})
	}
}

// toldOf is what an answer says of the limits on its way.
func toldOf(t *testing.T, h http.Header) string {
	t.Helper()
	for _, name := range []string{"X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset", "Ratelimit",
		"Ratelimit-Policy"} {
		if n := len(h[name]); n > 1 {
			t.Errorf("%d fields %s: %q", n, name, h[name])
		}
	}
	var names []string
	for _, field := range []string{"Ratelimit", "Ratelimit-Policy"} {
		list, err := httpsfv.UnmarshalList(h[field])
		if err != nil {
			t.Errorf("%s: %q: %v", field, h[field], err)
		}
		for _, member := range list {
			names = append(names, fmt.Sprint(member.(httpsfv.Item).Value))
		}
	}
	return fmt.Sprintf("%s of %s, %s", h.Get("X-RateLimit-Remaining"), h.Get("X-RateLimit-Limit"),
		strings.Join(names, " "))
}

// Limits one behind the other: what the client reads is of the nearest of them, wherever that is on
// the way, and names all.
func TestLimitsOneBehindTheOther(t *testing.T) {
	const wide, narrow = "limits: [{name: wide, allow: 100/hour}]", "limits: [{name: narrow, allow: 3/hour}]"
	limit := func(t *testing.T, rules string, next http.Handler) http.Handler {
		return newMiddleware(t, newLimiter(t, &clock{}, rules), Options{}, next.ServeHTTP)
	}
	says := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/writes":
			_, _ = w.Write([]byte("hello"))
		case "/flushes":
			_ = http.NewResponseController(w).Flush()
		}
	})
	behind := func(t *testing.T, server http.Handler) http.Handler {
		s := httptest.NewServer(server)
		t.Cleanup(s.Close)
		at, err := url.Parse(s.URL)
		if err != nil {
			t.Fatal(err)
		}
		return httputil.NewSingleHostReverseProxy(at)
	}
	for name, make := range map[string]func(*testing.T) http.Handler{
		"middleware in middleware": func(t *testing.T) http.Handler { return limit(t, wide, limit(t, narrow, says)) },
		"the other way round":      func(t *testing.T) http.Handler { return limit(t, narrow, limit(t, wide, says)) },
		"a reverse proxy":          func(t *testing.T) http.Handler { return limit(t, wide, behind(t, limit(t, narrow, says))) },
		"a reverse proxy, the other way round": func(t *testing.T) http.Handler {
			return limit(t, narrow, behind(t, limit(t, wide, says)))
		},
		"three": func(t *testing.T) http.Handler {
			return limit(t, "limits: [{name: wider, allow: 100000/hour}]",
				limit(t, wide, behind(t, limit(t, narrow, says))))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewServer(make(t))
			t.Cleanup(s.Close)
			for i, path := range []string{"/writes", "/flushes", "/nothing", "/refused", "/refused"} {
				resp, err := http.Get(s.URL + path)
				if err != nil {
					t.Fatal(err)
				}
				_ = resp.Body.Close()
				got, want := toldOf(t, resp.Header), fmt.Sprintf("%d of 3", max(0, 2-i))
				if !strings.HasPrefix(got, want) || strings.Count(got, "narrow") != 2 ||
					(resp.StatusCode == 429) != (i > 2) || (resp.Header.Get("Retry-After") != "") != (i > 2) {
					t.Errorf("%s: %s, %s, want %s; %v", path, resp.Status, got, want, resp.Header)
				}
				if i < 3 && strings.Count(got, "wide") < 2 {
					t.Errorf("%s: %s: not all limits are named", path, got)
				}
			}
		})
	}
}

// What a handler puts in the place of our fields stays.
func TestHandlersMayChangeTheFields(t *testing.T) {
	h := newMiddleware(t, newLimiter(t, &clock{}, "limits: [{name: a, allow: 10/hour}]"), Options{},
		func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-RateLimit-Limit", "99")
			w.Header().Set("X-RateLimit-Remaining", "98")
			w.Header().Del("RateLimit")
		})
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	if got := w.Result().Header; got.Get("X-RateLimit-Limit") != "99" || got.Get("X-RateLimit-Remaining") != "98" ||
		got.Get("RateLimit") != "" || got.Get("RateLimit-Policy") == "" {
		t.Errorf("%v", got)
	}
}
