package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/door/answer"
)

// integerOf returns the integer that a number of JSON is, however it is written.
func integerOf(raw string) (n int64, ok bool) {
	mantissa, exponent, _ := strings.Cut(strings.ToLower(raw), "e")
	if m, ok := new(big.Rat).SetString(mantissa); !ok || m.Sign() == 0 {
		return 0, ok
	}
	if e, err := strconv.Atoi(exponent); exponent != "" && (err != nil || max(e, -e) > len(raw)+20) {
		return 0, false // larger than all that count, or below what the digits of the mantissa make up for
	}
	r, ok := new(big.Rat).SetString(raw)
	if !ok || !r.IsInt() || !r.Num().IsInt64() {
		return 0, false
	}
	return r.Num().Int64(), true
}

// reference decodes a question by encoding/json, as strictly as the API says. It shares nothing
// with decoder.
func reference(data []byte) (domain string, attrs map[string]string, hits int64, delay time.Duration, err error) {
	hits, delay, attrs = 1, weir.AnyDelay, map[string]string{}
	bad := errors.New("bad")
	if !utf8.Valid(data) || !json.Valid(data) || loneSurrogate(data) {
		return "", nil, 0, 0, bad
	}
	members, err := objectOf(data)
	if err != nil {
		return "", nil, 0, 0, err
	}
	for name, raw := range members {
		switch name {
		case "domain":
			if raw[0] != '"' || json.Unmarshal(raw, &domain) != nil {
				return "", nil, 0, 0, bad
			}
		case "attributes":
			values, err := objectOf(raw)
			if err != nil {
				return "", nil, 0, 0, err
			}
			for k, v := range values {
				var s string
				if k == "" || v[0] != '"' || json.Unmarshal(v, &s) != nil {
					return "", nil, 0, 0, bad
				}
				attrs[k] = s
			}
		case "hits":
			n, ok := integerOf(string(raw))
			if !ok || n > math.MaxInt32 || n < -math.MaxInt32 {
				return "", nil, 0, 0, bad
			}
			hits = n
		case "max_delay":
			var f float64
			if raw[0] == 'n' || json.Unmarshal(raw, &f) != nil || f < 0 {
				return "", nil, 0, 0, bad
			}
			if us := math.Round(f * 1e6); us < math.MaxInt64/1000 {
				delay = time.Duration(us) * time.Microsecond
			} else {
				delay = math.MaxInt64
			}
		default:
			return "", nil, 0, 0, bad
		}
	}
	return domain, attrs, hits, delay, nil
}

// objectOf returns the members of an object, none of them twice.
func objectOf(data []byte) (map[string]json.RawMessage, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return nil, errors.New("no object")
	}
	members := map[string]json.RawMessage{}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return nil, err
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, err
		}
		if _, twice := members[name.(string)]; twice {
			return nil, errors.New("twice")
		}
		members[name.(string)] = value
	}
	if _, err := d.Token(); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("more")
	}
	return members, nil
}

// loneSurrogate reports whether an escape stands for half a character, which encoding/json
// replaces.
func loneSurrogate(data []byte) bool {
	s := strings.ReplaceAll(string(data), `\\`, "  ")
	for i := 0; i+6 <= len(s); i++ {
		if s[i:i+2] != `\u` {
			continue
		}
		r, err := strconv.ParseUint(s[i+2:i+6], 16, 16)
		if err != nil || r < 0xd800 || r > 0xdfff {
			continue
		}
		if r >= 0xdc00 || i+12 > len(s) || s[i+6:i+8] != `\u` {
			return true
		}
		low, err := strconv.ParseUint(s[i+8:i+12], 16, 16)
		if err != nil || low < 0xdc00 || low > 0xdfff {
			return true
		}
		i += 11
	}
	return false
}

