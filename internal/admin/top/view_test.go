package top

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/charmbracelet/x/ansi"
	"pgregory.net/rapid"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/recent"
	"github.com/weir-rl/weir/internal/testkit/golden"
)

// Times are shown by the clock of who looks, which must be the same for everybody here.
func TestMain(m *testing.M) {
	time.Local = time.UTC
	os.Exit(m.Run())
}

// The header says what is away, on the narrowest screen, and how each node decides; not what is
// back.
func TestAway(t *testing.T) {
	t.Parallel()
	s := shop()
	last := insight.Outage{Store: "redis", Kind: insight.StoreAway, From: now.Add(-time.Minute), Times: 1,
		OutageCounts: insight.OutageCounts{Alone: 867, ShareAdmitted: 867, Over: 2},
		Nodes:        []insight.OutageNode{{Node: "node\x1b-1", Alone: 867, Does: "admits 1/2 of each limit"}}}
	s.Set(Data{Outages: insight.MergeOutages([]insight.Outage{last})}, now)
	lines := strings.Split(bare(View(s, 80, 24)), "\n")
	if !strings.HasPrefix(lines[0], "weir top") ||
		lines[1] != "Redis away since 18:03:22: 867 decided alone, 2 over" ||
		!strings.HasPrefix(lines[2], "  node") || !strings.HasSuffix(lines[2], "-1 admits 1/2 of each limit") ||
		!strings.HasPrefix(lines[3], "REQUESTS") {
		t.Errorf("%q", lines[:4])
	}
	if got := text(s); !strings.Contains(got, "\nRedis away since 2026-11-23T18:03:22Z: 867 decided alone, 2 over\n") {
		t.Error(got)
	}
	last.To = new(now.Add(-time.Second))
	s.Set(Data{Outages: insight.MergeOutages([]insight.Outage{last})}, now)
	if got := View(s, 80, 24); strings.Contains(got, "Redis away") {
		t.Error(got)
	}
	if got := text(s); !strings.Contains(got,
		"\nRedis away from 2026-11-23T18:03:22Z until 2026-11-23T18:04:21Z: 867 decided alone, 2 over\n") {
		t.Error(got)
	}
	s.Over = time.Millisecond
	if got := text(s); strings.Contains(got, "Redis away") {
		t.Error(got)
	}
}

