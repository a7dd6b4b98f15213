package main

import (
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/admin"
	"github.com/weir-rl/weir/internal/observe/insight"
)

// Names of limits, which the Lyft form lets be anything, do a terminal no harm.
func TestTablesAreHarmless(t *testing.T) {
	const domain, limit = "sh\x1bop", "log\x1b[31min"
	var out strings.Builder
	if err := writeKeys(&out, []admin.KeyInfo{{Domain: domain, Limit: limit}, {Domain: "shop", Limit: "login"}}); err != nil {
		t.Fatal(err)
	}
	list := []insight.Candidate{{Domain: domain, Limit: limit, Top: []insight.CandidateKey{{Key: "user=ada", Count: 1}}}}
	if err := writeCandidates(&out, list, time.Now()); err != nil {
		t.Fatal(err)
	}
	if strings.ContainsRune(out.String(), '\x1b') || strings.Count(out.String(), `"sh\x1bop"/"log\x1b[31min"`) != 3 || !strings.Contains(out.String(), "shop/login ") {
		t.Errorf("got\n%s", out.String())
	}
}
