package lint

import (
	"slices"
	"strings"

	"github.com/weir-rl/weir/internal/util/httpfield"
	"github.com/weir-rl/weir/rule"
)

// secrets warns of counters whose keys hold what lets a client in: a store and its backups, lists
// of keys and bans, and the operator's page then have it as it is.
func (l *linter) secrets(rules []*rule.Rule) {
	for _, r := range rules {
		if r.Unlimited || len(r.Windows) == 0 {
			continue
		}
		if r.Lyft != nil {
			for _, e := range r.Lyft.Path {
				if (e.Value == "" || strings.HasSuffix(e.Value, "*")) && secretKey(e.Key) {
					l.warn(KeptSecret, r, r.Pos, "let the proxy that asks send a hash of it",
						"key %s: its values are kept and shown as they are", e.Key)
				}
			}
			continue
		}
		for _, k := range r.Per {
			for _, attribute := range k {
				if pinned(r, attribute) {
					continue // the rules have its values anyway
				}
				if source := l.secretSource(attribute); source != "" {
					l.warn(KeptSecret, r, r.Pos, "take it from apikey, or from hash:"+source,
						"per %s: identity takes it from %s, whose values are kept and shown as they are", attribute, source)
				} else if what := secretField(attribute); what != "" {
					l.warn(KeptSecret, r, r.Pos, what, "per %s: its values are kept and shown as they are", attribute)
				}
			}
		}
	}
}

// secretKeys are the keys of descriptors whose names suggest a credential. Parts of names say too
// little here: tokens are a number of them.
var secretKeys = []string{
	"authorization", "proxy-authorization", "cookie", "api-key", "apikey", "goog-api-key", "token", "access-token", "auth-token", "bearer-token", "bearer",
	"session", "session-id", "password",
}

func secretKey(key string) bool {
	key = strings.ReplaceAll(strings.ToLower(key), "_", "-")
	return slices.Contains(secretKeys, strings.TrimPrefix(key, "x-"))
}

// secretSource returns the source from which the configuration takes an attribute, if that is a
// field or a cookie that lets somebody in; "" for others.
func (l *linter) secretSource(attribute string) string {
	source := strings.TrimSpace(l.options.Identity[attribute])
	kind, _, _ := strings.Cut(source, ":")
	if (kind == "header" || kind == "cookie") && httpfield.SecretAttribute(source) {
		return source
	}
	return ""
}

// secretField returns the replacement for a field of the header or a parameter of the query that
// holds a credential; "" for other attributes.
func secretField(attribute string) string {
	if !httpfield.SecretAttribute(attribute) {
		return ""
	}
	if name, ok := strings.CutPrefix(attribute, "header."); ok {
		return "let identity take it, as in: key: apikey, or key: \"hash:header:" + name + "\", and write per: [key]"
	}
	if strings.HasPrefix(attribute, "query.") {
		return "let clients send it in the header, and identity take it: key: apikey"
	}
	return ""
}
