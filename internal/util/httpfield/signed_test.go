package httpfield

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"math/big"
	"strings"
	"testing"
)

// A signed token has one key in all spellings, and another token has another.
func TestCutSigned(t *testing.T) {
	raw, std := base64.RawURLEncoding.EncodeToString, base64.StdEncoding.EncodeToString
	jose, claims := raw([]byte(`{"alg":"HS256"}`)), raw([]byte(`{"sub":"ada"}`))
	const sha256Signature = "kEX-_uQ4H6pQm0bJfQyKcV1z3dD2mN8sT5wY7xZ0aBc" // 43 digits
	const sha1Signature = "Jr2lXk8-bQ0tYp_5vNfZ1cDmRsE"                   // 27
	for name, c := range map[string]struct{ signed, signature string }{
		"JSON Web Token":                     {jose + "." + claims, sha256Signature},
		"JSON Web Token without its payload": {jose + ".", sha256Signature},
		"Flask":                              {raw([]byte(`{"user":"ada"}`)) + ".aOgTgA", sha1Signature},
		"Flask, packed":                      {".eJyrVkosLlayUlBKTElUqgUAJ7wE5g.aOgTgA", sha1Signature},
		"Starlette":                          {std([]byte(`{"user": "ada"}`)) + ".aOgTgA", sha1Signature},
		"Starlette, padded":                  {std([]byte(`{"user": "ada ?>"}`)) + ".aOgTgA", sha1Signature},
		"Phoenix":                            {"SFMyNTY." + raw([]byte("ada")), sha256Signature},
		"itsdangerous without a time":        {raw([]byte(`["ada", 7]`)), sha1Signature},
		"itsdangerous, a text":               {raw([]byte(`"ada"`)), sha1Signature},
		"AWS":                                {base64.URLEncoding.EncodeToString([]byte(`{"alg":"ES256","a":1}`)) + "." + base64.URLEncoding.EncodeToString([]byte(`{"sub":"ada"}`)), sha256Signature},
		"Phoenix, encrypted":                 {"QTEyOEdDTQ..AAAAAAAAAAAAAAAA." + claims, "kEX-_uQ4H6pQm0bJfQyKcA"},
		"encrypted":                          {jose + "..AAAAAAAAAAAAAAAA." + claims, "kEX-_uQ4H6pQm0bJfQyKcA"},
	} {
		token := c.signed + "." + c.signature
		key, ok := CutSigned(token)
		if want := c.signed + "." + c.signature[:16]; !ok || key != want {
			t.Errorf("%s: %q, %t, want %q", name, key, ok, want)
			continue
		}
		if again, ok := CutSigned(key); again != key || !ok {
			t.Errorf("%s: the key is cut again: %q", name, again)
		}
		for _, same := range []string{token + "=", token + "==", token[:len(token)-1] + string(token[len(token)-1]+1),
			token + "A", token[:len(token)-2]} {
			if got, ok := CutSigned(same); got != key || !ok {
				t.Errorf("%s: %q: %q, %t, want %q", name, same, got, ok, key)
			}
		}
		if got, ok := CutSigned(c.signed + ".X" + c.signature[1:]); got == key || !ok {
			t.Errorf("%s: another signature: %q, %t", name, got, ok)
		}
		at := len(c.signed) + 1
		for _, foreign := range []string{"~", " ", "\n", "\x00", "\xa0", "=", "%3D", "\"", "é"} {
			for _, i := range []int{at, at + 1, at + 9, at + 17, len(token)} {
				if spelled := token[:i] + foreign + token[i:]; strings.TrimRight(spelled, "=") != token {
					if got, ok := CutSigned(spelled); ok {
						t.Errorf("%s: %q: %q", name, spelled, got)
					}
				}
			}
			if c.signed[0] != '.' && c.signed[0] != 'S' && c.signed[0] != 'Q' && foreign != "%3D" { // these are compared as they are
				if got, ok := CutSigned(token[:3] + foreign + token[3:]); ok {
					t.Errorf("%s: %q in the signed part: %q", name, foreign, got)
				}
			}
		}
		if strings.ContainsAny(c.signature, "-_") {
			swapped, ok := CutSigned(c.signed + "." + strings.NewReplacer("-", "+", "_", "/").Replace(c.signature))
			if ok && swapped != key {
				t.Errorf("%s: in the other alphabet: %q", name, swapped)
			}
		}
	}
}

