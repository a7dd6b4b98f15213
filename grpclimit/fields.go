package grpclimit

import (
	"cmp"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weir-rl/weir/internal/door"
	"github.com/weir-rl/weir/internal/util/httpfield"
	"github.com/weir-rl/weir/internal/util/sparselog"
	"github.com/weir-rl/weir/rule"
)

// field is metadata that has one value, by which a rule in force or Options.Identity decides.
type field struct {
	key, value string
	present    bool
}

// FieldStats counts the calls that were refused for their metadata.
type FieldStats struct {
	Repeated   uint64 // single-valued metadata came twice
	Unreadable uint64 // credentials that servers read in different ways
}

// FieldStats returns a reading.
func (g *Gate) FieldStats() FieldStats {
	return FieldStats{g.repeated.Load(), g.unreadable.Load()}
}

// checkFields looks at the metadata by which the call is decided. It returns the error that ends a
// call with single-valued metadata that came twice, unless Options.KeepRepeated, or with
// credentials which servers may understand and rules do not.
func (c *call) checkFields() error {
	set, _ := c.gate.limiter.Rules()
	f := set.Fields(c.gate.o.Domain)
	for _, id := range c.gate.identity {
		if err := c.checkIdentity(id.Value); err != nil {
			return err
		}
	}
	if f == nil {
		return nil
	}
	for i := range f.Headers {
		if err := c.checkField(f.Headers[i].Name); err != nil {
			return err
		}
	}
	if f.AllHeaders && !c.gate.o.KeepRepeated {
		md, _ := metadata.FromIncomingContext(c.ctx)
		for key, values := range md {
			if len(values) > 1 && !httpfield.ListField(key) {
				return c.gate.refuseRepeated(key, len(values))
			}
		}
	}
	return nil
}

// checkField looks at one field, and remembers its value.
func (c *call) checkField(key string) error {
	values := metadata.ValueFromIncomingContext(c.ctx, key)
	g := c.gate
	if len(values) > 1 && !g.o.KeepRepeated && !httpfield.ListField(key) {
		return g.refuseRepeated(key, len(values))
	}
	value, present := joined(values)
	if isCredentials(key) {
		if scheme := httpfield.Misspelled(value, true, true); scheme != "" {
			g.unreadable.Add(1)
			g.logRefused("since servers read their credentials in different ways", key)
			return status.Errorf(codes.Unauthenticated,
				"the metadata %s holds %s credentials that are not written as they should be", key, scheme)
		}
	}
	if !httpfield.WellFormed(key, value) {
		g.unreadable.Add(1)
		g.logRefused("since servers read their signed tokens in different ways", key)
		return status.Errorf(codes.InvalidArgument,
			"the metadata %s holds a signed token that is not written as it should be", key)
	}
	c.fields = append(c.fields, field{key, value, present})
	return nil
}

func isCredentials(key string) bool { return key == "authorization" || key == "proxy-authorization" }

// refuseRepeated is the error of a call that has a field more than once.
func (g *Gate) refuseRepeated(key string, n int) error {
	g.repeated.Add(1)
	g.logRefused("that have twice what has one value (Options.KeepRepeated)", key)
	return status.Error(codes.InvalidArgument,
		fmt.Sprintf(
			"the metadata %s is there %d times: a rate limit might count by another value than the server acts by; send it once", key, n))
}

func (g *Gate) logRefused(why, key string) {
	if n := g.refusedLine.Due(time.Minute); n > 0 {
		cmp.Or(g.o.Logger, slog.Default()).Warn("grpclimit: calls are refused "+why, "latest", sparselog.Excerpt(key),
			"calls", n)
	}
}

// identity is the value of a source of Options.Identity.
func (a *attributes) identity(source string) string {
	if source == fromAPIKey {
		var room [len(door.APIKeyFields)]string
		if keys := a.apiKeys(room[:0]); len(keys) > 0 {
			return a.hashed(keys[0])
		}
		return ""
	}
	key, hash := strings.CutPrefix(source, hashOf)
	v, _ := a.metadata(key)
	if isCredentials(key) {
		v = rule.NormalValue("header.authorization", v)
	} else {
		v, _ = httpfield.CutSigned(v)
	}
	if hash {
		return a.hashed(v)
	}
	return v
}

// joined makes one value of the values of a key, without blanks around it.
func joined(values []string) (value string, ok bool) {
	if len(values) == 1 {
		return strings.Trim(values[0], " \t"), true
	}
	return strings.Join(values, ", "), len(values) > 0
}
