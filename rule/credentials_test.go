package rule

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/util/httpfield"
)

func TestNormalCredentials(t *testing.T) {
	header := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"HS256"}`))
	jwt := header + ".eyJzdWIiOiJhZGEifQ.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
	cut := strings.TrimRight(jwt, "A") + strings.Repeat("A", 16)
	for _, c := range []struct{ value, want string }{
		{"Bearer k", "Bearer k"},
		{"bearer k", "Bearer k"},
		{"BEARER \t  k \t", "Bearer k"},
		{"  Bearer k", "Bearer k"},
		{"Bearer\tk", "Bearer k"},
		{"Bearer k=", "Bearer k="}, // an opaque token is what it is
		{"Bearer " + jwt, "Bearer " + cut},
		{"Bearer " + jwt + "=", "Bearer " + cut},
		{"bearer  " + jwt + "==", "Bearer " + cut},
		{"Bearer " + jwt[:len(jwt)-1] + "D", "Bearer " + cut}, // the last two bits hold nothing
		{"Bearer " + strings.Replace(jwt, ".AA", ".AB", 1), "Bearer " + strings.Replace(cut, ".AA", ".AB", 1)},
		{"Bearer " + cut, "Bearer " + cut},
		{"Token  " + jwt, "token " + cut},
		{jwt, cut},
		{"Basic YWRhOng=", "Basic YWRhOng="},
		{"basic   YWRhOng", "Basic YWRhOng="},
		{"Basic YWRhOnh=", "Basic YWRhOng="},
		{"Basic !", "Basic !"},
		{"Digest username=\"a\"", "Digest username=\"a\""},
		{"ApiKey  AbC", "apikey AbC"},
		{"APIKEY AbC", "apikey AbC"},
		{"AbC", "AbC"}, // a key without a scheme
		{"key=AbC", "key=AbC"},
		{"Bearer", "Bearer"},
		{"Bearer:k", "Bearer:k"},
		{"", ""},
		{" ", ""},
	} {
		if got := NormalValue("header.authorization", c.value); got != c.want {
			t.Errorf("%q: %q, want %q", c.value, got, c.want)
		}
	}
}

func TestMisspelled(t *testing.T) {
	jwt := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"HS256"}`)) + ".eyJzdWIiOiJhZGEifQ.c2ln"
	for _, c := range []struct{ value, want string }{
		{"", ""}, {"Basic", ""}, {"Bearer ", ""}, {"Digest x", ""}, {"key=abc", ""}, {"Negotiate YII=", ""},
		{"Bearer abc", ""}, {"bearer\t abc==", ""}, {"Bearer a.b", ""}, {"Bearer a.b.c~", ""}, {"Bearer " + jwt, ""}, {"Bearer " + jwt + "=", ""},
		{"Bearer " + jwt + "~", "Bearer"}, {"Bearer " + jwt + "+", "Bearer"}, {"Bearer " + strings.Replace(jwt, ".", "=.", 1), "Bearer"},
		{"Bearer " + jwt + ".", "Bearer"}, {"Bearer " + jwt + ".=..", "Bearer"}, {"Bearer a.", ""}, {"Bearer token=abc", "Bearer"}, {"Bearer token", ""},
		{"Bearer a b", "Bearer"}, {"Bearer\xa0abc", "Bearer"}, {"\xa0Bearer abc", "Bearer"}, {"Bearer:abc", "Bearer"}, {"BearerX abc", "Bearer"},
		{`"Bearer abc"`, "Bearer"}, {"Bearer a,b", "Bearer"}, {"Bearer a!", ""}, {"Bearer 1|AbC", ""}, {"Bearer 00D!A.Q=b", ""}, {"Bearer a!.b.c", "Bearer"},
		{"Basic YWRhOng=", ""}, {"BASIC\tYWRhOng", ""}, {"Basic YWRhOnh", ""},
		{"Basic YWRhOng=x", "Basic"}, {"Basic YWRh Ong=", "Basic"}, {"Basic YWRhO!ng=", "Basic"}, {"Basic YWRhO", "Basic"},
		{"Basic YWRh", "Basic"},    // no colon
		{"Basic YWQAOng", "Basic"}, // "ad\x00:x": a server in C reads "ad"
		{"Basic-YWRhOng=", "Basic"}, {"Basic:YWRhOng=", "Basic"}, {"Basic _-__", "Basic"},
	} {
		if got := httpfield.Misspelled(c.value, true, true); got != c.want {
			t.Errorf("%q: %q, want %q", c.value, got, c.want)
		}
		if got := httpfield.Misspelled(c.value, false, false); got != "" {
			t.Errorf("%q: %q though nobody reads it", c.value, got)
		}
	}
}

// A pattern for credentials is met by all their spellings.
func TestCredentialsPatterns(t *testing.T) {
	for _, c := range []struct {
		pattern, value string
		want           bool
	}{
		{"Bearer *", "bearer\tk", true},
		{"bearer *", "BEARER k", true},
		{"ApiKey *", "APIKEY k", true},
		{"ApiKey k", "apikey  k", true},
		{"ApiKey k", "apikey K", false},
		{"Basic YWRhOng=", "basic YWRhOng", true},
		{"*", "Basic YWRhOng", true},
		{"B*", "bearer k", true},
		{"!Bearer *", "bearer k", false},
	} {
		p, err := ParsePattern("header.authorization", c.pattern)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Match(NormalValue("header.authorization", c.value)); got != c.want {
			t.Errorf("%q matches %q: %t", c.pattern, c.value, got)
		}
	}
}

func FuzzNormalCredentials(f *testing.F) {
	f.Add("Bearer k")
	f.Add("basic \t YWRhOng")
	f.Add("bearer e30.e30.AB==")
	f.Fuzz(func(t *testing.T, value string) {
		once := NormalValue("header.authorization", value)
		if twice := NormalValue("header.authorization", once); twice != once {
			t.Errorf("%q: %q, and that %q", value, once, twice)
		}
		if httpfield.Misspelled(value, true, true) == "" && httpfield.Misspelled(once, true, true) != "" {
			t.Errorf("%q can be read, but not %q", value, once)
		}
	})
}

// Conditions and keys of rules take a signed token in a field or a parameter for one, however its
// signature is spelled; other attributes are as they are.
func TestSignedValues(t *testing.T) {
	token := base64.RawURLEncoding.EncodeToString([]byte(`{"sub":"ada"}`)) + ".e30." + strings.Repeat("A", 43)
	for _, name := range []string{"header.x-token", "query.token"} {
		p, err := ParsePattern(name, token)
		if err != nil {
			t.Fatal(err)
		}
		if got := NormalValue(name, token+"="); !p.Match(got) || got != NormalValue(name, token[:len(token)-1]+"D") {
			t.Errorf("%s: %q", name, got)
		}
	}
	if got := NormalValue("user", token); got != token {
		t.Errorf("user: %q", got)
	}
}
