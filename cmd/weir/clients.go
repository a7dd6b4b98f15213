package main

import (
	"fmt"
	"slices"

	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/internal/admin/metrics"
)

// fieldSettings decide over requests with fields that servers read in different ways.
var fieldSettings = []setting{
	{path: "fields.repeated", value: "refuse",
		help: "requests that have twice what has one value, where a rule in force or identity reads it: refuse them (400), or keep them (lines of a header are joined, else the first counts)",
		set: toWord(func(c *config) *httplimit.RepeatedFields { return &c.fields.repeated },
			"refuse", httplimit.RefuseRepeatedFields, "keep", httplimit.KeepRepeatedFields)},
	{path: "fields.lookalikes", value: "refuse",
		help: "requests with a field that servers take for one that is read, such as X_Api_Key for X-Api-Key: refuse them (400), drop the field, or keep it",
		set: toWord(func(c *config) *httplimit.LookalikeFields { return &c.fields.lookalikes },
			"refuse", httplimit.RefuseLookalikeFields, "drop", httplimit.DropLookalikeFields, "keep", httplimit.KeepLookalikeFields)},
}

// toWord sets one of several values by its word; pairs are words and values in turn.
func toWord[T any](field func(*config) *T, pairs ...any) func(*config, []string) error {
	return text(func(c *config, s string) error {
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

// makeClients makes the guard of fields and the identities, by which the doors know clients.
func (p *program) makeClients() error {
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

// fieldMetrics returns the sources of their metrics.
func (p *program) fieldMetrics() metrics.FieldOptions {
	return metrics.FieldOptions{Fields: p.fields.Stats, Unverified: p.identity.Unverified}
}
