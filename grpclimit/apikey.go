package grpclimit

import (
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weir-rl/weir/internal/door"
	"github.com/weir-rl/weir/internal/util/chars"
)

// The sources of Options.Identity that are more than a key of the metadata.
const (
	fromAPIKey = "apikey"
	hashOf     = "hash:" // before a key
)

// checkIdentity looks at the metadata that a source of Options.Identity reads.
func (c *call) checkIdentity(source string) error {
	if source != fromAPIKey {
		return c.checkField(strings.TrimPrefix(source, hashOf))
	}
	for _, key := range door.APIKeyFields {
		if err := c.checkField(key); err != nil {
			return err
		}
	}
	g := c.gate
	if value, _ := c.metadata(door.APIKeyFields[0]); door.UnreadableSignature(value) {
		g.unreadable.Add(1)
		g.logRefused("since servers read their credentials in different ways", door.APIKeyFields[0])
		return status.Error(codes.Unauthenticated,
			"the metadata authorization holds a signature of AWS that is not written as it should be")
	}
	var room [len(door.APIKeyFields)]string
	if keys := c.apiKeys(room[:0]); len(keys) > 1 {
		g.repeated.Add(1)
		g.logRefused("that have several API keys", fromAPIKey)
		return status.Errorf(codes.InvalidArgument,
			"the metadata hold %d different API keys: a rate limit might count by another one than the server acts by; send one", len(keys))
	}
	return nil
}

// apiKeys appends the API keys of the call to keys, each once.
func (a *attributes) apiKeys(keys []string) []string {
	return door.APIKeys(keys, func(key string) string {
		value, _ := a.metadata(key)
		return value
	}, "")
}

// hashed returns the hash under which a credential counts; "" for none. It is a view of a buffer of
// the call.
func (a *attributes) hashed(value string) string {
	if value == "" {
		return ""
	}
	begin := len(a.scratch)
	a.scratch = door.AppendKeyHash(a.scratch, value)
	return chars.View(a.scratch[begin:])
}
