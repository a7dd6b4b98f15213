// Package jwt verifies JSON Web Tokens with the keys of a JWKS file. Begin with Open.
package jwt

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
)

const (
	Recheck       = 2 * time.Second // how often the JWKS file is looked at, at most
	MaxToken      = 16 << 10        // longer tokens count as absent
	maxJWKS       = 1 << 20         // a larger file is an error
	verifiedSlots = 1024            // verified tokens remembered, one for each hash
)

// Keys verifies tokens with the keys of a JWKS file (RFC 7517), which it follows. Safe for
// concurrent use.
type Keys struct {
	path    string
	claims  []string // the claims that Claim is asked for
	failure atomic.Pointer[error]
	current atomic.Pointer[loadedKeys]
	checked atomic.Int64 // when the file was last looked at, Unix nanoseconds
	mu      sync.Mutex   // held while looking
	seed    maphash.Seed

	Unverified atomic.Uint64 // tokens that did not hold; the caller counts them
	// verified remembers tokens whose signature held, so that a client with one token costs one
	// verification. Each token has one place, by its hash; a newcomer takes it over.
	verified [verifiedSlots]atomic.Pointer[verifiedToken]
}

// loadedKeys is one reading of the file. Immutable.
type loadedKeys struct {
	keys    []verifyKey
	algs    []jose.SignatureAlgorithm // of all keys
	modTime time.Time
	size    int64
}

type verifyKey struct {
	id   string
	key  any
	algs []jose.SignatureAlgorithm // fixed by the key, never by the token
}

type verifiedToken struct {
	token     string
	keys      *loadedKeys // it holds only while these are in force
	claims    map[string]string
	notBefore float64 // Unix seconds; 0 if not given
	expires   float64 // Unix seconds; 0 if never
}

// Open reads the file, for these claims.
func Open(path string, claims []string) (*Keys, error) {
	s := &Keys{path: path, claims: claims, seed: maphash.MakeSeed()}
	keys, err := loadKeys(path)
	if err != nil {
		return nil, err
	}
	s.current.Store(keys)
	s.checked.Store(time.Now().UnixNano())
	return s, nil
}

// Claim returns a claim of token, "" if the token does not hold or has none such.
func (s *Keys) Claim(token, name string) (value string, holds bool) {
	if len(token) > MaxToken {
		return "", false
	}
	now := time.Now()
	keys := s.follow(now)
	place := &s.verified[maphash.String(s.seed, token)%verifiedSlots]
	v := place.Load()
	if v == nil || v.keys != keys || v.token != token {
		if v = keys.verify(token, s.claims); v == nil {
			return "", false
		}
		place.Store(v)
	}
	seconds := float64(now.UnixMicro()) / 1e6
	if v.expires != 0 && seconds >= v.expires || v.notBefore != 0 && seconds < v.notBefore {
		return "", false
	}
	return v.claims[name], true
}

// Failure returns why the last change of the file could not be taken over; nil if the keys in force
// are the file's.
func (s *Keys) Failure() error {
	if err := s.failure.Load(); err != nil {
		return *err
	}
	return nil
}

// follow returns the keys in force, and looks whether the file has changed if that was long enough
// ago.
func (s *Keys) follow(now time.Time) *loadedKeys {
	keys := s.current.Load()
	if since := now.UnixNano() - s.checked.Load(); since >= 0 && since < int64(Recheck) || !s.mu.TryLock() {
		return keys
	}
	defer s.mu.Unlock()
	s.checked.Store(now.UnixNano())
	keys = s.current.Load()
	info, err := os.Stat(s.path)
	if err == nil && info.ModTime().Equal(keys.modTime) && info.Size() == keys.size {
		s.failure.Store(nil)
		return keys
	}
	next, err := loadKeys(s.path)
	if err != nil {
		s.failure.Store(&err)
		return keys
	}
	s.failure.Store(nil)
	s.current.Store(next)
	return next
}

