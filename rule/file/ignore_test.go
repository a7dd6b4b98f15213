package file

import (
	"slices"
	"strings"
	"testing"

	"github.com/weir-rl/weir/rule/file/internal/message"
)

// lintText loads a file and returns the names of its warnings with their lines, and the errors of
// lint.
func lintText(t *testing.T, text string, o LintOptions) (warnings, faults []string) {
	t.Helper()
	set, loaded, err := load(t, "x.yaml", text)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range append(loaded, Lint(set, o)...) {
		if p.Name == "" {
			faults = append(faults, p.Message+" ("+p.Hint+")")
			continue
		}
		if p.Name == "never-refuses" {
			continue // the rules of these tests are much alike
		}
		subject, _, _ := strings.Cut(p.Message, ":")
		warnings = append(warnings, subject+" "+p.Name)
	}
	return warnings, faults
}

func TestIgnore(t *testing.T) {
	for _, c := range []struct {
		name, text     string
		warned, faults []string
	}{
		{"above a limit", `
limits:
  # lint: ignore forgeable-key: the gateway writes it
  - name: a
    per: [header.x]
    allow: 1/s
  - name: b
    per: [header.x]
    allow: 1/s
`, []string{"b forgeable-key"}, nil},
		{"at the end of a line of a limit", `
limits:
  - name: a
    per: [header.x]   # lint: ignore forgeable-key
    allow: 1/s
  - { name: b, per: [header.x], allow: 1/s }
  - { name: c, per: [header.x], allow: 1/s }  # lint: ignore forgeable-key, cost-zero
  - { name: d, per: [header.x], allow: 1/s }
`, []string{"b and d forgeable-key", "lint unused-ignore"}, nil},
		{"inside a limit", `
limits:
  - name: a
    # lint: ignore forgeable-key
    per: [header.x]
    allow: 1/s
  - name: b
    per: [header.x]
    allow: 1/s
    # lint: ignore forgeable-key

  # lint: ignore never-matches
  - name: c
    per: [header.x]
    when: { ip: nobody }
    allow: 1/s
`, []string{"c forgeable-key"}, nil},
		{"of the whole file", `# lint: ignore forgeable-key
limits: [{ name: a, per: [header.x], allow: 1/s }, { name: b, per: [header.x], allow: 1/s }]
`, nil, nil},
		{"above limits", `
domain: d
# lint: ignore forgeable-key
limits:
- name: a
  per: [header.x]
  allow: 1/s
# lint: ignore cost-zero
- name: b
  per: [header.x]
  allow: 1/s
  cost: 0
`, nil, nil},
		{"in braces", `
limits: [
  # lint: ignore forgeable-key
  { name: a, per: [header.x], allow: 1/s },
  { name: b, per: [header.x], allow: 1/s },
]
`, []string{"b forgeable-key"}, nil},
		{"nothing", `
limits:
  # lint: ignore long-wait
  - { name: a, per: [ip], allow: 1/s }
`, []string{"lint unused-ignore"}, nil},
		{"nothing, on purpose", `
# lint: ignore unused-ignore
limits:
  # lint: ignore long-wait
  - { name: a, per: [ip], allow: 1/s }
`, nil, nil},
		{"misspelt", `
limits:
  - { name: a, per: [header.x], allow: 1/s } # lint: ignore forgable-key
  # lint: ignroe forgeable-key
  # lint: ignore
  # lint: is a tool
  # lint: ignore frobnication
  - { name: b, allow: 1/s }
`, []string{"a forgeable-key"}, []string{
			`lint: ignore: there is no warning "forgable-key" (did you mean "forgeable-key"?)`,
			`lint: "ignroe" is no word that is known here (did you mean "ignore"?)`,
			`lint: ignore names no warning (as in: # lint: ignore long-wait: the client is a batch job)`,
			`lint: ignore: there is no warning "frobnication" (weir lint --warnings lists them)`,
		}},
		{"no comment", `
limits:
  - name: a
    per: [header.x]
    allow: 1/s
    response:
      body: |
        # lint: ignore forgeable-key
`, []string{"a forgeable-key"}, nil},
		{"descriptors", `
domain: d
descriptors:
  # lint: ignore cost-zero
  - key: k
    value: a*
    rate_limit: { unit: day, requests_per_unit: 1 }
  # lint: ignore cost-zero
  - key: k
    value: "*a"
    descriptors:
      - key: j
        value: b*
        rate_limit: { unit: day, requests_per_unit: 1, cost: 0 }
      - key: j
        value: "*b"
        rate_limit: { unit: day, requests_per_unit: 1, cost: 0, metadata: }  # lint: ignore misplaced-key
`, []string{"lint unused-ignore"}, nil},
		{"warnings of loading", `
domain: d
descriptors:
  - key: k
    value: 5  # lint: ignore number-as-text
  - key: j
    value: 5
`, []string{"j_5 number-as-text"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			warned, faults := lintText(t, c.text, LintOptions{})
			for i := range warned {
				warned[i] = strings.Replace(warned[i], "value ", "j_5 ", 1)
			}
			if !slices.Equal(warned, c.warned) || !slices.Equal(faults, c.faults) {
				t.Errorf("warnings %q, want %q\nfaults %q, want %q", warned, c.warned, faults, c.faults)
			}
		})
	}
}

