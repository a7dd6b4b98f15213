package rule

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// Two requests have the same key only if they have the same parts; and AppendKey makes the same key
// again from the parts that KeyParts shows.
func TestKeysAreInjective(t *testing.T) {
	for _, prefix := range []int{64, 128, 48, 57, 1} {
		s, problems := Compile([]*File{{Domain: "default",
			Rules: []*Rule{testRule(t, "r", "user|ip|team", "path", "ip|user")}}}, Options{IPv6Prefix: prefix})
		if problems != nil {
			t.Fatal(problems)
		}
		w := s.rules[0].Windows[0]
		value := rapid.Custom(func(t *rapid.T) string {
			switch rapid.IntRange(0, 5).Draw(t, "kind") {
			case 0:
				return string(rapid.SliceOfN(rapid.Byte(), 0, 6).Draw(t, "bytes"))
			case 1:
				return strings.Repeat("x", rapid.SampledFrom([]int{126, 127, 128, 129, 255, 256, 257, 300}).Draw(t,
					"length"))
			case 2:
				return netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "v4"))).String()
			case 3:
				return netip.AddrFrom16([16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "v6"))).String()
			default:
				return rapid.StringMatching(`[ab\x00\x01]{0,4}`).Draw(t, "short")
			}
		})
		seen := map[string]string{}
		var m Matches
		rapid.Check(t, func(t *rapid.T) {
			q := Map{}
			for _, name := range []string{"user", "ip", "team", "path"} {
				if rapid.IntRange(0, 3).Draw(t, "has") > 0 {
					q[name] = value.Draw(t, name)
				}
			}
			s.Match(&Query{Domain: "default", Attributes: q}, &m)
			if len(m.Hits) == 0 {
				return
			}
			// The parts in full, also of values that are hashed.
			var full []string
			for _, alternatives := range []Key{{"user", "ip", "team"}, {"path"}, {"ip", "user"}} {
				for _, name := range alternatives {
					v := naiveValue(name, q[name])
					if v == "" {
						continue
					}
					if a, err := netip.ParseAddr(v); name == "ip" && err == nil && a.Is6() {
						v = netip.PrefixFrom(a, prefix).Masked().String()
					}
					full = append(full, fmt.Sprintf("%s=%q", name, v))
					break
				}
			}
			key, identity := string(m.Hits[0].Key), strings.Join(full, " ")
			if old, ok := seen[key]; ok && old != identity {
				t.Fatalf("the key of %s is that of %s", identity, old)
			}
			seen[key] = identity
			parts := w.KeyParts(m.Hits[0].Key)
			if len(parts) != 3 {
				t.Fatalf("parts of the key of %s: %q", identity, parts)
			}
			if slices.ContainsFunc(parts, func(p string) bool { return strings.Contains(p, "=sha256:") }) {
				return
			}
			again, err := w.AppendKey([]byte("x"), parts)
			if err != nil || !bytes.Equal(again[1:], m.Hits[0].Key) || again[0] != 'x' {
				t.Fatalf("key %q of %s has parts %q, and those the key %q (%v)", m.Hits[0].Key, identity, parts, again,
					err)
			}
		})
	}
}

