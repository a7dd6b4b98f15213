// Package demo is the common part of the examples: rules, and an authentication that stands for
// your own.
package demo

import (
	"context"
	_ "embed"
	"net/http"
	"strings"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store/memory"
)

//go:embed rules.yaml
var rules []byte

// NewLimiter returns a limiter with the rules of rules.yaml, whose counters live in this process.
func NewLimiter() (*weir.Limiter, error) {
	set, _, err := file.Load([]file.Source{{Name: "rules.yaml", Data: rules}}, file.Options{})
	if err != nil {
		return nil, err
	}
	store, err := memory.New(memory.Options{})
	if err != nil {
		return nil, err
	}
	return weir.New(store, weir.WithRules(set))
}

// Options are the middleware's options: the attribute user is the user whom Authenticate found.
func Options() httplimit.Options {
	return httplimit.Options{
		Attributes: map[string]func(*http.Request) string{"user": func(r *http.Request) string { return UserOf(r.Context()) }},
		CORS:       httplimit.CORS{Origins: []string{"https://shop.example"}},
	}
}

// tokens stand for sessions, signed tokens, or any other proof of who asks.
var tokens = map[string]string{"ada-token": "ada", "bob-token": "bob"}

type userKey struct{}

// Authenticate puts the user that a bearer token belongs to into the context. Who has none is a
// guest.
func Authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		next.ServeHTTP(w, r.WithContext(WithToken(r.Context(), token)))
	})
}

// WithToken returns a context with the user that a token belongs to.
func WithToken(ctx context.Context, token string) context.Context {
	return context.WithValue(ctx, userKey{}, tokens[token])
}

// UserOf returns the user of a context; "" for a guest.
func UserOf(ctx context.Context) string {
	user, _ := ctx.Value(userKey{}).(string)
	return user
}
