package httplimit

import (
	"net/http"
	"testing"

	"github.com/weir-rl/weir/rule"
)

// TestOwnKey: only what identifies one client makes places that are its own.
func TestOwnKey(t *testing.T) {
	id, err := ParseIdentity(map[string]string{
		"session": "cookie:session", "token": "bearer", "login": "basic", "machine": "tls", "tenant": "header:X-Tenant", "key": "header:Authorization",
	}, "")
	if err != nil {
		t.Fatal(err)
	}
	if id, err = id.with(map[string]func(*http.Request) string{"org": func(*http.Request) string { return "" }}); err != nil {
		t.Fatal(err)
	}
	id.names = append(id.names, "z-org", "z-sub")
	id.sources = append(id.sources, source{kind: fromJWT, arg: "org_id"}, source{kind: fromJWT, arg: "sub"})
	for _, c := range []struct {
		own bool
		per []rule.Key
	}{
		{true, []rule.Key{{"ip"}}},
		{true, []rule.Key{{"user"}}},
		{true, []rule.Key{{"user", "ip"}}},
		{true, []rule.Key{{"path"}, {"session"}}},
		{true, []rule.Key{{"token"}}},
		{true, []rule.Key{{"login"}}},
		{true, []rule.Key{{"machine"}}},
		{true, []rule.Key{{"key"}}},
		{true, []rule.Key{{"header.authorization"}}},
		{true, []rule.Key{{"z-sub"}}},
		{false, nil},
		{false, []rule.Key{{"path"}, {"method"}, {"host"}}},
		{false, []rule.Key{{"header.x-tenant"}}},
		{false, []rule.Key{{"header.x-api-key"}}},
		{false, []rule.Key{{"query.tenant"}}},
		{false, []rule.Key{{"tenant"}}},
		{false, []rule.Key{{"tenant", "ip"}}},
		{false, []rule.Key{{"ip", "header.x-tenant"}}},
		{false, []rule.Key{{"org"}}},
		{false, []rule.Key{{"z-org"}}},
		{false, []rule.Key{{"unknown"}}},
	} {
		if got := id.ownKey(c.per); got != c.own {
			t.Errorf("%v: %v", c.per, got)
		}
	}
	if none := (*Identity)(nil); !none.ownKey([]rule.Key{{"ip"}}) || none.ownKey([]rule.Key{{"session"}}) {
		t.Error("without an identity")
	}
}
