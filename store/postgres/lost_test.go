package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/pgtest"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/postgres"
)

// terminate ends all connections to the test's database but its own.
const terminate = "select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"

// TestTerminated: four nodes decide on a few keys while all connections are terminated again and
// again: each call is answered, and no key is admitted one unit more, or less, than its limit.
func TestTerminated(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	const nodes, clients, keys, limit = 4, 8, 12, 300
	counter, err := counterOf(algo.Config{Algorithm: algo.FixedWindow, N: limit, Calendar: algo.Year})
	if err != nil {
		t.Fatal(err)
	}
	var admitted, refused [keys]atomic.Int64
	var answers, done atomic.Int64
	// Each key has to be refused for itself: some are reached later than others.
	allMet := func() bool {
		for i := range refused {
			if refused[i].Load() < 10 {
				return false
			}
		}
		return true
	}
	var all sync.WaitGroup
	for range nodes {
		node := open(t, postgres.Options{URL: s.URL(), Timeout: patience.Left(t)})
		// One that has not heard of the server yet says at once that it cannot be reached.
		warm := []store.Charge{{Counter: counter, Limit: counter.Limit, Key: []byte("another key"),
			Ask: algo.Ask{Cost: 1, MaxDelay: -1}}}
		if _, err := node.Take(t.Context(), warm, make([]algo.Result, 1)); err != nil {
			t.Fatal(err)
		}
		for client := range clients {
			all.Go(func() {
				defer done.Add(1)
				for i := client; !allMet(); i++ {
					charges := []store.Charge{{
						Counter: counter, Limit: counter.Limit, Key: fmt.Append(nil, "key ", i%keys), Ask: algo.Ask{Cost: 1, MaxDelay: -1},
					}}
					results := make([]algo.Result, 1)
					if _, err := node.Take(t.Context(), charges, results); err != nil {
						t.Error(err)
						return
					}
					answers.Add(1)
					if results[0].Allowed {
						admitted[i%keys].Add(1)
					} else {
						refused[i%keys].Add(1)
					}
				}
			})
		}
	}
	ended := int64(0)
	for next := int64(100); next < keys*limit; next += 300 {
		patience.Until(t, "the nodes decide", func() bool { return answers.Load() >= next || done.Load() > 0 })
		ended += s.Number(terminate)
	}
	all.Wait()
	for i := range admitted {
		if n := admitted[i].Load(); n != limit {
			t.Errorf("key %d: %d were admitted, and the limit is %d", i, n, limit)
		}
	}
	if ended < nodes {
		t.Errorf("%d connections were terminated", ended)
	}
}

// lossy is a store behind a proxy that loses answers.
type lossy struct {
	*taker
	server *pgtest.Server
	proxy  *redistest.FaultProxy
}

func newLossy(t *testing.T) *lossy {
	t.Helper()
	s := pgtest.Shared(t)
	p := redistest.Proxy(t, s.Addr())
	l := &lossy{server: s, proxy: p}
	l.taker = newTaker(t, open(t, postgres.Options{URL: throughProxy(t, s.URL(), p.Addr()), Timeout: patience.Left(t)}))
	l.well()
	return l
}

// lose makes a call whose answer is lost: a lock holds it up in the server until the proxy passes
// none any more. When the server has done what the call wants, which a query shows, then is
// called, and the proxy cuts the connections.
func (l *lossy) lose(table, done string, call, then func()) {
	l.Helper()
	ctx := context.Background()
	locker, err := pgx.Connect(ctx, l.server.URLOf("postgres"))
	if err != nil {
		l.Fatal(err)
	}
	defer func() { _ = locker.Close(ctx) }()
	if _, err := locker.Exec(ctx, "begin; lock table weir."+table); err != nil {
		l.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		call()
	}()
	patience.Until(l, "the call waits for the lock", func() bool {
		return l.server.Number(
			"select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and query not like '%sweep%'") > 0
	})
	l.proxy.LoseReplies()
	if _, err := locker.Exec(ctx, "commit"); err != nil {
		l.Fatal(err)
	}
	patience.Until(l, "the server has done it: "+done, func() bool { return l.server.Text(done) == "true" })
	then()
	l.proxy.Pass()
	<-ended
}

// TestLostSwap: a decision whose answer was lost, and that was made, is made once.
func TestLostSwap(t *testing.T) {
	t.Parallel()
	l := newLossy(t)
	version := l.server.Text("select version from weir.states where length(key) = 11")
	l.lose("states", "select version <> "+version+" from weir.states where length(key) = 11", func() {
		if r, err := l.take(context.Background(), 5); err != nil || !r.Allowed {
			t.Errorf("%+v, %v", r, err)
		}
	}, func() {})
	r, err := l.take(t.Context(), 0)
	if used := r.Limit - r.Remaining; err != nil || used != l.made+5 {
		t.Errorf("%d units are counted, want %d: %v", used, l.made+5, err)
	}
}

