package server

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/internal/admin/metrics"
	"github.com/weir-rl/weir/internal/server/settings"
)

// clientSettings say how clients are known.
var clientSettings = []setting{
	{Path: "identity", Kind: settings.Mapping,
		Help: "attribute=source pairs: header:NAME, cookie:NAME, hash:header:NAME, hash:cookie:NAME, apikey, basic, bearer, tls, jwt:CLAIM",
		Set: func(c *Config, items []string) error {
			c.identity = map[string]string{}
			for _, item := range items {
				name, source, ok := strings.Cut(item, "=")
				if !ok || name == "" || source == "" {
					return fmt.Errorf("%q is no attribute=source, such as user=header:X-User-Id", item)
				}
				if _, twice := c.identity[name]; twice {
					return fmt.Errorf("%q is given twice", name)
				}
				c.identity[name] = source
			}
			return nil
		}},
	{Path: "jwt.jwks",
		Help: "file of the keys that verify tokens for jwt: sources",
		Set:  settings.String(func(c *Config) *string { return &c.jwks })},
	{Path: "client_ip.trusted_proxies", Kind: settings.List,
		Help: "proxies whose word for the client is believed: addresses, networks, private, loopback; unix: peers of unix sockets",
		Set: settings.Peers(func(c *Config) (*[]netip.Prefix, *bool) {
			return &c.clientIP.Trusted, &c.clientIP.TrustUnix
		})},
	{Path: "client_ip.header", Value: "X-Forwarded-For",
		Help: "the field in which they name it: X-Forwarded-For, Forwarded, or one that holds a single address, such as CF-Connecting-IP",
		Set: settings.Text(func(c *Config, s string) error {
			c.clientIP.Header = s
			c.clientIP.Header = c.clientIP.Field()
			return nil
		})},
	{Path: "client_ip.hops", Value: "0",
		Help: "how many proxies there are in front: the client is so many from the right of the list; 0 goes by trusted_proxies",
		Set:  settings.Int(0, 100, func(c *Config) *int { return &c.clientIP.Hops })},
	{Path: "client_ip.ipv6_prefix", Value: "64",
		Help: "how many bits of an IPv6 address make a key",
		Set:  settings.Int(1, 128, func(c *Config) *int { return &c.ipv6Prefix })},
}

// fieldSettings decide over requests with fields that servers read in different ways.
var fieldSettings = []setting{
	{Path: "fields.repeated", Value: "refuse",
		Help: "requests that have twice what has one value, where a rule in force or identity reads it: refuse them (400), or keep them (lines of a header are joined, else the first counts)",
		Set: toWord(func(c *Config) *httplimit.RepeatedFields { return &c.fields.repeated },
			"refuse", httplimit.RefuseRepeatedFields, "keep", httplimit.KeepRepeatedFields)},
	{Path: "fields.lookalikes", Value: "refuse",
		Help: "requests with a field that servers take for one that is read, such as X_Api_Key for X-Api-Key: refuse them (400), drop the field, or keep it",
		Set: toWord(func(c *Config) *httplimit.LookalikeFields { return &c.fields.lookalikes },
			"refuse", httplimit.RefuseLookalikeFields, "drop", httplimit.DropLookalikeFields, "keep", httplimit.KeepLookalikeFields)},
	{Path: "fields.encoded_slash", Value: "refuse",
		Help: `requests whose path holds %2F, %5C or \, which servers read in different ways: refuse them (400), or keep these as data`,
		Set: toWord(func(c *Config) *httplimit.EncodedSlash { return &c.fields.encodedSlash },
			"refuse", httplimit.RefuseEncodedSlash, "keep", httplimit.KeepEncodedSlash)},
}

// clientConfig is the configuration of how clients are known.
type clientConfig struct {
	identity map[string]string // source by attribute
	jwks     string
	fields   struct { // that servers read in different ways
		repeated   httplimit.RepeatedFields
		lookalikes httplimit.LookalikeFields
		// of the path, at all doors: they stand in front of one API
		encodedSlash httplimit.EncodedSlash
	}
	clientIP   httplimit.ClientIP
	ipv6Prefix int
}

// toWord sets one of several values by its word; pairs are words and values in turn.
func toWord[T any](field func(*Config) *T, pairs ...any) func(*Config, []string) error {
	return settings.Text(func(c *Config, s string) error {
		i := slices.Index(pairs, any(s))
		if i < 0 || i%2 != 0 {
			words := ""
			for k := 0; k < len(pairs); k += 2 {
				if k > 0 {
					words += " or "
				}
				words += pairs[k].(string)
			}
			return fmt.Errorf("%q must be %s", s, words)
		}
		*field(c) = pairs[i+1].(T)
		return nil
	})
}

// openClients makes the guard of fields and the identities, by which the doors know clients.
func (p *program) openClients(context.Context) error {
	p.fields = &httplimit.FieldGuard{Repeated: p.c.fields.repeated, Lookalikes: p.c.fields.lookalikes, Logger: p.log}
	if len(p.c.identity) == 0 {
		return nil
	}
	var err error
	if p.identity, err = httplimit.ParseIdentity(p.c.identity, p.c.jwks); err != nil {
		return fmt.Errorf("identity: %w", err)
	}
	return nil
}

// fieldMetrics are the metrics of both.
func (p *program) fieldMetrics() []prometheus.Collector {
	return []prometheus.Collector{metrics.NewFields(
		metrics.FieldOptions{Fields: p.fields.Stats, Unverified: p.identity.Unverified})}
}
