package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
	"github.com/weir-rl/weir/store/regions"
)

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
