package file

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// TestSpecIsAFile: a limit that a program names has the counters, the keys and the errors of the
// same limit in a file.
func TestSpecIsAFile(t *testing.T) {
	names := []string{"api", "", "a b", strings.Repeat("x", 201), "A-z_0.9"}
	rates := []string{"10/min", "5", "0", "5 concurrent", "5concurrent", "5/min concurrent", "concurrent", "0/s",
		"7/day", "1/month", "100/15m", "unlimited", "10/mn", "ten", "", "1/0s", "9999999999999/s", " 3/h "}
	pers := [][]string{nil, {"ip"}, {"user|ip", "path"}, {"user", "user"}, {"a b"}, {""}, {"a|a"}, {"a,b"},
		{"x y", "x y"},
		{"1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15", "16", "17"}}
	for _, name := range names {
		for _, rate := range rates {
			for _, per := range pers {
				one, errOne := rule.Of(rule.Spec{Name: name, Allow: rate, Per: per})
				text := fmt.Sprintf("limits: [{name: %q", name)
				if per != nil {
					text += fmt.Sprintf(", per: [\"%s\"]", strings.Join(per, `", "`))
				}
				text += fmt.Sprintf(", allow: %q", rate)
				set, _, errFile := Load([]Source{{Name: "f.yaml", Data: []byte(text + "}]")}}, Options{})
				if (errOne == nil) != (errFile == nil) {
					t.Fatalf("%s: %v by name, %v in a file", text, errOne, errFile)
				}
				if errOne != nil {
					if a, b := messages(errOne), messages(errFile); a != b {
						t.Errorf("%s: by name\n%s\nin a file\n%s", text, a, b)
					}
					continue
				}
				if a, b := only1(one), only1(set); a != b {
					t.Errorf("%s: by name %s, in a file %s", text, a, b)
				}
			}
		}
	}
}

// TestSpecOptionsAreAFile: the same for the options of a limit. What is wrong is an error in both.
func TestSpecOptionsAreAFile(t *testing.T) {
	bans := map[string]*rule.Ban{
		"":                                       nil,
		", ban: {after: 3, within: 1m, for: 1h}": {After: 3, Within: time.Minute, For: time.Hour},
		", ban: {after: 3, within: 1m, for: 1h, scope: domain, at: nftables}": {After: 3, Within: time.Minute, For: time.Hour, Domain: true, NFTables: true},
		", ban: {after: 0, within: 1m, for: 1h}":                              {After: 0, Within: time.Minute, For: time.Hour},
		", ban: {after: 3, within: 0s, for: 1h}":                              {After: 3, For: time.Hour},
		", ban: {after: 3, within: 1m, for: 367d}":                            {After: 3, Within: time.Minute, For: 367 * 24 * time.Hour},
	}
	good := 0
	for _, rate := range []string{"10/min", "7/day", "1/month", "100/15m", "5", "5 concurrent", "200000/s",
		"unlimited"} {
		for a := algo.SlidingWindow; a <= algo.Concurrency; a++ {
			for _, soft := range []int{0, 20, -1, algo.MaxSoft + 1} {
				for _, per := range [][]string{nil, {"ip"}, {"user"}} {
					for ban, of := range bans {
						if rate == "unlimited" && soft != 0 {
							continue // a file refuses a margin that is none, whatever it is of
						}
						text := fmt.Sprintf("limits: [{name: api, allow: %q, throttle: {soft: %d%%}", rate, soft)
						if a != algo.SlidingWindow {
							text += fmt.Sprintf(", algorithm: %s", a)
						}
						if per != nil {
							text += fmt.Sprintf(", per: %s", per)
						}
						text += ban + "}]"
						named, errNamed := rule.Of(rule.Spec{Name: "api", Allow: rate, Per: per, Algorithm: a,
							Soft: soft, Ban: of})
						set, _, errFile := Load([]Source{{Name: "f.yaml", Data: []byte(text)}}, Options{})
						if (errNamed == nil) != (errFile == nil) {
							t.Fatalf("%s: %v by name, %v in a file", text, errNamed, errFile)
						}
						if errNamed != nil {
							continue
						}
						if good++; only1(named) != only1(set) {
							t.Errorf("%s: by name %s, in a file %s", text, only1(named), only1(set))
						}
					}
				}
			}
		}
	}
	if good < 100 {
		t.Errorf("only %d limits have no fault", good)
	}
}

// TestSpecs: several limits are one set, and all that is wrong with them is one error. The values
// that a program gave stay as they are.
func TestSpecs(t *testing.T) {
	ban := rule.Ban{After: 1, Within: time.Minute, For: time.Hour}
	specs := []rule.Spec{{Name: "a", Allow: "1/s"}, {Name: "b", Allow: "2/min", Per: []string{"user"}, Ban: &ban}}
	for range 2 {
		set, err := rule.Of(specs...)
		if err != nil {
			t.Fatal(err)
		}
		if r := set.Rules(); len(r) != 2 || r[0].Name != "a" || r[1].Name != "b" || r[1].Ban.Counter == nil ||
			ban.Counter != nil {
			t.Fatalf("%+v, %+v", r, ban)
		}
	}
	_, err := rule.Of(rule.Spec{Name: "a", Allow: "often"}, rule.Spec{Name: "b", Allow: "1/s"},
		rule.Spec{Name: "b", Allow: "1/h", Algorithm: 77})
	for _, want := range []string{`limit "a": allow: rate "often"`, "there is none with the number 77",
		"name: another limit has it already"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
}

// only1 spells the one limit of a set.
func only1(s *rule.Set) string {
	r := s.Rules()[0]
	text := fmt.Sprint(len(s.Rules()), s.Domains(), r.Name, r.Per, r.Unlimited, r.Cost, r.CostTimeout, r.WarnPercent,
		r.EnforcePercent, r.WaitQueue)
	for _, w := range r.Windows {
		text += fmt.Sprint(" ", w.Name, w.Seconds, w.Limit, w.Limit.Config(), w.Counter.ID, w.Counter.Group,
			w.Counter.Keys)
	}
	if b := r.Ban; b != nil {
		text += fmt.Sprint(" ban ", b.After, b.Within, b.For, b.Domain, b.NFTables, b.Counter.ID, b.Counter.Limit)
	}
	return text
}

// messages are what problems say, without their places.
func messages(err error) string {
	var problems rule.Problems
	errors.As(err, &problems)
	var lines []string
	for _, p := range problems {
		line := p.Message + " (" + p.Hint + ") " + p.Rule
		if !slices.Contains(lines, line) { // a file has a place for each
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}
