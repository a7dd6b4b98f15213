package top

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/observe/insight"
)

func pressAll(s *State, keys ...string) (last Act) {
	for _, key := range keys {
		last = s.Press(key, 10)
	}
	return last
}

// Nothing is changed before it was asked for and said yes to, and nothing at all by a role that may
// only read.
func TestQuestions(t *testing.T) {
	s := shop()
	if a := pressAll(s, "k", "b", "ctrl+u", "2", "h", "enter"); a.Change != nil {
		t.Fatalf("changed before a yes: %+v", a.Change)
	}
	if line := s.footer(120); !strings.Contains(line, "Ban ip=198.51.100.7 at shop/login-attempts for 2h? y/n") {
		t.Errorf("asked: %s", line)
	}
	a := pressAll(s, "x", "enter", "y")
	if a.Change == nil || a.Change.Grant || a.Change.Domain != "shop" || a.Change.Rule != "login-attempts" ||
		!slices.Equal(a.Change.Key, []string{"ip=198.51.100.7"}) || a.Change.For != "2h" {
		t.Errorf("ban: %+v", a.Change)
	}
	a = pressAll(s, "d", "g", "enter", "5", "/", "s", "enter", "enter", "y")
	if a.Change == nil || !a.Change.Grant || a.Change.Allow != "5/s" || a.Change.For != "1h" ||
		a.Change.Rule != "login-attempts" {
		t.Errorf("grant: %+v", a.Change)
	}
	for _, no := range [][]string{{"k", "b", "enter", "n"}, {"k", "b", "esc"}, {"k", "b", "enter", "esc", "y"},
		{"k", "b", "enter", "q"}} {
		if a := pressAll(shop(), no...); a.Change != nil || a.Quit {
			t.Errorf("%v: %+v", no, a)
		}
	}
	for key, says := range map[string]string{"end": "counts all together", "": ""} {
		s := shop()
		if pressAll(s, "k", key, "b"); key != "" && (s.question != nil || !strings.Contains(s.Said, says)) {
			t.Errorf("%q: %q", key, s.Said)
		}
	}
	s = shop()
	s.Keys[0].Key = "user=hidden:0a1b2c3d"
	if pressAll(s, "k", "b"); s.question != nil {
		t.Error("a key that is hidden can be banned by what stands for it")
	}
	s = shop()
	s.MayBan = false
	pressAll(s, "k", "b")
	if s.question != nil || strings.Contains(View(s, 200, 60), "ban") && strings.Contains(View(s, 200, 60), "b ban") {
		t.Error("a reading role is asked whether it wants to ban")
	}
	pressAll(s, "?")
	if strings.Contains(View(s, 200, 60), "grant it") {
		t.Error("the help of a reading role has b and g")
	}
}

func TestSplitKey(t *testing.T) {
	for _, c := range []struct {
		key  string
		per  []string
		want []string
	}{
		{"ip=192.0.2.1", []string{"ip"}, []string{"ip=192.0.2.1"}},
		{"user=ada, path=/x, y", []string{"user", "path"}, []string{"user=ada", "path=/x, y"}},
		{"user=a, b=c, path=/x", []string{"user", "path"}, []string{"user=a, b=c", "path=/x"}},
		{"user=ada, ip=::1", []string{"user", "ip|key"}, []string{"user=ada", "ip=::1"}},
		{"user=ada, key=k, ip=1", []string{"user", "ip|key"}, []string{"user=ada", "key=k, ip=1"}},
		{"to=1, kind=2", nil, []string{"to=1", "kind=2"}},
	} {
		if got := splitKey(c.key, c.per); !slices.Equal(got, c.want) {
			t.Errorf("%q by %q: %q, want %q", c.key, c.per, got, c.want)
		}
	}
}

// The cursor stays on what it stands on, wherever that goes.
func TestCursorFollows(t *testing.T) {
	s := shop()
	pressAll(s, "r", "s", "down", "down") // by name: api, legacy-import, login-attempts
	chosen := func() string { return s.rules()[s.cursors[Rules].row].Name }
	if chosen() != "login-attempts" {
		t.Fatalf("it stands on %s", chosen())
	}
	for range Sorts {
		if pressAll(s, "s"); chosen() != "login-attempts" {
			t.Errorf("sorted by %s it stands on %s", s.sort(), chosen())
		}
	}
	pressAll(s, "/", "i", "n")
	if len(s.rules()) != 2 || chosen() != "login-attempts" {
		t.Errorf("filtered to %d it stands on %s", len(s.rules()), chosen())
	}
	d := s.Data
	d.Rules = d.Rules[:2] // login-attempts is no longer in force
	s.Set(d, now)
	if s.cursors[Rules].row != 0 {
		t.Errorf("of one row it stands on row %d", s.cursors[Rules].row)
	}
}

func TestSorts(t *testing.T) {
	for by, want := range map[string]string{
		"verdict": "api", "name": "api", "requests": "api", "refused": "search", "good": "login-attempts", "peak": "api",
	} {
		s := shop()
		s.Sort = by
		if got := s.rules()[0].Name; got != want {
			t.Errorf("by %s: %s comes first, want %s", by, got, want)
		}
	}
}

