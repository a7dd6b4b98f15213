package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/fallback"
	"github.com/weir-rl/weir/store/memory"
	"github.com/weir-rl/weir/store/regions"
)

// TestExcessLines: of many rules ten are logged one by one, and all others as one line, which
// counts none twice.
func TestExcessLines(t *testing.T) {
	var log bytes.Buffer
	p := &program{log: slog.New(slog.NewTextHandler(&log, nil)), storage: &storage{}}
	var rules []fallback.Excess
	for i := range 12 {
		rules = append(rules, fallback.Excess{Domain: "d", Rule: fmt.Sprint("r", i), Units: uint64(20 - i)})
	}
	p.exceeded(time.Now(), rules)
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	if len(lines) != 11 || !strings.Contains(lines[9], "rule=r9 units=11 ") ||
		!strings.Contains(lines[10], "rules=2 units=19 ") {
		t.Errorf("of 12 rules:\n%s", log.String())
	}
	if o := p.storage.over.Load(); o.units != 174 || o.rules != 12 {
		t.Errorf("/readyz speaks of %d units of %d rules, want 174 of 12", o.units, o.rules)
	}
	log.Reset()
	p.exceeded(time.Now(), rules[:10])
	if n := strings.Count(log.String(), "\n"); n != 10 {
		t.Errorf("of 10 rules %d lines:\n%s", n, log.String())
	}
}

// TestUnansweredShown: what a node decided by itself while the store counts as there is in the log,
// and where a ready server speaks of its store.
func TestUnansweredShown(t *testing.T) {
	local, err := memory.New(memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	f, err := fallback.New(local, fallback.Options{Local: local})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var log bytes.Buffer
	p := &program{log: slog.New(slog.NewTextHandler(&log, nil)), storage: &storage{fallback: f}}
	p.unanswered(fallback.Unanswered{Decisions: 7, Units: 12, Since: time.Now(), Cause: errors.New("two\nlines")})
	for _, want := range []string{"level=WARN", "this node decided by its share", "decisions=7 units=12 ",
		`cause="two; lines"`} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %q:\n%s", want, log.String())
		}
	}
	if got := p.remark(); !strings.Contains(got, "7 decisions by this node's share since ") ||
		!strings.Contains(got, "admitted 12 units (two; lines)") {
		t.Errorf("/readyz says %q", got)
	}
	p.storage.alone.Load().at = time.Now().Add(-overrunShows)
	if got := p.remark(); got != "" {
		t.Errorf("five minutes later: %q", got)
	}
}

func TestAway(t *testing.T) {
	for _, test := range []struct {
		parts, nodes int
		want         string
	}{
		{1, 1, "the store is away: this node limits alone"},
		{1, 3, "the store is away: limits are shared among 3 nodes"},
		{32, 1, "parts of the store are away: their keys are limited by this node alone"},
		{32, 3, "parts of the store are away: the limits of their keys are shared among 3 nodes"},
	} {
		if got := away(test.parts, test.nodes); got != test.want {
			t.Errorf("%q, want %q", got, test.want)
		}
	}
}

// mute is the store of a region whose log cannot be read.
type mute struct{ *memory.Store }

func (mute) Told(context.Context, int, string, int, time.Duration) ([]store.Told, string, bool, int64, error) {
	return nil, "", false, 0, errors.New("mute")
}

// TestSilentRegions: the node that begins to hear the other regions calls those silent of which it
// has heard nothing, but not before there was time to hear them.
func TestSilentRegions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		open := func() *memory.Store {
			m, err := memory.New(memory.Options{})
			if err != nil {
				t.Fatal(err)
			}
			return m
		}
		own, other, heard := open(), open(), open()
		defer other.Close()
		defer heard.Close()
		r, err := regions.New(own, regions.Options{
			Region: "eu", Table: []regions.Region{{Name: "ap", Weight: 1}, {Name: "eu", Weight: 1}, {Name: "us", Weight: 1}}, Own: own,
			Peers: map[string]regions.Neighbour{"ap": heard, "us": mute{other}},
			Rules: func(uint64, []byte) (*rule.Counter, *algo.Limit, *algo.Limit) { return nil, nil, nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		s := &storage{regions: r}
		time.Sleep(insight.SilentRegion - time.Millisecond)
		if says := s.silentRegions(); says != "" || !r.Stats().Leads {
			t.Errorf("says %q at once", says)
		}
		time.Sleep(2 * time.Millisecond)
		if says := s.silentRegions(); !strings.HasPrefix(says, "not heard of the region us:") {
			t.Errorf("says %q", says)
		}
	})
}
