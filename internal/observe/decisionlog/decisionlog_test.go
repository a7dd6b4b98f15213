package decisionlog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/observe/recent"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store/memory"
)

// buffer is a stream that can be read while it is written to.
type buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *buffer) lines() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Split(strings.TrimSuffix(b.text.String(), "\n"), "\n")
}

func entries(t *testing.T) *recent.Buffer {
	t.Helper()
	b, err := recent.New(recent.Options{Hide: []string{"token"}})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func outcomes(t *testing.T, names ...string) recent.Outcome {
	t.Helper()
	o, err := recent.ParseOutcome(names)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// limiter decides by rules, and tells l.
func limiter(t *testing.T, l *Log, rules string) *weir.Limiter {
	t.Helper()
	set, _, err := file.Load([]file.Source{{Name: "shop.yaml", Data: []byte(rules)}}, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 11, 23, 2, 0, 0, 0, time.UTC).UnixMicro()
	s, err := memory.New(memory.Options{Clock: func() int64 { return now }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	limiter, err := weir.New(s, weir.WithRules(set), weir.WithHooks(weir.JoinHooks(l.o.Entries.Hooks(), l.Hooks())))
	if err != nil {
		t.Fatal(err)
	}
	return limiter
}

func ask(t *testing.T, l *weir.Limiter, attributes rule.Map) *weir.Decision {
	t.Helper()
	d, err := l.Allow(context.Background(), weir.Request{Domain: "shop", Attributes: attributes, Door: "http"})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

const shopRules = `
domain: shop
exempt: { user: [monitor] }
limits:
  - { name: login, when: { kind: hard }, per: [user], allow: 2/min, algorithm: sliding_log, warn: 100% }
  - { name: token, when: { kind: secret }, per: [token], allow: 0/min }
  - { name: trial, when: { kind: trial }, per: [user], allow: 0/min, on_limit: shadow }
`

// run runs l until the end of the test, or until stop, which waits for it.
func run(t *testing.T, l *Log) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { l.Run(ctx) })
	stop = func() { cancel(); done.Wait() }
	t.Cleanup(stop)
	return stop
}

// TestOutcomes: the decisions that are asked for are written, as the admin API has them, in order;
// others are not.
func TestOutcomes(t *testing.T) {
	for _, c := range []struct {
		outcomes []string
		allowed  float64
		want     string
	}{
		{[]string{"denied"}, 0, "denied denied"},
		{[]string{"denied", "shadow_denied"}, 0, "denied denied shadow_denied"},
		{[]string{"near_limit"}, 0, "near_limit"},
		{nil, 1, "allowed"},
		{[]string{"denied", "near_limit"}, 1, "allowed near_limit denied denied"},
	} {
		var out buffer
		l, err := Open(Options{Out: &out, Outcomes: outcomes(t, c.outcomes...), Allowed: c.allowed,
			Entries: entries(t)})
		if err != nil {
			t.Fatal(err)
		}
		stop := run(t, l)
		shop := limiter(t, l, shopRules)
		for range 3 {
			ask(t, shop, rule.Map{"kind": "hard", "user": "ada"})
		}
		ask(t, shop, rule.Map{"kind": "hard", "user": "monitor"}) // exempt
		secret := ask(t, shop, rule.Map{"kind": "secret", "token": "s3cret"})
		ask(t, shop, rule.Map{"kind": "trial", "user": "eve"})
		stop()
		var got []string
		for _, line := range out.lines() {
			var e recent.Entry
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatalf("%v: %q", err, line)
			}
			got = append(got, e.Outcome)
			shown, ok := l.o.Entries.Find(e.ID)
			if text, _ := json.Marshal(shown); ok && string(text) != line {
				t.Errorf("written\n%s, shown\n%s", line, text)
			}
			if e.ID == secret.ID && !ok {
				t.Error("the refusal is not shown")
			}
			if strings.Contains(line, "s3cret") {
				t.Errorf("a secret is written: %s", line)
			}
		}
		if text := strings.Join(got, " "); text != c.want {
			t.Errorf("%q and %v of the allowed: %s, want %s", c.outcomes, c.allowed, text, c.want)
		}
		if n := l.Dropped(); n != 0 {
			t.Errorf("%d dropped", n)
		}
	}
	if _, err := recent.ParseOutcome([]string{"denied", "allowed"}); err == nil {
		t.Error("allowed is no outcome of the set: a share is")
	}
}

// TestBounds: a flood is cut to the lines of a second, nothing waits for a writer that hangs, and
// what is left out is counted.
func TestBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out buffer
		l, err := Open(Options{Out: &out, PerSecond: 10, Outcomes: outcomes(t, "denied"), Entries: entries(t)})
		if err != nil {
			t.Fatal(err)
		}
		stop := run(t, l)
		r, d := weir.Request{Domain: "shop"}, weir.Decision{Domain: "shop", Known: true, ID: 7, Time: 1}
		written := func(want int) {
			t.Helper()
			synctest.Wait()
			if n := len(out.lines()); n != want {
				t.Fatalf("%d lines, want %d", n, want)
			}
		}
		for range 100 {
			l.decided(&r, &d)
		}
		written(10)
		time.Sleep(99 * time.Millisecond)
		l.decided(&r, &d)
		written(10)
		time.Sleep(time.Millisecond)
		l.decided(&r, &d)
		l.decided(&r, &d)
		written(11)
		time.Sleep(time.Hour) // no more is saved up than a second's
		for range 100 {
			l.decided(&r, &d)
		}
		written(21)
		if n := l.Dropped(); n != 100+1+2+100-21 {
			t.Errorf("%d dropped", n)
		}
		stop()
	})
}

