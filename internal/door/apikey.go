package door

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"unsafe"

	"github.com/weir-rl/weir/internal/util/httpfield"
)

// APIKeyFields are the fields of the header in which clients send an API key, by their names in
// lower case: Authorization (OpenAI, newer clients of Anthropic, AWS), X-Api-Key (Anthropic, API
// Gateway), Api-Key (Azure), Apikey (Kong), X-Goog-Api-Key (Google).
var APIKeyFields = [...]string{"authorization", "x-api-key", "api-key", "apikey", "x-goog-api-key"}

// APIKeyParameter is the parameter of the query in which Google takes one.
const APIKeyParameter = "key"

// APIKey returns the API key in the value of one of APIKeyFields. In Authorization that is a bearer
// token, or the access key id of a signature of AWS, which is another one with each request; all
// else there is no API key. ok is false if there is none. A signed token counts as
// httpfield.CutSigned has it.
func APIKey(field, value string) (key string, ok bool) {
	if field != APIKeyFields[0] {
		key, _ = httpfield.CutSigned(strings.Trim(value, " \t"))
		return key, key != ""
	}
	c, ok := httpfield.CutCredentials(value)
	switch {
	case !ok:
		return "", false
	case strings.EqualFold(c.Scheme, "Bearer"):
		if key, ok = c.Bearer(); ok {
			key, _ = httpfield.CutSigned(key)
		}
		return key, ok
	case isAWS(c.Scheme):
		return accessKey(c.Rest)
	}
	return "", false
}

// UnreadableSignature reports whether the value of Authorization is a signature of AWS that names
// no access key, or several.
func UnreadableSignature(value string) bool {
	c, ok := httpfield.CutCredentials(value)
	if !ok || !isAWS(c.Scheme) {
		return false
	}
	_, ok = accessKey(c.Rest)
	return !ok
}

// isAWS reports whether a scheme is one of AWS's signatures, version 4: AWS4-HMAC-SHA256,
// AWS4-ECDSA-P256-SHA256.
func isAWS(scheme string) bool {
	const prefix = "AWS4-"
	return len(scheme) > len(prefix) && strings.EqualFold(scheme[:len(prefix)], prefix)
}

// accessKey returns the access key id that a signature names once:
// Credential=AKID/20260101/us-east-1/bedrock/aws4_request, SignedHeaders=…
func accessKey(rest string) (id string, ok bool) {
	for part := range strings.SplitSeq(rest, ",") {
		name, value, _ := strings.Cut(strings.Trim(part, " \t"), "=")
		if !strings.EqualFold(strings.Trim(name, " \t"), "Credential") {
			continue
		}
		if ok {
			return "", false
		}
		id, _, ok = strings.Cut(strings.Trim(value, " \t"), "/")
	}
	return id, ok && id != ""
}

// APIKeys appends the API keys of a request to keys, each once. field returns the value of a field
// of the header, by its name of APIKeyFields; parameter is the one of the query, "" for none.
func APIKeys(keys []string, field func(name string) string, parameter string) []string {
	add := func(key string) {
		if !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	for _, name := range APIKeyFields {
		if key, ok := APIKey(name, field(name)); ok {
			add(key)
		}
	}
	if key, ok := APIKey(APIKeyParameter, parameter); ok {
		add(key)
	}
	return keys
}

// AppendKeyHash appends the hash under which a credential counts: "sha256:" and hexadecimal digits.
func AppendKeyHash(dst []byte, key string) []byte {
	sum := sha256.Sum256(unsafe.Slice(unsafe.StringData(key), len(key)))
	return hex.AppendEncode(append(dst, "sha256:"...), sum[:])
}
