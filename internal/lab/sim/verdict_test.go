package sim

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/testkit/traffic"
)

// The verdicts on real logs, where nobody signs in. Most refused requests were answered well: by
// the status alone each of these rules would be too strict.
func TestVerdictsOnRealLogs(t *testing.T) {
	for _, c := range []struct {
		log, allow    string
		full          bool // the excerpt has other figures
		verdict       string
		refused, keys uint64
		of            uint64
		fine          uint64 // refused, and answered 2xx or 3xx
		busiest       float64
	}{
		{"secrepo_202110/access.log.gz", "30/min", false, insight.Works, 141, 3, 578, 140, 0},
		{"secrepo_202110/access.log.gz", "10/min", false, insight.MaybeStrict, 352, 9, 578, 337, 0},
		{"nasa_19950801/trace.tsv.gz", "10/min", true, insight.MaybeStrict, 747, 172, 2582, 741, 0},
		{"nasa_19950801/trace.tsv.gz", "30/min", true, insight.Reserve, 0, 0, 2582, 0, 29},
		{"nasa_19950801/trace.tsv.gz", "100/min", true, insight.NeverBinding, 0, 0, 2582, 0, 29},
	} {
		if c.full && !traffic.Full() {
			continue
		}
		t.Run(strings.ReplaceAll(c.log+" "+c.allow, "/", "_"), func(t *testing.T) {
			rep := replayFile(t, traffic.File(t, c.log), "limits: [{ name: each, per: [ip], allow: "+c.allow+" }]")
			r := rep.ByRule[0]
			if len(r.Verdicts) != 1 || r.Verdicts[0].Verdict != c.verdict {
				t.Errorf("verdicts %+v, want %s alone", r.Verdicts, c.verdict)
			}
			if r.Refused != c.refused || r.RefusedAlone != c.refused || r.KeysRefused != c.keys || r.Keys != c.of ||
				int64(r.Refused) != rep.Denied {
				t.Errorf("refused %d (%d alone), %d of %d keys; want %d, %d of %d", r.Refused, r.RefusedAlone,
					r.KeysRefused, r.Keys, c.refused, c.keys, c.of)
			}
			fine, sum := uint64(0), uint64(0)
			for _, n := range r.By["status"] {
				if n.Value[0] == '2' || n.Value[0] == '3' {
					fine += n.Count
				}
				sum += n.Count
			}
			if fine != c.fine || sum != c.refused {
				t.Errorf("%d of %d refused were answered well, want %d of %d: %v", fine, sum, c.fine, c.refused,
					r.By["status"])
			}
			limit := float64(r.Windows[0].Limit)
			if c.busiest > 0 && math.Round(r.MaxFill*limit) != c.busiest {
				t.Errorf("the busiest used %v of %v, want %v", r.MaxFill*limit, limit, c.busiest)
			}
			total := uint64(0)
			for _, n := range r.Fill {
				total += n
			}
			if total != r.Keys || r.Fill[10] != r.KeysRefused {
				t.Errorf("fill %v: want %d keys, %d above 100 %%", r.Fill, r.Keys, r.KeysRefused)
			}
		})
	}
}

// What a rule refuses alone, what with others, in shadow and by its ban is counted apart; a key
// that comes in pieces counts in each; and a proposal is a patch of the file.
func TestReplayReportsRules(t *testing.T) {
	const rules = `limits:
  # per client
  - name: each
    per: [ip]
    allow: [5/min, 100/hour]   # both
  - name: users
    per: [user]
    allow: 4/min
    on_limit: shadow
  - name: ban
    when: { path: /login }
    per: [ip]
    allow: 2/min
    ban: { after: 2, within: 1h, for: 1h }
  - { name: none, when: { path: /none }, allow: 9/min }
`
	var log strings.Builder
	for i := range 8 {
		log.WriteString(line(i, "192.0.2.1", "ada", "GET / HTTP/1.1")) // 3 refused by each, 4 by users
	}
	for i := range 8 {
		log.WriteString(line(100+i, "192.0.2.2", "-", "GET /login HTTP/1.1")) // 2 refused by ban, then 4 banned
	}
	rep := replayText(t, log.String(), ReplayOptions{}, rules)
	byName := map[string]insight.RuleReport{}
	for _, r := range rep.ByRule {
		byName[r.Name] = r
	}
	each, users, ban, none := byName["each"], byName["users"], byName["ban"], byName["none"]
	if each.Met != 12 || each.Refused != 3 || each.RefusedAlone != 3 || each.Keys != 2 || each.KeysRefused != 1 ||
		each.Mode != "enforce" {
		t.Errorf("each: %+v", each)
	}
	if users.Met != 8 || users.Refused != 0 || users.WouldRefuse != 4 || users.Mode != "shadow" ||
		users.KnownShare != 1 {
		t.Errorf("users: %+v", users)
	}
	if ban.Met != 8 || ban.Refused != 2 || ban.Banned != 4 {
		t.Errorf("ban: %+v", ban)
	}
	if none.Met != 0 || none.Verdicts[0].Verdict != insight.TooEarly {
		t.Errorf("none: %+v", none)
	}
	limits := map[string]Limit{}
	for _, l := range rep.Limits {
		limits[l.Name] = l
	}
	if l := limits["ban"]; l.Denied != 2 || l.Banned != 4 || l.Allowed != 2 {
		t.Errorf("the limit with the ban: %+v", l)
	}
	if w := each.Windows; len(w) != 2 || w[0].Refused != 3 || w[1].Refused != 0 || w[0].MaxFill <= 1 ||
		w[1].MaxFill >= 1 {
		t.Errorf("windows of each: %+v", w)
	}
	if want := []insight.Count{{Value: "200", Count: 3}}; !slices.Equal(each.By["status"], want) {
		t.Errorf("by status: %v", each.By)
	}
	if got := slices.Sorted(maps.Keys(byName)); len(got) != 4 || each.Line != 3 || each.File != "rules.yaml" {
		t.Errorf("rules %v, each at %s:%d", got, each.File, each.Line)
	}
}

// A rule that is enforced for some keys refuses these alone: the others are no refused keys.
func TestReplayPartlyEnforced(t *testing.T) {
	var log strings.Builder
	for i := range 40 {
		for range 2 {
			log.WriteString(line(i, fmt.Sprintf("192.0.2.%d", i), "-", "GET / HTTP/1.1"))
		}
	}
	rep := replayText(t, log.String(), ReplayOptions{},
		"limits: [{name: a, per: [ip], allow: 1/min, algorithm: fixed_window, enforce: 50%}]")
	r := rep.ByRule[0]
	if r.Refused == 0 || r.Refused+r.WouldRefuse != 40 || r.KeysRefused != r.Refused ||
		r.Windows[0].Refused != r.Refused {
		t.Errorf("%d refused, %d would be; of %d keys, by the window %d", r.Refused, r.WouldRefuse, r.KeysRefused,
			r.Windows[0].Refused)
	}
}
