package httplimit

import (
	"net/http"

	"github.com/weir-rl/weir/httplimit/internal/spelling"
	"github.com/weir-rl/weir/internal/door"
	"github.com/weir-rl/weir/internal/util/chars"
	"github.com/weir-rl/weir/rule"
)

// apiKeyQuery are the parameters of the query that the source apikey reads.
var apiKeyQuery = rule.Fields{Query: []string{door.APIKeyParameter}}

// apiKeyHeaders are the canonical names of door.APIKeyFields.
var apiKeyHeaders = func() map[string]string {
	names := map[string]string{}
	for _, name := range door.APIKeyFields {
		names[name] = http.CanonicalHeaderKey(name)
	}
	return names
}()

// apiKeys appends the API keys of a request to keys, each once; query is the one of the request
// that is decided. Of several Authorization fields the first counts, as in credentialsOf.
func apiKeys(r *http.Request, query string, keys []string) []string {
	parameter, _ := spelling.QueryValue(query, door.APIKeyParameter)
	return door.APIKeys(keys, func(name string) string {
		lines := r.Header[apiKeyHeaders[name]]
		if name == door.APIKeyFields[0] && len(lines) > 1 {
			lines = lines[:1]
		}
		value, _ := joined(lines)
		return value
	}, parameter)
}

// inScratch reports whether the values of a source are hashes, which are made in a buffer.
func (s *source) inScratch() bool {
	return s.hashed || s.kind == fromBearer || s.kind == fromAPIKey
}

// hashed appends the hash of a value to scratch, and returns a view of it.
func hashed(value string, scratch []byte) (string, []byte) {
	begin := len(scratch)
	scratch = door.AppendKeyHash(scratch, value)
	return chars.View(scratch[begin:]), scratch
}

// hashAll puts hashes in the place of values.
func hashAll(values []string) {
	for i, value := range values {
		values[i] = string(door.AppendKeyHash(nil, value))
	}
}