// TestLostReservations: a reservation whose answer was lost is held; one that was claimed, or had
// timed out, and whose note did not come, comes with the same call.
func TestLostReservations(t *testing.T) {
	t.Parallel()
	l := newLossy(t)
	ctx := t.Context()
	l.lose("reservations", "select count(*) = 1 from weir.reservations", func() {
		if err := l.s.Hold(ctx, "one", []byte("note"), time.Hour); err != nil {
			t.Error(err)
		}
	}, func() {})
	if err := l.s.Hold(ctx, "one", []byte("note"), time.Hour); !errors.Is(err, store.ErrNotCharged) {
		t.Errorf("it is held already: %v", err)
	}
	const taken = "select count(*) = 0 from weir.reservations where id >= '\\x01'"
	l.lose("reservations", taken, func() {
		if note, ok, err := l.s.Claim(ctx, "one"); string(note) != "note" || !ok || err != nil {
			t.Errorf("%q, %v, %v", note, ok, err)
		}
	}, func() {})
	if note, ok, err := l.s.Claim(ctx, "one"); ok || err != nil {
		t.Errorf("claimed twice: %q, %v", note, err)
	}
	for _, id := range []string{"a", "b"} {
		if err := l.s.Hold(ctx, id, []byte(id), time.Microsecond); err != nil {
			t.Fatal(err)
		}
	}
	l.lose("reservations", taken, func() {
		if notes, err := l.s.Expired(ctx, 10); len(notes) != 2 || err != nil {
			t.Errorf("%q, %v", notes, err)
		}
	}, func() {})
	if notes, err := l.s.Expired(ctx, 10); len(notes) != 0 || err != nil {
		t.Errorf("%q have timed out twice, %v", notes, err)
	}
	// The caller gives up, and asks again.
	if err := l.s.Hold(ctx, "two", []byte("second"), time.Hour); err != nil {
		t.Fatal(err)
	}
	short, giveUp := context.WithCancel(ctx)
	l.lose("reservations", taken, func() {
		if _, _, err := l.s.Claim(short, "two"); err == nil {
			t.Error("an answer came")
		}
	}, giveUp)
	if note, ok, err := l.s.Claim(ctx, "two"); string(note) != "second" || !ok || err != nil {
		t.Errorf("asked again: %q, %v, %v", note, ok, err)
	}
	// What was taken does not stay.
	l.server.Exec("update weir.reservations set due = 0")
	patience.Until(t, "the table is empty",
		func() bool { return l.server.Number("select count(*) from weir.reservations") == 0 })
}

// TestEncodings: a database of another encoding, and quoting that is not the standard's, are all
// the same to the store.
func TestEncodings(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	for _, encoding := range []string{"LATIN1", "LATIN2", "SQL_ASCII", "EUC_JP"} {
		t.Run(encoding, func(t *testing.T) {
			name := "of_" + strings.ToLower(encoding)
			s.Exec("create database " + name + " template template0 encoding '" + encoding +
				"' lc_collate 'C' lc_ctype 'C' owner weir")
			s.Exec("alter database " + name + " set standard_conforming_strings = off")
			s.Exec("alter database " + name + " set client_encoding = 'LATIN1'")
			address := inDatabase(t, s.URL(), name)
			w := newTaker(t, open(t, postgres.Options{URL: address}))
			if err := w.try(t.Context()); err != nil {
				t.Fatal(err)
			}
			w.counted()
			if err := w.s.Hold(t.Context(), "é", []byte("µ'\\"), time.Hour); err != nil {
				t.Error(err)
			}
			if note, ok, err := w.s.Claim(t.Context(), "é"); string(note) != "µ'\\" || !ok || err != nil {
				t.Errorf("%q, %v, %v", note, ok, err)
			}
			if err := w.s.Post(t.Context(), "bans", []store.Fact{{ID: "ü\\'", Data: []byte("→"), TTL: time.Hour}}); err != nil {
				t.Error(err)
			}
			facts, err := w.s.List(t.Context(), "bans")
			if err != nil || len(facts) != 1 || facts[0].ID != "ü\\'" || string(facts[0].Data) != "→" {
				t.Errorf("%+v, %v", facts, err)
			}
		})
	}
}

// inDatabase returns a URL with another database.
func inDatabase(t testing.TB, of, name string) string {
	t.Helper()
	u, err := url.Parse(of)
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/" + name
	return u.String()
}

// TestProbeOfReadOnly: a server that takes no writes does not count as one that decides.
func TestProbeOfReadOnly(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	s.Exec("create role reader login")
	s.Exec("grant create on database " + s.Text("select current_database()") + " to reader")
	w := newTaker(t, open(t, postgres.Options{URL: s.URLOf("reader")}))
	w.well()
	if err := w.s.PingPart(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	s.Exec("alter role reader set default_transaction_read_only = on")
	s.Number(terminate)
	if err := w.s.PingPart(t.Context(), 0); err == nil || !strings.Contains(err.Error(), "25006") {
		t.Errorf("a probe: %v", err)
	}
	s.Exec("alter role reader set default_transaction_read_only = off")
	s.Number(terminate)
	if err := w.s.PingPart(t.Context(), 0); err != nil {
		t.Error(err)
	}
}

// TestLasting: an error that does not pass by itself says what to do about it.
func TestLasting(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	s.Exec("create role guest login")
	for name, test := range map[string]struct{ url, advice string }{
		"no database":   {inDatabase(t, s.URL(), "nowhere"), "createdb"},
		"no role":       {s.URLOf("nobody_known"), "pg_hba.conf"},
		"no permission": {s.URLOf("guest"), "give it the rights"},
	} {
		t.Run(name, func(t *testing.T) {
			for what, err := range map[string]error{
				"a decision": newTaker(t, open(t, postgres.Options{URL: test.url})).try(t.Context()),
				"a check":    postgres.Check(t.Context(), postgres.Options{URL: test.url, Timeout: 20 * time.Second}),
			} {
				fault, ok := errors.AsType[*store.LastingError](err)
				if !ok || !strings.Contains(fault.Advice, test.advice) || !errors.Is(err, store.ErrNotCharged) {
					t.Errorf("%s: %v", what, err)
				}
			}
		})
	}
	if err := postgres.Check(t.Context(), postgres.Options{URL: s.URL(), Timeout: 20 * time.Second}); err != nil {
		t.Error(err)
	}
	if n := s.Number("select count(*) from pg_namespace where nspname = 'weir'"); n != 0 {
		t.Error("a check leaves a schema behind")
	}
}
