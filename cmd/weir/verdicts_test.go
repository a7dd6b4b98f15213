package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/admin/words"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/testkit/golden"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// Verdicts are told in sentences, those that need a look first.
func TestWriteVerdicts(t *testing.T) {
	now := time.Date(2026, 11, 23, 18, 0, 0, 0, time.UTC)
	verdict := func(name, confidence, sentence, proposal string) insight.Verdict {
		v := insight.Verdict{Verdict: name, Confidence: confidence, Sentence: sentence, Since: now.Add(-76 * time.Hour)}
		if proposal != "" {
			v.Proposal = &insight.Proposal{Sentence: proposal}
		}
		return v
	}
	rules := []insight.RuleReport{
		{Domain: "shop", Name: "login", Met: 11_160, Refused: 2_690, Verdicts: []insight.Verdict{verdict("works", "high", "Refused 24 %.", "")}},
		{Domain: "shop", Name: "free"},
		{Domain: "shop", Name: "search", Met: 310_400, Refused: 21_107, Verdicts: []insight.Verdict{
			verdict("strict", "high", "31 good clients were refused in 24 h.",
				"40/min would refuse 2 of them, and still 9 others."),
			verdict("ignored", "low", "12 % came back when told.", ""),
		}},
		{Domain: "shop", Name: "trial\x1b[31m", Mode: "shadow", Met: 40, WouldRefuse: 7, Verdicts: []insight.Verdict{verdict("too_early", "low", "50 min still.", "")}},
	}
	var out bytes.Buffer
	for _, all := range []bool{true, false} {
		if err := words.Verdicts(&out, rules, all, now); err != nil {
			t.Fatal(err)
		}
		out.WriteString("\n---\n")
	}
	if err := words.Verdicts(&out, rules[3:], false, now); err != nil {
		t.Fatal(err)
	}
	golden.Check(t, "verdicts.txt", out.String())
	if err := verdictsHold(&ruleReports{Rules: rules}, []string{"broken", "loose_crowd"}); err != nil {
		t.Error(err)
	}
	// What was not judged yet is not fine.
	fresh := append(rules, insight.RuleReport{Domain: "shop", Name: "new", Limits: []string{"1 per minute"}})
	if err := verdictsHold(&ruleReports{Rules: fresh}, []string{"broken"}); err == nil ||
		!strings.Contains(err.Error(), "shop/new is not judged yet") {
		t.Error(err)
	}
	// One that is not the first counts, too.
	if err := verdictsHold(&ruleReports{Rules: rules}, []string{"broken", "ignored"}); err == nil ||
		!strings.Contains(err.Error(), "shop/search ignored") {
		t.Error(err)
	}
}

// A preview is told in words, and so is what is wrong with the files.
func TestWritePreview(t *testing.T) {
	from := time.Date(2026, 11, 23, 15, 12, 0, 0, time.UTC)
	result := &insight.PreviewResult{
		From: from, To: from.Add(168 * time.Minute), Requests: 812_334, Sampled: 4, Nodes: insight.Nodes{Asked: 3, Answered: 2},
		Now:      insight.PreviewSide{Refused: 14_622, Share: 0.018, ClientsRefused: 90},
		Then:     insight.PreviewSide{Refused: 23_557, Share: 0.029, PlusMinus: 0.002, ClientsRefused: 128},
		OnlyThen: 9_000, OnlyNow: 65,
		Clients: insight.PreviewClients{More: 41, Fewer: 3, GoodMore: 38, Examples: []insight.PreviewKey{{Key: "user=ada\u202e", Then: 120, Good: true}, {Key: "ip=192.0.2.1", Now: 5}}},
		Rules: []insight.PreviewRule{
			{Domain: "shop", Rule: "search", Now: 14_622, Then: 23_557, MetNow: 310_000, MetThen: 310_000, Change: "changed"},
			{Domain: "shop", Rule: "all", MetThen: 812_334, Change: "added", Estimate: true},
			{Domain: "shop", Rule: "login", Now: 7, Then: 7, MetNow: 9, MetThen: 9, Change: "same"},
		},
		Tests:    insight.PreviewTests{Passed: 6, Failed: 1, Failures: []string{"shop_test.yaml: a client is refused"}},
		Warnings: []string{"a rule matches on a secret value, which was not recorded"},
	}
	var out bytes.Buffer
	if err := words.Preview(&out, result); err != nil {
		t.Fatal(err)
	}
	out.WriteString("\n---\n")
	if err := words.Preview(&out, &insight.PreviewResult{Problems: []insight.PreviewProblem{
		{File: "shop.yaml", Line: 3, Column: 5, Message: "unknown key alow; did you mean allow?"}, {Message: "no rule is left"},
	}}); err != nil {
		t.Fatal(err)
	}
	golden.Check(t, "preview.txt", out.String())
}

// What lint proves of a rule is a verdict as soon as a server runs, before any request.
func TestProvenVerdicts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	servertest.WriteRules(t, filepath.Join(dir, "shop.yaml"), `
domain: shop
exempt: { path: /health }
limits:
  - { name: health, when: { path: /health }, per: [ip], allow: 3/hour }
  - { name: tight, per: [ip], allow: 3/hour }
  - { name: loose, per: [ip], allow: 30/hour }
`)
	p := start(t, "serve", "--rules", dir, "--listen-admin=127.0.0.1:0")
	defer p.End()
	status, out, errs := runWeir("verdicts", "--server", "http://"+p.Addr("admin"), "--fail-on",
		"never_met,adds_nothing")
	if status != 1 || !strings.Contains(errs, "shop/health never_met") ||
		!strings.Contains(errs, "shop/loose adds_nothing") || strings.Contains(errs, "shop/tight") {
		t.Errorf("status %d: %s", status, errs)
	}
	for _, says := range []string{"No request can meet it: exempt lets all with that path pass.",
		"It never refuses anything, since tight is always tighter, except for keys that are granted more there."} {
		if !strings.Contains(out, says) {
			t.Errorf("no %q in\n%s", says, out)
		}
	}
}