func checkQuestion(t interface {
	Helper()
	Errorf(string, ...any)
}, data []byte) {
	t.Helper()
	domain, attrs, hits, delay, want := reference(data)
	var q question
	d := decoder{s: string(data)}
	got := d.question(&q)
	if got == nil {
		got = d.end()
	}
	if (got == nil) != (want == nil) {
		t.Errorf("%q: decoder says %v, encoding/json %v", data, got, want)
		return
	}
	if want != nil {
		if _, ok := errors.AsType[*answer.FieldError](got); !ok {
			t.Errorf("%q: the error %v names no field", data, got)
		}
		return
	}
	found := map[string]string{}
	for k, v := range q.attrs.All() {
		found[k] = v
	}
	if q.domain != domain || fmt.Sprint(found) != fmt.Sprint(attrs) || q.hits != hits || q.maxDelay != delay {
		t.Errorf("%q: got %q %q %d %d, want %q %q %d %d", data, q.domain, found, q.hits, q.maxDelay, domain, attrs,
			hits, delay)
	}
}

// FuzzQuestion holds the decoder against encoding/json.
func FuzzQuestion(f *testing.F) {
	for _, s := range []string{
		`{"domain": "shop", "attributes": {"user": "ada", "path": "/api/x"}, "hits": 1}`,
		`{"attributes":{"a":"\u00e9\ud83d\ude00\\\"\/\b\f\n\r\t","b":"é"},"max_delay":1.5e0}`,
		`{"hits":-2147483647,"max_delay":0}`, `{"hits":-0}`, `{"max_delay":1e400}`, `{"max_delay":-0.0}`, ` { } `, `{"a":1}`,
		`{"domain":"\ud800"}`, `{"domain":"\ud800\ud800\udc00"}`, `{"hits":1}{}`, `{"attributes":{"a":"b","a":"c"}}`, "{\"domain\":\"\x00\"}", "{\"domain\":\"\xc0\"}",
		`{"domain":"\\ud800"}`, `[{}]`, `{"hits":1,}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) { checkQuestion(t, data) })
}

// TestQuestionProperty makes questions that are nearly right far more often than a fuzzer does.
func TestQuestionProperty(t *testing.T) {
	literal := rapid.SampledFrom([]string{`1`, `0`, `-1`, `1.5`, `1e3`, `"1"`, `null`, `true`, `{}`, `[]`, `2147483647`,
		`2147483648`, `-0`, `01`, `""`, `"\u0061"`})
	text := rapid.Custom(func(t *rapid.T) string {
		b, err := json.Marshal(rapid.String().Draw(t, "text"))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	})
	member := rapid.Custom(func(t *rapid.T) string {
		name := rapid.SampledFrom([]string{"domain", "attributes", "hits", "max_delay", "x"}).Draw(t, "name")
		value := rapid.OneOf(literal, text).Draw(t, "value")
		if name == "attributes" {
			pairs := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) string {
				return rapid.SampledFrom([]string{`"a"`, `"b"`, `"\u0061"`, `"c"`}).Draw(t, "attribute") + ":" +
					rapid.OneOf(text, text, text, literal).Draw(t, "value")
			}), 0, 3).Draw(t, "attributes")
			value = "{" + strings.Join(pairs, ",") + "}"
		}
		return `"` + name + `" :` + value
	})
	rapid.Check(t, func(t *rapid.T) {
		checkQuestion(t, []byte("{"+strings.Join(rapid.SliceOfN(member, 0, 4).Draw(t, "members"), " ,")+"}"))
	})
}

// FuzzQuery holds the reading of a query against what was put into it, and that nothing makes it
// panic.
func FuzzQuery(f *testing.F) {
	for _, s := range []string{"a=b", "a=b&a=c", "domain=x&hits=1&max_delay=2", "%zz", "a=%ff", "&&=", "hits=NaN",
		"a+b=c+d"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		var q question
		if err := questionOfQuery(raw, &q); err != nil {
			if _, ok := errors.AsType[*answer.FieldError](err); !ok {
				t.Errorf("%q: the error %v names no field", raw, err)
			}
			return
		}
		var names []string
		for name, value := range q.attrs.All() {
			if !utf8.ValidString(name) || !utf8.ValidString(value) || name == "" {
				t.Errorf("%q: attribute %q=%q", raw, name, value)
			}
			if slices.Contains(names, name) {
				t.Errorf("%q: attribute %q twice", raw, name)
			}
			names = append(names, name)
		}
		if len(names) > strings.Count(raw, "&")+1 {
			t.Errorf("%q: %d attributes", raw, len(names))
		}
	})
}