func TestKeyParts(t *testing.T) {
	s := testSet(t, &File{Rules: []*Rule{testRule(t, "r", "user|ip", "path"), testRule(t, "all")}})
	w := s.rules[0].Windows[0]
	for _, c := range []struct {
		parts []string
		want  []string // nil for an error
		err   string
	}{
		{[]string{"user=ada", "path=/x"}, []string{"user=ada", "path=/x"}, ""},
		{[]string{"ip=::ffff:10.0.0.1", "path=//x?y"}, []string{"ip=10.0.0.1", "path=/x"}, ""},
		{[]string{"ip=2001:db8::17", "path=/"}, []string{"ip=2001:db8::/64", "path=/"}, ""},
		{[]string{"user=a=b", "path=/"}, []string{"user=a=b", "path=/"}, ""},
		{[]string{"team=x", "path=/"}, nil, `"team=x", is not name=value with user or ip`},
		{[]string{"user=x"}, nil, "keys of 2 parts, not 1"},
		{[]string{"user=x", "path=/"}, []string{"user=x", "path=/"}, ""},
		{[]string{"user=x", "/a"}, []string{"user=x", "path=/a"}, ""},
		{[]string{"ada", "/a"}, []string{"user=ada", "path=/a"}, ""},
		{[]string{"user=x", "pth=/"}, nil, `"pth=/", is not name=value with path`},
		{[]string{"ada,/a"}, []string{"user=ada", "path=/a"}, ""},
		{[]string{"ip=10.0.0.1,path=/a"}, []string{"ip=10.0.0.1", "path=/a"}, ""},
		{[]string{"user=a,b,path=/x,y"}, []string{"user=a,b", "path=/x,y"}, ""},
		{[]string{"ip=10.0.0.1, path=/a"}, []string{"ip=10.0.0.1", "path=/a"}, ""}, // as lists show it
		{[]string{"user=a, b, path=/x,y"}, []string{"user=a, b", "path=/x,y"}, ""},
		{[]string{"user=a, path=/b, path=/c"}, nil, "keys of 2 parts, not 3"},
		{[]string{"a,b,/x"}, nil, "keys of 2 parts, not 3"},
		{[]string{"user=a,path=/b,path=/c"}, nil, "keys of 2 parts, not 3"},
	} {
		key, err := w.AppendKey(nil, c.parts)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) || len(key) != 0 {
				t.Errorf("%q: %q, %v, want error %q", c.parts, key, err, c.err)
			}
			continue
		}
		if got := w.KeyParts(key); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%q: %q, %v, want %q", c.parts, got, err, c.want)
		}
	}
	if key, err := s.rules[1].Windows[0].AppendKey(nil, nil); err != nil || len(key) != 0 {
		t.Errorf("the key of a global limit: %q, %v", key, err)
	}
	if parts := s.rules[1].Windows[0].KeyParts(nil); parts != nil {
		t.Errorf("the parts of a global key: %q", parts)
	}
}

// A key whose address is none is told from one that a request can have.
func TestNotAddress(t *testing.T) {
	s := testSet(t, &File{Rules: []*Rule{testRule(t, "r", "user|ip", "path"), testRule(t, "all")}})
	w := s.rules[0].Windows[0]
	for part, want := range map[string]string{
		"ip=192.0.2.1": "", "ip=2001:db8::7": "", "ip=2001:db8::/64": "", "user=999.1.1.1": "",
		"ip=192.0.2.999": "ip=192.0.2.999", "ip=192.0.2.0/24": "ip=192.0.2.0/24", "ip=2001:db8::/32": "ip=2001:db8::/32",
	} {
		key, err := w.AppendKey(nil, []string{part, "/"})
		if got := w.NotAddress(key); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", part, got, err, want)
		}
	}
	if got := s.rules[1].Windows[0].NotAddress(nil); got != "" {
		t.Errorf("of a global limit: %q", got)
	}
}

func FuzzKeyParts(f *testing.F) {
	s := testSet(f, &File{Rules: []*Rule{testRule(f, "r", "user|ip", "path")}})
	w := s.rules[0].Windows[0]
	for _, parts := range [][]string{{"user=ada", "path=/x"}, {"ip=10.0.0.1", "path=/"}, {"ip=2001:db8::1", "path=/"}} {
		key, err := w.AppendKey(nil, parts)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(key)
	}
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Add([]byte{1, 2, 3})
	f.Fuzz(func(t *testing.T, key []byte) {
		if parts := w.KeyParts(key); parts != nil && len(parts) != 2 {
			t.Fatalf("%q has parts %q", key, parts)
		}
	})
}