// Whatever a comment says: it is none of lint's, it is a mistake that is told, or it names
// warnings, each once, and silences those only.
func FuzzIgnore(f *testing.F) {
	for _, text := range []string{"lint: ignore long-wait: a batch job", "lint: ignore a, b\tc,,a", "lint:ignore",
		"lint: ignroe a",
		"lint: ignore : why", "lint:", "lint: is a tool", "lints", "lint: ignore forgeable-key unused-ignore"} {
		f.Add(text)
	}
	const file = "limits:\n  - { name: a, per: [header.x], allow: 1/s } # "
	f.Fuzz(func(t *testing.T, text string) {
		ig, ok := message.ParseIgnore(text)
		if ok != (len(ig.Names) > 0 || ig.Fault != "") || ok && !strings.HasPrefix(text, "lint:") {
			t.Fatalf("%q: %+v, %t", text, ig, ok)
		}
		for i, name := range ig.Names {
			if name == "" || strings.ContainsAny(name, ", \t:") || slices.Contains(ig.Names[:i], name) {
				t.Errorf("%q names %q", text, ig.Names)
			}
		}
		if strings.TrimSpace(text) != text || strings.ContainsFunc(text,
			func(r rune) bool { return r < ' ' && r != '\t' || r >= 0x7f }) {
			// a comment ends with its line; what YAML may not hold, or trims, is not this parser's
			return
		}
		set, _, err := load(t, "x.yaml", file+text+"\n")
		if err != nil {
			t.Fatalf("%q: a comment keeps the file from being loaded: %v", text, err)
		}
		warned, faults := false, 0
		for _, p := range Lint(set, LintOptions{}) {
			warned = warned || p.Name == "forgeable-key"
			if p.Name == "" {
				faults++
			}
		}
		if silenced := ok && slices.Contains(ig.Names, "forgeable-key"); warned == silenced {
			t.Errorf("%q: warned %t, silenced %t", text, warned, silenced)
		}
		if ig.Fault != "" && faults == 0 {
			t.Errorf("%q: the mistake is not told", text)
		}
	})
}

// What a client can write is known with the configuration only.
func TestLintIdentity(t *testing.T) {
	const text = `
limits:
  - { name: a, per: [user], allow: 1/s }
  - { name: b, per: [user, ip], allow: 2/s }
  - { name: c, per: [org], allow: 2/s }
  - { name: d, when: { path: /x }, per: [user], allow: 2/s }
  - { name: e, when: { path: /x }, per: [ip], allow: 2/s }
  - { name: f, per: [org], allow: 2/h, ban: { after: 5, within: 10m, for: 1h } }
`
	for _, c := range []struct {
		identity map[string]string
		warned   []string
	}{
		{nil, nil},
		{map[string]string{"user": "jwt:sub", "org": "tls"}, nil},
		{map[string]string{"user": "header:X-User"}, []string{"a and b unverified-identity"}},
		{map[string]string{"user": "Cookie:u", "org": "basic"}, []string{"a and b unverified-identity", "c and f unverified-identity", "f forgeable-ban"}},
	} {
		warned, faults := lintText(t, text, LintOptions{Identity: c.identity})
		if !slices.Equal(warned, c.warned) || faults != nil {
			t.Errorf("%v: %q, want %q; %q", c.identity, warned, c.warned, faults)
		}
	}
	// An ignore of it is not called useless by who does not know the configuration.
	ignored := strings.Replace(text, "limits:", "# lint: ignore unverified-identity: the gateway removes it\nlimits:",
		1)
	if warned, _ := lintText(t, ignored, LintOptions{}); warned != nil {
		t.Errorf("without the configuration: %q", warned)
	}
	if warned, _ := lintText(t, ignored, LintOptions{Identity: map[string]string{"user": "basic"}}); warned != nil {
		t.Errorf("ignored: %q", warned)
	}
}