// TestNobodyWrites: without anybody who writes, 4,096 wait, and the next ones are counted at once.
func TestNobodyWrites(t *testing.T) {
	l, err := Open(Options{Out: &buffer{}, PerSecond: 1_000_000, Outcomes: outcomes(t, "denied"), Entries: entries(t)})
	if err != nil {
		t.Fatal(err)
	}
	r, d := weir.Request{Domain: "shop"}, weir.Decision{Domain: "shop", Known: true, ID: 7, Time: 1}
	for range 3 * maxWaiting {
		l.decided(&r, &d)
	}
	if n := l.Dropped(); n != 2*maxWaiting || len(l.waiting) != maxWaiting {
		t.Errorf("%d dropped, %d wait", n, len(l.waiting))
	}
}

// TestReopen: a file that was moved away is written to until Reopen, and the new one from then on;
// lines are appended to what a file holds.
func TestReopen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "decisions.jsonl")
	if err := os.WriteFile(path, []byte("before\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := Open(Options{Path: path, Outcomes: outcomes(t, "denied"), Entries: entries(t)})
	if err != nil {
		t.Fatal(err)
	}
	stop := run(t, l)
	shop := limiter(t, l, shopRules)
	holds := func(path string, ids ...string) {
		t.Helper()
		patience.Until(t, fmt.Sprint(path, " holds ", ids), func() bool {
			data, err := os.ReadFile(path)
			if err != nil {
				return false
			}
			found := 0
			for _, id := range ids {
				if strings.Contains(string(data), id) {
					found++
				}
			}
			return found == len(ids)
		})
	}
	refused := func() string { return ask(t, shop, rule.Map{"kind": "secret", "token": "x"}).ID.String() }
	first := refused()
	holds(path, "before\n{", first)
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	second := refused()
	holds(path+".1", first, second)
	l.Reopen()
	patience.Until(t, "the file is there again", func() bool { _, err := os.Stat(path); return err == nil })
	third := refused()
	holds(path, third)
	fourth := refused()
	stop() // writes what waits
	holds(path, third, fourth)
	if data, _ := os.ReadFile(path + ".1"); strings.Contains(string(data), third) {
		t.Error("the old file is written to after Reopen")
	}
}

// full is a stream that fails while it is full.
type full struct {
	buffer
	full bool
}

func (f *full) Write(p []byte) (int, error) {
	if f.full {
		return 0, errors.New("no space left on device")
	}
	return f.buffer.Write(p)
}

// TestFull: lines that cannot be written are counted, and the log goes on once they can.
func TestFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &full{full: true}
		l, err := Open(Options{Out: out, Outcomes: outcomes(t, "denied"), Entries: entries(t)})
		if err != nil {
			t.Fatal(err)
		}
		stop := run(t, l)
		r, d := weir.Request{Domain: "shop"}, weir.Decision{Domain: "shop", Known: true, ID: 7, Time: 1}
		for range 3 { // which are written together
			l.decided(&r, &d)
		}
		synctest.Wait()
		if n := l.Dropped(); n != 3 {
			t.Errorf("%d dropped", n)
		}
		out.full = false
		l.decided(&r, &d)
		synctest.Wait()
		if n := len(out.lines()); n != 1 || out.lines()[0] == "" || l.Dropped() != 3 {
			t.Errorf("%d lines, %d dropped", n, l.Dropped())
		}
		stop()
	})
}