func loadKeys(path string) (*loadedKeys, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxJWKS {
		return nil, fmt.Errorf("%s: %d bytes are too many for a JWKS file; at most %d", path, info.Size(), maxJWKS)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var file struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(data, &file); err != nil {
		return nil, fmt.Errorf("%s: not a JWKS file, which is JSON such as {\"keys\": [...]}: %w", path, err)
	}
	out := &loadedKeys{modTime: info.ModTime(), size: info.Size()}
	for i, raw := range file.Keys {
		var k jose.JSONWebKey
		if err := k.UnmarshalJSON(raw); err != nil {
			return nil, fmt.Errorf("%s: keys[%d]: %w", path, i, err)
		}
		if k.Use != "" && k.Use != "sig" {
			continue
		}
		key := k.Key
		if _, symmetric := key.([]byte); !symmetric && !k.IsPublic() {
			key = k.Public().Key
		}
		algs, err := algorithmsOf(key, k.Algorithm)
		if err != nil {
			return nil, fmt.Errorf("%s: keys[%d] (kid %q): %w", path, i, k.KeyID, err)
		}
		out.keys = append(out.keys, verifyKey{k.KeyID, key, algs})
		for _, a := range algs {
			if !slices.Contains(out.algs, a) {
				out.algs = append(out.algs, a)
			}
		}
	}
	if len(out.keys) == 0 {
		return nil, fmt.Errorf("%s: no key to verify signatures with; expected {\"keys\": [{\"kty\": …, \"kid\": …}]}",
			path)
	}
	return out, nil
}

// algorithmsOf returns the signature algorithms that a key may be used with: the one that it names
// if that fits its type, else all of its type.
func algorithmsOf(key any, named string) ([]jose.SignatureAlgorithm, error) {
	var algs []jose.SignatureAlgorithm
	switch k := key.(type) {
	case *rsa.PublicKey:
		if k.N.BitLen() < 2048 {
			return nil, fmt.Errorf("an RSA key of %d bits is too short; RFC 7518 asks for 2048", k.N.BitLen())
		}
		algs = []jose.SignatureAlgorithm{jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512}
	case *ecdsa.PublicKey:
		switch k.Curve.Params().BitSize {
		case 256:
			algs = []jose.SignatureAlgorithm{jose.ES256}
		case 384:
			algs = []jose.SignatureAlgorithm{jose.ES384}
		case 521:
			algs = []jose.SignatureAlgorithm{jose.ES512}
		}
	case ed25519.PublicKey:
		algs = []jose.SignatureAlgorithm{jose.EdDSA}
	case []byte:
		for _, h := range []struct {
			size int
			alg  jose.SignatureAlgorithm
		}{{32, jose.HS256}, {48, jose.HS384}, {64, jose.HS512}} {
			if len(k) >= h.size {
				algs = append(algs, h.alg)
			}
		}
		if len(algs) == 0 {
			return nil, fmt.Errorf("a symmetric key of %d bytes is too short; RFC 7518 asks for 32", len(k))
		}
	}
	if len(algs) == 0 {
		return nil, errors.New(
			"a key of this type cannot verify signatures; use RSA, EC (P-256, P-384, P-521), Ed25519 or oct, or mark it \"use\": \"enc\"")
	}
	if named == "" {
		return algs, nil
	}
	if a := jose.SignatureAlgorithm(named); slices.Contains(algs, a) {
		return []jose.SignatureAlgorithm{a}, nil
	}
	return nil, fmt.Errorf("alg %q does not fit the key; possible are %v", named, algs)
}

// verify checks the signature of token; nil if no key holds.
func (l *loadedKeys) verify(token string, claims []string) *verifiedToken {
	sig, err := jose.ParseSignedCompact(token, l.algs)
	if err != nil || len(sig.Signatures) != 1 {
		return nil
	}
	header := sig.Signatures[0].Protected
	for i := range l.keys {
		k := &l.keys[i]
		if header.KeyID != "" && k.id != "" && header.KeyID != k.id ||
			!slices.Contains(k.algs, jose.SignatureAlgorithm(header.Algorithm)) {
			continue
		}
		payload, err := sig.Verify(k.key)
		if err != nil {
			continue
		}
		return parseClaims(token, payload, claims, l)
	}
	return nil
}

func parseClaims(token string, payload []byte, claims []string, keys *loadedKeys) *verifiedToken {
	dec := json.NewDecoder(bytes.NewReader(payload))
	dec.UseNumber()
	var all map[string]any
	if err := dec.Decode(&all); err != nil || all == nil {
		return nil
	}
	v := &verifiedToken{token: token, keys: keys, claims: make(map[string]string, len(claims))}
	var ok bool
	if v.expires, ok = numericDate(all, "exp"); !ok {
		return nil
	}
	if v.notBefore, ok = numericDate(all, "nbf"); !ok {
		return nil
	}
	for _, name := range claims {
		switch c := all[name].(type) {
		case string:
			v.claims[name] = c
		case json.Number:
			v.claims[name] = c.String()
		case bool:
			v.claims[name] = strconv.FormatBool(c)
		}
	}
	return v
}

// numericDate reads a NumericDate of RFC 7519; 0 if it is absent, ok is false if it is none.
func numericDate(all map[string]any, name string) (seconds float64, ok bool) {
	value, present := all[name]
	if !present {
		return 0, true
	}
	n, isNumber := value.(json.Number)
	if !isNumber {
		return 0, false
	}
	f, err := n.Float64()
	if err != nil || f <= 0 { // at or before 1970: long expired, or never to begin with
		return 1, name == "nbf"
	}
	return f, true
}