// bare is a screen without styles, and without spaces at the ends of lines.
func bare(screen string) string {
	var b strings.Builder
	for line := range strings.SplitSeq(ansi.Strip(screen), "\n") {
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return b.String()
}

var now = time.Date(2026, 11, 23, 18, 4, 22, 0, time.UTC)

// shop is a server in the evening: one rule hurts, one does not hold a rush, one does nothing.
func shop() *State {
	banned := now.Add(19 * time.Minute)
	granted := now.Add(26 * time.Hour)
	series := insight.Series{}
	for i := range 60 {
		series.T = append(series.T, now.Unix()-int64(60*(60-i)))
		series.Admitted = append(series.Admitted, uint32(100+10*(i%7)))
		series.Refused = append(series.Refused, uint32(i/10))
	}
	series.Refused[40], series.Refused[41] = 300, 200
	rule := func(name, limit string, met, refused uint64, verdict, sentence string,
		fill [11]uint64) insight.RuleReport {
		return insight.RuleReport{
			Domain: "shop", Name: name, File: "shop.yaml", Line: 4, Mode: "enforce", Limits: []string{limit}, Per: []string{"ip"},
			Met: met, Refused: refused, Keys: 1203, KeysRefused: 12, Fill: fill, MaxFill: 3.4, PerSecond: float64(met) / 3600, RefusedAlone: refused / 2,
			Trend: []uint32{1, 2, 5, 9, 3, 2, 1, 1, 0, 0, 0, 1}, Good: insight.Good{Refused: refused / 30, Keys: 31, All: 1020, Share: 0.030, Low: 0.021, High: 0.043},
			Verdicts: []insight.Verdict{{Verdict: verdict, Confidence: "high", Domain: "shop", Rule: name, Sentence: sentence,
				Proposal: &insight.Proposal{Sentence: "40/min would refuse 2 of them, and still 9 others."}}},
		}
	}
	search := rule("search", "20 per minute", 51_600, 3_508, "strict",
		"31 good clients were refused in 24 h, 94 % of them signed in; 88 % came back when told.", [11]uint64{400, 300,
			200, 100, 80, 60, 20, 10, 10, 9, 31})
	search.Episodes = insight.Episodes{Obeyed: 88, Early: 9, GaveUp: 3}
	search.Series = &series
	many, few := 31.0, 2.0
	search.Curve = []insight.CurvePoint{{Limit: 20, Keys: 40, PlusMinus: 4, GoodKeys: &many},
		{Limit: 40, Keys: 11, PlusMinus: 2, GoodKeys: &few}}
	search.Top = []insight.KeyCount{{Key: "ip=198.51.100.7", Count: 1240}}
	login := rule("login-attempts", "5 per minute", 11_160, 2_690, "works", "Refused 2,690 of 11,160.",
		[11]uint64{900, 10, 5, 0, 0, 1, 1, 0, 2, 0, 40})
	api := rule("api", "1000 per hour, burst 20", 310_000, 0, "loose_crowd", "a limit per client cannot stop a crowd",
		[11]uint64{1100, 90, 10, 3})
	api.Limits = append(api.Limits, "10000 per day")
	api.Good = insight.Good{}
	legacy := rule("legacy-import", "3 at a time", 0, 0, "never_met", "never met in 24 h", [11]uint64{})
	legacy.Per, legacy.Trend, legacy.MaxFill, legacy.Good = nil, nil, 0, insight.Good{}
	trial := rule("trial", "1 per minute", 40, 0, "too_early", "wait for 50 minutes", [11]uint64{40})
	trial.Mode, trial.WouldRefuse, trial.Good = "shadow", 7, insight.Good{}

	s := &State{Server: "http://127.0.0.1:6070", Over: time.Hour, MayBan: true}
	s.explain = func(e *recent.Entry) string {
		return "decision " + e.ID.String() +
			"\n\nIt was REFUSED by login-attempts. The same request would have passed 41 s later.\n"
	}
	s.Set(Data{
		Overview: &insight.Overview{
			To: now, Step: 60, Nodes: insight.Nodes{Asked: 4, Answered: 4}, Requests: 403_000, Refused: 7_254, PerSecond: 112, P99: 0.00021,
			Series: series, NeedsALook: []insight.Verdict{search.Verdicts[0], api.Verdicts[0]},
		},
		Rules: []insight.RuleReport{api, legacy, login, search, trial},
		Keys: []insight.KeyCount{
			{Domain: "shop", Rule: "login-attempts", Limit: "login-attempts", Key: "ip=198.51.100.7", Count: 1240, Over: 12, RefusedShare: 0.97, BannedUntil: &banned, Obey: -1},
			{Domain: "shop", Rule: "search", Limit: "search", Key: "ip=2001:db8:77::/64", Count: 31, RefusedShare: 0.21, Fill: 1.3, Known: true, Obey: 0.5, GrantedUntil: &granted, Estimated: true},
			{Domain: "shop", Rule: "trial", Limit: "trial", Key: "user=\x1b[31mada\u202e, path=/\x00", Count: 3, RefusedShare: 0.004, Obey: -1},
			{Domain: "shop", Rule: "legacy-import", Limit: "legacy-import", Key: "", Count: 1, RefusedShare: 1, Obey: -1},
		},
		Decisions: []recent.Entry{
			decision(3, "POST", "/login", "ip=198.51.100.7", "login-attempts", "denied", 41),
			decision(2, "GET", "/search?q=\x1b]0;owned\x07", "ip=2001:db8:77::/64", "search", "near_limit", 0),
			decision(1, "GET", "/api/x", "user=ada", "trial", "shadow_denied", 58),
			decision(0, "GET", "/ok", "user=東京", "api", "allowed", 0),
		},
	}, now)
	return s
}

func decision(i int, method, path, key, limit, outcome string, wait int64) recent.Entry {
	return recent.Entry{
		ID: weir.DecisionID(1000 + i), Time: now.Add(-time.Duration(10-i) * 731 * time.Millisecond), Domain: "shop", Door: "proxy", Allowed: outcome != "denied",
		Outcome: outcome, Attributes: map[string]string{"method": method, "path": path}, RetryAfter: recent.Seconds(wait * 1e6),
		Limits: []recent.Limit{{Name: limit, Rule: limit, Key: key}},
	}
}

// The screens as people see them, at the two sizes, without styles. What to look for: nothing that
// a client sent does more than stand there (the third key, the second decision); the rules that
// need a look come first; at 80 columns nothing important is cut.
func TestScreens(t *testing.T) {
	for _, size := range []struct{ width, height int }{{80, 24}, {200, 60}} {
		for name, press := range map[string][]string{
			"all": nil, "rules": {"r"}, "keys": {"k", "down"}, "decisions": {"d"}, "help": {"?"}, "rule": {"down", "enter"},
			"decision": {"d", "enter"}, "ban": {"k", "b", "enter"}, "grant": {"k", "down", "g", "5", "0", "/", "h", "enter"}, "filter": {"/", "s", "e", "a"},
		} {
			s := shop()
			for _, key := range press {
				if a := s.Press(key, 10); a.Open != nil {
					a.Open.ruleReport = s.rules()[1]
				}
			}
			golden.Check(t, fmt.Sprintf("%s-%dx%d.txt", name, size.width, size.height),
				bare(View(s, size.width, size.height)))
		}
	}
	s := &State{Server: "http://127.0.0.1:6070"}
	golden.Check(t, "first-80x24.txt", bare(View(s, 80, 24)))
	s.Fail(errors.New("connection refused"), now)
	golden.Check(t, "never-80x24.txt", bare(View(s, 80, 24)))
	s = shop()
	s.Fail(errors.New("connection refused"), now.Add(10*time.Second))
	s.Fail(errors.New("connection refused"), now.Add(12*time.Second))
	s.Paused, s.MayBan = true, false
	golden.Check(t, "lost-80x24.txt", bare(View(s, 80, 24)))
	// With styles, which use the sixteen colours.
	golden.Check(t, "styled.txt", strings.ReplaceAll(View(shop(), 80, 12), "\x1b", "␛")+"\n")
}

// An address is shown whole at any usual width, beside keys of any length.
func TestAddressesAreWhole(t *testing.T) {
	const address = "ip=2001:db8:1111:2222:3333:4444:5555:6666"
	for width := 80; width <= 240; width++ {
		for _, press := range [][]string{nil, {"k"}, {"d"}} {
			s := shop()
			s.Keys[0].Key, s.Keys[1].Key = address, "user="+strings.Repeat("x", 300)
			s.Decisions[0].Limits[0].Key = address
			for _, key := range press {
				s.Press(key, 10)
			}
			want := 1
			if press == nil {
				want = 2
			}
			if screen := bare(View(s, width, 40)); strings.Count(screen, address+" ") != want {
				t.Fatalf("%d columns, %q:\n%s", width, press, screen)
			}
		}
	}
}

// sgr is the one kind of sequence that a screen holds.
var sgr = regexp.MustCompile(`\x1b\[[0-9;]*m`)

// For any answers and keys, a screen has the size of the terminal, and holds no sequence except
// styles.
func TestViewFits(t *testing.T) {
	keys := []string{"r", "k", "d", "s", "/", "x", "enter", "esc", "tab", "shift+tab", "up", "down", "pgdown", "end",
		"home", "b", "g", "y", "p", "?", "backspace", "space"}
	rapid.Check(t, func(t *rapid.T) {
		hostile := rapid.OneOf(rapid.String(),
			rapid.SampledFrom([]string{"", "user=\x1b[2J", "a\nb\r", strings.Repeat("漢字", 80), "\u202e\u2066x",
				"👩‍👩‍👧 🇩🇪", "\xff\xfe", "\t", "e\u0301\u0301"}))
		s := shop()
		s.MayBan = rapid.Bool().Draw(t, "may")
		for i := range s.Rules {
			s.Rules[i].Name, s.Rules[i].Limits[0], s.Rules[i].Verdicts[0].Verdict = hostile.Draw(t, "rule"),
				hostile.Draw(t, "limit"), hostile.Draw(t, "verdict")
			s.Rules[i].Verdicts[0].Sentence, s.Rules[i].Met = hostile.Draw(t, "sentence"), rapid.Uint64().Draw(t, "met")
			s.Rules[i].PerSecond, s.Rules[i].Trend = rapid.Float64().Draw(t, "rate"),
				rapid.SliceOf(rapid.Uint32()).Draw(t, "trend")
		}
		for i := range s.Keys {
			s.Keys[i].Key, s.Keys[i].Limit, s.Keys[i].RefusedShare = hostile.Draw(t, "key"), hostile.Draw(t, "of"),
				rapid.Float64().Draw(t, "share")
		}
		for i := range s.Decisions {
			s.Decisions[i].Attributes["path"], s.Decisions[i].Limits[0].Key = hostile.Draw(t, "path"),
				hostile.Draw(t, "its key")
		}
		s.Overview.NeedsALook[0].Rule, s.Server = hostile.Draw(t, "needs"), hostile.Draw(t, "server")
		if rapid.Bool().Draw(t, "lost") {
			s.Fail(errors.New(hostile.Draw(t, "error")), now)
		}
		for range rapid.IntRange(0, 8).Draw(t, "presses") {
			if a := s.Press(rapid.SampledFrom(keys).Draw(t, "press"), 10); a.Open != nil &&
				rapid.Bool().Draw(t, "answered") {
				a.Open.ruleReport = &s.Rules[0]
			} else if a.Open != nil {
				a.Open.failed = hostile.Draw(t, "problem")
			}
		}
		width, height := rapid.IntRange(1, 220).Draw(t, "width"), rapid.IntRange(1, 70).Draw(t, "height")
		screen := View(s, width, height)
		lines := strings.Split(screen, "\n")
		if len(lines) != height {
			t.Fatalf("%d lines, want %d:\n%s", len(lines), height, screen)
		}
		for _, line := range lines {
			if n := ansi.StringWidth(line); n > width {
				t.Fatalf("%d columns, want at most %d: %q", n, width, line)
			}
			if i := strings.IndexFunc(sgr.ReplaceAllString(line, ""), func(r rune) bool {
				return unicode.Is(unicode.C, r) || unicode.Is(unicode.M, r)
			}); i >= 0 {
				t.Fatalf("%q", line)
			}
		}
	})
}
