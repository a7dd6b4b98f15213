package httplimit

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

type userKey struct{}

func userOf(r *http.Request) string {
	name, _ := r.Context().Value(userKey{}).(string)
	return name
}

// What a handler in front has put into the context is an attribute as any other, asked for once,
// and none where there is nothing.
func TestAttributesOfTheProgram(t *testing.T) {
	asked := 0
	limit, err := New(newLimiter(t, &clock{}, `limits: [{name: a, per: [user], allow: 1/min}, {name: b, per: [user, plan], allow: 5/min}, {name: c, per: [ip], when: {user: "!*"}, allow: 0/min}]`),
		Options{Attributes: map[string]func(*http.Request) string{
			"user": func(r *http.Request) string { asked++; return userOf(r) },
			"plan": func(*http.Request) string { return "free" },
		}})
	if err != nil {
		t.Fatal(err)
	}
	h := limit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for i, c := range []struct {
		user string
		want int
	}{{"ada", 200}, {"ada", 429}, {"bob", 200}, {"", 429}} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest("GET", "/", nil)
		if c.user != "" {
			r = r.WithContext(context.WithValue(r.Context(), userKey{}, c.user))
		}
		h.ServeHTTP(w, r)
		if w.Code != c.want || asked != i+1 {
			t.Errorf("request %d of %q: %d, want %d; asked %d times", i, c.user, w.Code, c.want, asked)
		}
	}
}

func TestOptionsErrors(t *testing.T) {
	id, err := ParseIdentity(map[string]string{"user": "basic"}, "")
	if err != nil {
		t.Fatal(err)
	}
	f := func(*http.Request) string { return "" }
	for want, o := range map[string]Options{
		`"user" is in the identity as well`:                    {Identity: id, Attributes: map[string]func(*http.Request) string{"user": f}},
		"identity.path: every request has this":                {Attributes: map[string]func(*http.Request) string{"path": f}},
		`the function for "user" is nil`:                       {Attributes: map[string]func(*http.Request) string{"user": nil}},
		"headers: x-delta and x-epoch write X-RateLimit-Limit": {Headers: XDelta | XEpoch},
		`cors.origins: "shop.example" is no origin`:            {CORS: CORS{Origins: []string{"shop.example"}}},
	} {
		if _, err := NewGate(newLimiter(t, &clock{}, `limits: [{name: a, allow: 1/min}]`), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if _, err := NewGate(newLimiter(t, &clock{}, `limits: [{name: a, allow: 1/min}]`), Options{Identity: id, Attributes: map[string]func(*http.Request) string{"a": f, "z": f}}); err != nil {
		t.Error(err)
	}
}

// A rule that needs an attribute which no request has is logged, and limits nothing.
func TestRulesThatLackAnAttribute(t *testing.T) {
	l := wallLimiter(t, "limits:\n- {name: by-user, per: [user], allow: 2/hour}\n- {name: by-ip, when: {header.x-a: b, query.q: x}, per: [ip], allow: 2/hour}\n")
	for _, c := range []struct {
		o    Options
		want string
	}{
		{Options{}, "by-user (no user)"},
		{Options{Attributes: map[string]func(*http.Request) string{"user": func(*http.Request) string { return "" }}}, ""},
	} {
		var log strings.Builder
		c.o.Logger = slog.New(slog.NewTextHandler(&log, nil))
		if _, err := New(l, c.o); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(log.String(), c.want) || (log.Len() > 0) != (c.want != "") {
			t.Errorf("logged %q, want %q", &log, c.want)
		}
	}
}