// What no screen shows is not asked for.
func TestWants(t *testing.T) {
	for key, want := range map[string]Wants{
		"esc": {Rules: true, Keys: true, Decisions: true, By: "refused"}, "r": {Rules: true, By: "refused"}, "k": {Keys: true, By: "refused"}, "d": {Decisions: true, By: "refused"},
	} {
		s := shop()
		if pressAll(s, key); s.Wants() != want {
			t.Errorf("%s: %+v, want %+v", key, s.Wants(), want)
		}
	}
	s := shop()
	if a := pressAll(s, "k", "s"); !a.Ask || s.Wants().By != "asked" {
		t.Errorf("sorted: %+v, %+v", a, s.Wants())
	}
}

func TestPace(t *testing.T) {
	for _, c := range []struct{ every, spent, want time.Duration }{
		{2 * time.Second, 0, 2 * time.Second}, {2 * time.Second, 20 * time.Millisecond, 2 * time.Second},
		{2 * time.Second, 100 * time.Millisecond, 10 * time.Second}, {2 * time.Second, time.Hour, time.Minute}, {2 * time.Hour, time.Hour, 2 * time.Hour},
	} {
		if got := pace(c.every, c.spent); got != c.want {
			t.Errorf("pace(%v, %v) = %v, want %v", c.every, c.spent, got, c.want)
		}
	}
}

func TestFail(t *testing.T) {
	s := shop()
	s.Fail(errors.New("away"), now.Add(time.Second))
	if s.Fail(errors.New("away"), now.Add(5*time.Second)); !strings.Contains(View(s, 80, 24),
		"no answer for 5 s, trying on: away") {
		t.Error(View(s, 80, 24))
	}
	if s.Set(s.Data, now.Add(6*time.Second)); strings.Contains(View(s, 80, 24), "no answer") {
		t.Error("an answer came, and the screen says that there is none")
	}
}

// Each verdict has words and a mark of its own kind: colour alone says nothing.
func TestVerdictsHaveWords(t *testing.T) {
	for i, name := range insight.Verdicts {
		if j := verdictNamed(name); j.words == "" || j.mark == "" || j.style == plain || j.rank != i {
			t.Errorf("%s: %+v", name, j)
		}
	}
	if len(verdicts) != len(insight.Verdicts) {
		t.Errorf("%d verdicts are shown, there are %d", len(verdicts), len(insight.Verdicts))
	}
}

// Commands that bring their limit stand among the rules and keys, and are no rule: there is no
// report of them to open, and nothing to ban or to grant.
func TestCommands(t *testing.T) {
	s := shop()
	s.Rules = append(s.Rules, insight.RuleReport{Domain: "_command", Name: "_command", Command: true, Mode: "enforce",
		Met: 900_000, Refused: 90_000, PerSecond: 250})
	s.Keys = append([]insight.KeyCount{{Domain: "_command", Rule: "_command", Limit: "CL.THROTTLE", Key: "key=user:ada",
		Count: 2000, RefusedShare: 0.5, Obey: -1}}, s.Keys...)
	screen := bare(View(s, 220, 60))
	for _, want := range []string{" shop ", "5 rules", "_command ", "by command", "250", "10.0 %", "key=user:ada",
		"CL.THROTTLE"} {
		if !strings.Contains(screen, want) {
			t.Errorf("the screen does not show %q:\n%s", want, screen)
		}
	}
	if strings.Contains(screen, "_command/_command") || strings.Contains(screen, "shop/search") {
		t.Errorf("they count as a domain:\n%s", screen)
	}
	s.Sort = "requests"
	if a := pressAll(s, "r", "home", "enter"); a.Open != nil || s.open != nil ||
		!strings.Contains(s.Said, "_command is no rule") {
		t.Errorf("opened: %+v, %q", a.Open, s.Said)
	}
	for _, key := range []string{"b", "g"} {
		if pressAll(s, "k", "home", key); s.question != nil ||
			!strings.Contains(s.Said, "its limit comes with each command") {
			t.Errorf("%s: %+v, %q", key, s.question, s.Said)
		}
	}
	a := pressAll(s, "enter")
	if a.Open == nil || a.Open.Domain != "_command" || a.Open.Key != "key=user:ada" {
		t.Fatalf("opened: %+v", a.Open)
	}
	a.Open.keyReport = &insight.KeyReport{Domain: "_command", Key: "key=user:ada", Obey: -1, Sampled: true,
		Limits: []insight.KeyLimit{{Rule: "_command", Limit: "CL.THROTTLE", Asked: 4000, Refused: 2000}}}
	screen = bare(View(s, 220, 60))
	if !strings.Contains(screen, "no rule, ban or grant is on it") || !strings.Contains(screen, "4000") ||
		strings.Contains(screen, "identity") {
		t.Errorf("its key:\n%s", screen)
	}
}
