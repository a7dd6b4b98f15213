package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/observe/recent"
)

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
		writeDecision(&b, &e)
		for _, shown := range []string{b.String(), decisionLine(&e)} {
			if i := strings.IndexAny(shown, "\x1b\a\r\u202e"); i >= 0 {
				t.Errorf("%q has %q", shown, shown[i:min(i+8, len(shown))])
			}
		}
	}
}

// An id that no node remembers is told so, with one reason; what is no id, why it is none.
func TestExplainForgottenID(t *testing.T) {
	inFolder(t, hourly)
	p := start(t, "serve", "--rules=rules.yaml")
	server := "--server=http://" + p.addr("admin")
	for id, c := range map[string]struct {
		status int
		errs   string
	}{
		"4vq8r2mxw0c7e": {1, "weir: id: no such decision is kept: it may have been pushed out by newer ones, or been made by another node\n"},
		"zzzzzzzzzzzzz": {exitUsage, `weir: --id: no decision has the id "zzzzzzzzzzzzz": ids begin with 0 to 9 or a to f, and are not 0` + "\n"},
		"4vq8r2mxw0c7":  {exitUsage, `weir: --id: "4vq8r2mxw0c7" is no id of a decision: that has 13 letters and digits, and this has 12; a refusal has it as X-RateLimit-Decision` + "\n"},
	} {
		if status, _, errs := runCommand(t, "explain", "--id", id, server); status != c.status || errs != c.errs {
			t.Errorf("%s: exit status %d, %s", id, status, errs)
		}
	}
	p.end()
}