// A word before a token in a field of a program's own does not count.
func TestCutSignedBearer(t *testing.T) {
	token := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"HS256"}`)) +
		".e30.kEX-_uQ4H6pQm0bJfQyKcV1z3dD2mN8sT5wY7xZ0aBc"
	want, _ := CutSigned(token)
	for _, value := range []string{"Bearer " + token, "bearer  " + token, "BEARER\t" + token, "Bearer+" + token} {
		if got, ok := CutSigned(value); got != want || !ok {
			t.Errorf("%q: %q, %t", value, got, ok)
		}
	}
	for _, value := range []string{token + ".", "Bearer " + token + ".", "bearer " + token + ".."} {
		if got, ok := CutSigned(value); ok {
			t.Errorf("%q: %q", value, got)
		}
	}
	for _, value := range []string{"Bearer " + token[:20] + "~", "Bearer k.ada.00000000000000000000000001",
		"Bearer" + token} {
		if got, ok := CutSigned(value); got != value || !ok {
			t.Errorf("%q: %q, %t", value, got, ok)
		}
	}
}

// An opaque key is what it is: two of them are never one, however they are written.
func TestCutSignedOpaque(t *testing.T) {
	jose := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"HS256"}`))
	for _, value := range []string{
		"", ".", "..", "a.b", "k-ada", "sk.live.kEX-_uQ4H6pQm0bJfQyKcV1z3dD2mN8s", "sk.live.kEX~_uQ4H6pQm0bJfQyKcV1z3dD2mN8s=", "acct.00000000000000000000000001",
		"v4.public.kEX-_uQ4H6pQm0bJfQyKcV1z3dD2mN8sT5wY7xZ0aBc", "CN=ada.lovelace,OU=Engineering,O=Example", "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko)",
		"https://example.com/a/long/path?of=a+page&and=more", "example.shop.https://www.example.com/path/of/a/page", "eyes.only.for+your+eyes+only+and+mine",
		jose + "." + base64.RawURLEncoding.EncodeToString([]byte(`{"iat":1796000000,"sub":"ada"}`)), // its signature is in another cookie
		jose + "." + jose + ".short", jose + ".a.b.c", jose, jose + ".", ".eJ.",
		"Image.of.the+day+with+a+long+name+of+it", "10.1.12345678901234567890~",
	} {
		if got, ok := CutSigned(value); got != value || !ok {
			t.Errorf("%q: %q, %t", value, got, ok)
		}
	}
}

// Whoever has a signature of ECDSA can make another one of it. Both are one key.
func TestCutSignedTwin(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signed := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"ES256"}`)) + ".e30"
	sum := sha256.Sum256([]byte(signed))
	r, s, err := ecdsa.Sign(rand.Reader, key, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	twin := new(big.Int).Sub(elliptic.P256().Params().N, s)
	if !ecdsa.Verify(&key.PublicKey, sum[:], r, twin) {
		t.Fatal("it is no signature")
	}
	token := func(s *big.Int) string {
		b := make([]byte, 64)
		r.FillBytes(b[:32])
		s.FillBytes(b[32:])
		got, ok := CutSigned(signed + "." + base64.RawURLEncoding.EncodeToString(b))
		if !ok {
			t.Fatal("it is refused")
		}
		return got
	}
	if a, b := token(s), token(twin); a != b {
		t.Errorf("%q and %q", a, b)
	}
}

// A signature of hexadecimal digits, and one in the other alphabet, are one in each spelling.
func TestCutSignedLoose(t *testing.T) {
	payload := base64.StdEncoding.EncodeToString([]byte(`{"user":7}`)) + "."
	hex := strings.Repeat("0aF9", 10)
	for _, same := range [][2]string{{hex, strings.ToLower(hex)}, {"a+/" + hex, "a-_" + hex}} {
		a, ok1 := CutSigned(payload + same[0])
		b, ok2 := CutSigned(payload + same[1])
		if a != b || !ok1 || !ok2 {
			t.Errorf("%q: %q, %q, %t %t", same, a, b, ok1, ok2)
		}
	}
	if got, ok := CutSigned(payload + "a+_" + hex); ok {
		t.Errorf("of both alphabets: %q", got)
	}
}

func TestWellFormed(t *testing.T) {
	token := base64.RawURLEncoding.EncodeToString([]byte(`{"sub":"ada"}`)) + ".e30." + strings.Repeat("A", 43)
	for _, c := range []struct {
		field, value string
		want         bool
	}{
		{"x-token", token, true}, {"x-token", " " + token + "\t", true}, {"x-token", token + "~", false}, {"x-token", "a b", true}, {"x-token", "", true},
		{"authorization", "Token " + token, true}, {"authorization", "Token " + token + "~", false}, {"authorization", token + "~", false}, {"proxy-authorization", "JWT " + token + "~", false},
	} {
		if got := WellFormed(c.field, c.value); got != c.want {
			t.Errorf("%s: %q: %t", c.field, c.value, got)
		}
	}
}

func FuzzCutSigned(f *testing.F) {
	f.Add("eyJhIjoxfQ.e30.AAAAAAAAAAAAAAAAAAAAAAAAAAA")
	f.Add(".eJw.aOgTgA.AAAAAAAAAAAAAAAAAAAAAAAAAAA=")
	f.Add("WyJhIl0=.AAAAAAAAAAAAAAAA/+AAAAAAAAA")
	f.Fuzz(func(t *testing.T, value string) {
		key, ok := CutSigned(value)
		if again, _ := CutSigned(key); ok && again != key {
			t.Errorf("%q: %q, and that %q", value, key, again)
		}
		if !ok && key != value {
			t.Errorf("%q: %q", value, key)
		}
	})
}

func BenchmarkCutSigned(b *testing.B) {
	for name, value := range map[string]string{
		"opaque": "k-0123456789abcdef", "agent": "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/125.0.0.0 Safari/537.36",
		"signed": "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJhZGEiLCJuYW1lIjoiQWRhIExvdmVsYWNlIn0.kEX-_uQ4H6pQm0bJfQyKcV1z3dD2mN8sT5wY7xZ0aBc",
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, ok := CutSigned(value); !ok {
					b.Fatal(value)
				}
			}
		})
	}
}
