package ruledb

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/rulesource"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/pgtest"
	"github.com/weir-rl/weir/rule"
)

// follow runs a follower that looks by itself once an hour, and returns the limits that it puts in
// force. With the end of ctx it has ended when done is closed.
func follow(ctx context.Context, t *testing.T, a *Address, every time.Duration) (f *Follower, limits chan int64,
	done chan struct{}) {
	t.Helper()
	limits, done = make(chan int64, 100), make(chan struct{})
	f, set, err := Follow(ctx, FollowOptions{
		Address: a, Every: every, Node: func() string { return "node" }, Looked: func(_, _ rulesource.Status) {},
		Changed: func(s *rule.Set) { limits <- s.Rules()[0].Windows[0].Limit.Config().N },
	})
	if err != nil {
		t.Fatal(err)
	}
	limits <- set.Rules()[0].Windows[0].Limit.Config().N
	go func() { defer close(done); f.Run(ctx) }()
	return f, limits, done
}

func next(t *testing.T, limits chan int64, want int64) {
	t.Helper()
	select {
	case got := <-limits:
		if got != want {
			t.Fatalf("a limit of %d came into force, want %d", got, want)
		}
	case <-time.After(patience.Left(t)):
		t.Fatalf("the limit of %d never came into force", want)
	}
}

// A follower hears of pushes, over restarts of the database too, and is off the list of nodes when
// it ends.
func TestFollowHears(t *testing.T) {
	t.Parallel()
	s, a := prepared(t)
	d := open(t, a)
	push(t, d, 0, 1)
	ctx, cancel := context.WithCancel(t.Context())
	f, limits, done := follow(ctx, t, a, time.Hour)
	next(t, limits, 1)
	reports := func(version int64) {
		t.Helper()
		patience.Until(t, "the node reports", func() bool {
			n, err := d.Nodes(ctx)
			return err == nil && len(n) == 1 && n[0].Live && n[0].Version == version
		})
	}
	reports(1)
	push(t, d, 1, 2)
	next(t, limits, 2)
	patience.Until(t, "the status says so", func() bool {
		st := f.Status()
		return st.Version == "2" && st.Err == nil && !st.Behind && len(f.Sources()) == 1
	})
	s.Restart()
	d = open(t, a)
	push(t, d, 2, 3) // nobody may listen at this moment
	next(t, limits, 3)
	reports(3) // a report that is cut off may be written behind the node's end
	cancel()
	<-done
	if n, err := d.Nodes(t.Context()); err != nil || len(n) != 0 {
		t.Errorf("it ended, and the nodes are %v, %v", n, err)
	}
}

// Where no message comes, Reload looks at once.
func TestFollowReloads(t *testing.T) {
	t.Parallel()
	effort.Long(t, "starts a PostgreSQL of its own")
	s, a := prepared(t)
	d := open(t, a)
	push(t, d, 0, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	f, limits, done := follow(ctx, t, address(t, s.Bouncer("transaction").URL()), time.Hour)
	next(t, limits, 1)
	for n := int64(2); n < 6; n++ {
		push(t, d, n-1, int(n))
		f.Reload()
		next(t, limits, n)
		// It is in force before it is noted.
		patience.Until(t, "the status says so", func() bool { return f.Status().Version == strconv.FormatInt(n, 10) })
	}
	cancel()
	<-done
}

// A start fails, with the reason, where there is neither a database nor a cache.
func TestFollowNeedsRules(t *testing.T) {
	t.Parallel()
	effort.Long(t, "starts a PostgreSQL of its own")
	s := pgtest.Start(t)
	a := address(t, s.URL())
	try := func() error {
		_, _, err := Follow(t.Context(), FollowOptions{Address: a})
		return err
	}
	for _, want := range []string{"run: weir rules init", "holds no rules", "expected a list"} {
		if err := try(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
		if want == "run: weir rules init" {
			if _, err := Init(t.Context(), a); err != nil {
				t.Fatal(err)
			}
			continue
		}
		broken := files(1)
		broken[0].Data = []byte("domain: shop\nlimits: 3\n")
		d := open(t, a)
		_, _ = d.Push(t.Context(), Change{Files: broken, Author: "ada", Origin: Push})
	}
}

// A version with the digest of other files comes into force nowhere, and so into no cache, from
// which no node could start.
func testFollowChecksFiles(t *testing.T, _ *pgtest.Server, a *Address) {
	d := open(t, a)
	push(t, d, 0, 1)
	raw, err := encode(files(2))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.c.Exec(t.Context(), "select weir_rules.push($2, 1, $1::text::jsonb, decode(repeat('00', 32), 'hex'), 'eve', '', 'push', 'push')", string(raw), a.Space); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Follow(t.Context(), FollowOptions{Address: a}); err == nil ||
		!strings.Contains(err.Error(), "version 2: its files are damaged") {
		t.Fatalf("a version with the digest of other files was loaded: %v", err)
	}
}
