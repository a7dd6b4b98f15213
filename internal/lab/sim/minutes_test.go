package sim

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/insight/judge"
)

// rushLog is a log of an hour in which ten clients ask twice a minute each, and of five minutes
// after it in which more ask, some of whom the service answers with a status.
func rushLog(status, clients, each int) string {
	var b strings.Builder
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for range 60 {
		for i := range 20 {
			fmt.Fprintf(&b, "192.0.2.%d - - [%s] \"GET /a HTTP/1.1\" 200 5\n", i%10,
				at.Add(time.Duration(i)*time.Second).Format("02/Jan/2006:15:04:05 -0700"))
		}
		at = at.Add(time.Minute)
	}
	for range 5 {
		for i := range clients * each {
			answer := 200
			if i%5 == 0 {
				answer = status
			}
			fmt.Fprintf(&b, "198.51.%d.%d - - [%s] \"GET /a HTTP/1.1\" %d 5\n", i%clients/256, i%clients%256,
				at.Add(time.Duration(i)*time.Minute/time.Duration(clients*each)).Format(
					"02/Jan/2006:15:04:05 -0700"), answer)
		}
		at = at.Add(time.Minute)
	}
	return b.String()
}

// TestLooseOnLogs: a rule that lets a rush through in which the service failed, by the statuses of
// the log, is too loose; not one that cuts it, and none where nothing failed.
func TestLooseOnLogs(t *testing.T) {
	const most = 1 << 13 // keys, so that not all of a minute are counted
	for _, c := range []struct {
		name                  string
		allow                 string
		status, clients, each int
		want                  string // "" is no verdict of this kind
	}{
		{"a crowd", "1000/min", 503, 300, 2, insight.LooseCrowd},
		{"a large crowd", "1000/min", 502, most, 1, insight.LooseCrowd},
		{"few", "1000/min", 500, 1, 800, insight.LooseFew},
		{"a crowd that is served", "1000/min", 200, 300, 2, ""},
		{"a crowd that errs itself", "1000/min", 404, 300, 2, ""},
		{"few that are cut", "100/min", 503, 1, 800, ""},
	} {
		rep := replayText(t, rushLog(c.status, c.clients, c.each), ReplayOptions{},
			"domain: shop\nlimits: [{name: each, per: [ip], allow: "+c.allow+"}]")
		var loose []string
		for _, v := range rep.ByRule[0].Verdicts {
			if strings.HasPrefix(v.Verdict, "loose") {
				loose = append(loose, v.Verdict)
			}
		}
		if got := strings.Join(loose, " "); got != c.want {
			t.Errorf("%s: %q, want %q; %+v", c.name, got, c.want, rep.ByRule[0].Verdicts)
		}
	}
}

// TestMinutesAreBounded: of a log of any length the last minutes are known.
func TestMinutesAreBounded(t *testing.T) {
	tally := &ruleTally{keys: keySample{bound: 300}}
	var a answers
	for i := range int64(5000) {
		a.note(i*60e6, 200)
		tally.met(&a, uint64(i%2)+1, i%10 == 0)
	}
	a.end()
	list := tally.facts.Minutes
	if n := len(list); n < 300 || n > 600 || list[n-1].T != 4999*60 || list[n-1].Keys != 1 || list[n-1].Met != 1 ||
		!slices.IsSortedFunc(list, func(a, b judge.Minute) int { return int(a.T - b.T) }) {
		t.Errorf("%d minutes, the last %+v", n, list[n-1])
	}
}
