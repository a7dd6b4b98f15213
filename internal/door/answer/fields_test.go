package answer

import (
	"strings"
	"testing"

	"github.com/dunglas/httpsfv"
)

// plain is what appendSFString makes of a name before it is quoted.
func plain(name string) string {
	var b strings.Builder
	for i := range len(name) {
		if c := name[i]; c < 0x20 || c >= 0x7f {
			b.WriteString("%" + strings.ToUpper(string([]byte{"0123456789abcdef"[c>>4], "0123456789abcdef"[c&15]})))
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// FuzzStructuredString: any name of a limit becomes a String that a library reads, and writes in
// the same way.
func FuzzStructuredString(f *testing.F) {
	for _, seed := range []string{"", "api-per-user:60s", `say "hi" \ there`, "größe\n", "\x7f\x00\xff", "%41"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		got := string(appendSFString(nil, name))
		want, err := httpsfv.Marshal(httpsfv.NewItem(plain(name)))
		if err != nil || got != want {
			t.Fatalf("%q became %s, a library makes %s (%v)", name, got, want, err)
		}
		back, err := httpsfv.UnmarshalItem([]string{got})
		if err != nil || back.Value != plain(name) {
			t.Fatalf("%s reads back as %v (%v)", got, back.Value, err)
		}
	})
}
