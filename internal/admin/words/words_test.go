package words

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/admin"
	"github.com/weir-rl/weir/internal/admin/audit"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/recent"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// Names of limits, which the Lyft form lets be anything, do a terminal no harm.
func TestTablesAreHarmless(t *testing.T) {
	const domain, limit = "sh\x1bop", "log\x1b[31min"
	var out strings.Builder
	if err := Keys(&out, []admin.KeyInfo{{Domain: domain, Limit: limit}, {Domain: "shop", Limit: "login"}}); err != nil {
		t.Fatal(err)
	}
	list := []insight.Candidate{{Domain: domain, Limit: limit,
		Top: []insight.CandidateKey{{Key: "user=ada", Count: 1}}}}
	if err := Candidates(&out, list, time.Now()); err != nil {
		t.Fatal(err)
	}
	if strings.ContainsRune(out.String(), '\x1b') || strings.Count(out.String(), `"sh\x1bop"/"log\x1b[31min"`) != 3 ||
		!strings.Contains(out.String(), "shop/login ") {
		t.Errorf("got\n%s", out.String())
	}
}

// TestShellWord: what is printed of a key is what a shell reads back.
func TestShellWord(t *testing.T) {
	servertest.Needs(t, "bash")
	for _, s := range []string{"user=ada", "user=a b", "it's", `a\b"c`, "\x1b[2J\n\xff", "ü", "", "$(id)", "~", "*",
		"a'\x00"} {
		word := shellWord(s)
		if strings.ContainsAny(word, "\x1b\n\x00") {
			t.Errorf("%q is printed as %q", s, word)
		}
		if strings.Contains(s, "\x00") {
			continue // which no argument can hold
		}
		out, err := exec.Command("bash", "-c", "printf %s "+word).Output()
		if err != nil || string(out) != s {
			t.Errorf("%q is printed as %s, which a shell reads as %q (%v)", s, word, out, err)
		}
	}
}

// TestDecisionEscapes: nothing of a decision steers the terminal, whoever wrote it: the client, a
// rule file, whose names may hold anything in the form of envoyproxy/ratelimit, or another node.
func TestDecisionEscapes(t *testing.T) {
	const bad = `\u001b]0;title\u0007\u001b[2J\u202e\r`
	for _, text := range []string{
		`"allowed":false,"outcome":"denied` + bad + `","retry_after":3`,
		`"allowed":true,"outcome":"` + bad + `"`,
		`"allowed":false,"banned":true,"retry_after":3`,
	} {
		var e recent.Entry
		err := json.Unmarshal([]byte(`{"decision":"4vq8r2mxw0c7e","domain":"shop`+bad+`","door":"`+bad+`","node":"`+bad+`",`+text+`,
			"attributes":{"path`+bad+`":"`+bad+`","method":"`+bad+`","path":"/`+bad+`"},
			"limits":[{"name":"a`+bad+`","rule":"b`+bad+`","given_name":"c`+bad+`","key":"user=`+bad+`","allows":"10`+bad+`","algorithm":"x`+bad+`","mode":"`+bad+`","refuses":true,"file":"f`+bad+`","line":1},
				{"name":"d`+bad+`","rule":"e`+bad+`","allows":"`+bad+`","algorithm":"`+bad+`","refuses":true}]}`), &e)
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		Decision(&b, &e)
		for _, shown := range []string{b.String(), DecisionLine(&e)} {
			if i := strings.IndexAny(shown, "\x1b\a\r\u202e"); i >= 0 {
				t.Errorf("%q has %q", shown, shown[i:min(i+8, len(shown))])
			}
		}
	}
}

// Words that the golden file of weir explain --id lacks.
func TestDecisionWords(t *testing.T) {
	l := recent.Limit{Name: "a", Rule: "a", Mode: "enforce", Allowed: true}
	with := func(f func(*recent.Limit)) recent.Limit { c := l; f(&c); return c }
	for want, e := range map[string]recent.Entry{
		"It was ADMITTED, to wait 1.5 s for its turn.":                                              {Allowed: true, Delay: 15e5, Limits: []recent.Limit{l}},
		"passed it above the limit, in the soft margin up to 110":                                   {Allowed: true, Limits: []recent.Limit{with(func(l *recent.Limit) { l.Soft, l.SoftLimit, l.NearLimit = true, 110, true })}},
		"passed it, near the limit":                                                                 {Allowed: true, Limits: []recent.Limit{with(func(l *recent.Limit) { l.NearLimit = true })}},
		"It was REFUSED by a, and can never pass: it asks for more than the limit holds.":           {RetryAfter: -1, Limits: []recent.Limit{with(func(l *recent.Limit) { l.Refuses, l.Allowed = true, false })}},
		"It was REFUSED outright, since its key was banned by a. It can pass 15 min later, at 1970": {Banned: true, RetryAfter: 9e8, Time: time.Unix(0, 0), Limits: []recent.Limit{with(func(l *recent.Limit) { l.Refuses, l.Allowed = true, false })}},
		"in shadow: would have passed it":                                                           {Allowed: true, Limits: []recent.Limit{with(func(l *recent.Limit) { l.Mode = "shadow" })}},
		"its quota was used up, and others' was not; it would have passed it 1 s later":             {Allowed: true, Limits: []recent.Limit{with(func(l *recent.Limit) { l.Mode, l.Allowed, l.RetryAfter = "quota", false, 1e6 })}},
		"and 3 more limits that the server had no room to remember":                                 {Limits: []recent.Limit{l}, LimitsLeftOut: 3},
		"It met no limit.": {Allowed: true},
	} {
		var out bytes.Buffer
		Decision(&out, &e)
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

// TestAuditSaysWhatChanged: a record of other rules has what changed, in place of two digests.
func TestAuditSaysWhatChanged(t *testing.T) {
	var list []audit.Entry
	if err := json.Unmarshal([]byte(`[
		{"seq": 2, "who": "weir", "what": "rules in force", "before": {"digest": "sha256:aa", "files": 1, "version": "6"},
			"after": {"digest": "sha256:bb", "files": 1, "version": "7", "changes": ["shop/a: allow 1/s → 2/s", "and 9 more changes"]}},
		{"seq": 1, "who": "weir", "what": "rules in force", "before": {"digest": "sha256:cc"}, "after": {"digest": "sha256:aa"}}]`),
		&list); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := Audit(&out, list); err != nil {
		t.Fatal(err)
	}
	if text := out.String(); !strings.Contains(text, "version 6") ||
		!strings.Contains(text, "version 7 shop/a: allow 1/s → 2/s; and 9 more changes") || strings.Contains(text, "sha256:bb") ||
		!strings.Contains(text, `{"digest":"sha256:cc"}`) {
		t.Errorf("got\n%s", text)
	}
}
