package redistest

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/effort"
)

func TestCluster(t *testing.T) {
	effort.Long(t, "starts a cluster of six; store/redis uses one in a quick run")
	t.Parallel()
	c := StartCluster(t, 3, 1, "requirepass secret")
	if len(c.Nodes()) != 6 || !strings.HasPrefix(c.URL(), "redis+cluster://:secret@"+c.Nodes()[0].Addr()+",") ||
		strings.Count(c.URL(), ",") != 5 {
		t.Error(c.URL())
	}
	slot := c.Slot("{tag}")
	from := c.OwnerOf(slot)
	if from != c.Nodes()[slot*3/slots] {
		t.Errorf("slot %d is with %s", slot, from.Addr())
	}
	to := c.Nodes()[0]
	if to == from {
		to = c.Nodes()[1]
	}
	refusal := func(node *Server, args ...string) string {
		t.Helper()
		_, err := node.Try(args...)
		var refused Error
		if err != nil && !errors.As(err, &refused) {
			t.Fatal(err)
		}
		kind, _, _ := strings.Cut(string(refused), " ")
		return kind
	}
	for i := range 5 {
		from.Do("SET", fmt.Sprint("{tag}", i), "value")
	}
	var calls []int
	c.MigrateSlot(slot, to, func(moved int) {
		calls = append(calls, moved)
		if c.OwnerOf(slot) != from {
			t.Errorf("after %d keys the slot has a new owner", moved)
		}
		if n := to.Do("DBSIZE"); n != int64(moved) {
			t.Errorf("after %d keys %v are there", moved, n)
		}
		if got := refusal(from, "GET", "{tag}new"); got != "ASK" {
			t.Errorf("after %d keys the old owner says %s", moved, got)
		}
		if got := refusal(to, "GET", "{tag}new"); got != "MOVED" {
			t.Errorf("after %d keys the new owner says %s", moved, got)
		}
		if moved == 2 {
			if got := refusal(from, "MGET", "{tag}0", "{tag}1", "{tag}2", "{tag}3", "{tag}4"); got != "TRYAGAIN" {
				t.Errorf("half-way the old owner says %s", got)
			}
		}
	})
	if fmt.Sprint(calls) != "[0 1 2 3 4 5]" {
		t.Errorf("called with %v", calls)
	}
	if c.OwnerOf(slot) != to || to.Do("GET", "{tag}4") != "value" {
		t.Errorf("the slot is with %s", c.OwnerOf(slot).Addr())
	}
	if got := refusal(from, "GET", "{tag}4"); got != "MOVED" {
		t.Errorf("the old owner says %s", got)
	}
	c.MigrateSlot(slot, from, nil)
	if n := to.Do("DBSIZE"); n != int64(0) || c.OwnerOf(slot) != from || from.Do("GET", "{tag}4") != "value" {
		t.Errorf("moved back, %v keys are left", n)
	}

	// A replica takes the place of a master that is killed.
	from.Do("WAIT", "1", "5000")
	from.Kill()
	var owner *Server
	eventually(t, "the slot is served again", func() bool {
		for _, node := range c.Nodes()[3:] {
			if reply, err := node.Try("GET", "{tag}4"); err == nil && reply == "value" {
				owner = node
				return true
			}
		}
		return false
	})
	if c.OwnerOf(slot) != owner {
		t.Errorf("the slot is with %s, not %s", c.OwnerOf(slot).Addr(), owner.Addr())
	}
}
