package rulesource

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
)

// rules is a file with one limit of n per minute.
func rules(n int) string {
	return fmt.Sprintf("domain: shop\nlimits:\n  - name: api\n    per: [user]\n    allow: %d/min\n", n)
}

// limitOf returns the n of a set that holds only a file of rules.
func limitOf(t *testing.T, s *rule.Set) int64 {
	t.Helper()
	if len(s.Rules()) != 1 || len(s.Rules()[0].Windows) != 1 {
		t.Fatalf("a set of %d rules", len(s.Rules()))
	}
	return s.Rules()[0].Windows[0].Limit.Config().N
}

func TestWatch(t *testing.T) {
	t0 := time.Unix(1000, 0)
	ms := func(n int) time.Time { return t0.Add(time.Duration(n) * time.Millisecond) }
	steps := []struct {
		name  string
		at    int // ms
		touch bool
		sig   string // looked at if not a touch
		ready bool
		wait  int // ms
	}{
		{name: "nothing changed", at: 0, sig: "a"},
		{name: "a change is seen", at: 10, sig: "b", wait: 100},
		{name: "it has not rested", at: 60, sig: "b", wait: 50},
		{name: "it changed again", at: 100, sig: "c", wait: 100},
		{name: "it was written without a sign", at: 150, touch: true},
		{name: "so it has not rested", at: 200, sig: "c", wait: 50},
		{name: "it has rested", at: 250, sig: "c", ready: true},
		{name: "once", at: 260, sig: "c"},
		{name: "written without a sign", at: 300, touch: true},
		{name: "is read as well", at: 400, sig: "c", ready: true},
		{name: "a change that is told of", at: 500, touch: true},
		{name: "counts from then", at: 560, sig: "d", wait: 40},
		{name: "unless it changes again", at: 600, sig: "e", wait: 100},
		{name: "and rests", at: 700, sig: "e", ready: true},
		{name: "a change seen late", at: 5000, sig: "a", wait: 100},
		{name: "and read then", at: 5100, sig: "a", ready: true},
	}
	w := watch{rest: 100 * time.Millisecond, seen: "a"}
	for _, s := range steps {
		if s.touch {
			w.touch(ms(s.at))
			continue
		}
		ready, wait := w.look(ms(s.at), s.sig)
		if ready != s.ready || wait != time.Duration(s.wait)*time.Millisecond {
			t.Errorf("%s: got %v, %v; want %v, %d ms", s.name, ready, wait, s.ready, s.wait)
		}
	}
}

func TestOpenErrors(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"no file":     {nil, "holds no rule file"},
		"empty file":  {map[string]string{"a.yaml": rules(1), "b.yaml": " \n"}, "b.yaml:1: the file is empty"},
		"no rule":     {map[string]string{"a.yaml": "domain: shop\n"}, "no rule is left"},
		"broken":      {map[string]string{"a.yaml": "domain: shop\nlimits:\n  - name: api\n    alow: 5/min\n"}, "a.yaml:"},
		"broken YAML": {map[string]string{"a.yaml": "limits: [\n"}, "a.yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := Open(Options{Path: tree(t, c.files)})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
		})
	}
	if _, _, err := Open(Options{Path: filepath.Join(t.TempDir(), "absent")}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("absent: got %v", err)
	}
	dir := tree(t, map[string]string{"a.yaml": rules(3), "b.yaml": "domain: other\n"})
	_, set, err := Open(Options{Path: dir})
	if err != nil {
		t.Fatalf("a domain without rules beside others: %v", err)
	}
	if n := limitOf(t, set); n != 3 {
		t.Errorf("got the limit %d", n)
	}
}

// logs collects log lines.
type logs struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logs) count(s string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), s)
}

// follow runs f with these events, until stop is called.
func follow(t *testing.T, f *Folder, events <-chan event) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.run(ctx, events, func() {})
	}()
	return func() {
		cancel()
		<-done
	}
}

// TestFollow goes through the life of a folder in virtual time: what is read when, and what changes
// nothing.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := tree(t, map[string]string{"shop.yaml": rules(1)})
		file := filepath.Join(dir, "shop.yaml")
		var lines logs
		var mu sync.Mutex // the sleeps that order the goroutines are none for the race detector
		var got []int64
		f, _, err := Open(Options{
			Path: dir, Logger: slog.New(slog.NewTextHandler(&lines, nil)),
			Changed: func(s *rule.Set) {
				mu.Lock()
				defer mu.Unlock()
				got = append(got, limitOf(t, s))
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		events := make(chan event)
		stop := follow(t, f, events)
		pass := func(d time.Duration) { time.Sleep(d); synctest.Wait() }
		is := func(when string, want ...int64) {
			t.Helper()
			mu.Lock()
			defer mu.Unlock()
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Fatalf("%s: sets %v, want %v", when, got, want)
			}
		}
		pass(time.Second)
		is("nothing changed")

		write(t, file, rules(2))
		events <- touched
		pass(99 * time.Millisecond)
		is("it has not rested")
		pass(time.Millisecond)
		is("it has rested", 2)

		// Written again and again: nothing before it rests.
		for range 20 {
			write(t, file, rules(3))
			events <- touched
			pass(50 * time.Millisecond)
		}
		is("it does not rest", 2)
		behind := f.Status()
		if !behind.Behind {
			t.Fatalf("it does not rest: status %+v", behind)
		}
		pass(50 * time.Millisecond)
		is("it rests", 2, 3)
		if s := f.Status(); s.Behind || s.Digest == behind.Digest || len(s.Digest) != len("sha256:")+64 {
			t.Fatalf("it rests: status %+v", s)
		}

		// No event comes: the look every 5 s sees it.
		write(t, file, rules(40))
		pass(4 * time.Second)
		is("not looked yet", 2, 3)
		pass(1200 * time.Millisecond)
		is("looked", 2, 3, 40)

		// What is broken changes nothing, is told once, and counted.
		for i, broken := range []string{"", rules(5)[:40], "limits: [", "domain: shop\n"} {
			before := lines.count("not loaded")
			write(t, file, broken)
			events <- touched
			pass(11 * time.Second)
			is(fmt.Sprintf("broken by %q", broken), 2, 3, 40)
			s := f.Status()
			if s.Err == nil || s.Failures != uint64(i+1) || s.Behind {
				t.Fatalf("broken by %q: status %+v", broken, s)
			}
			if told := lines.count("not loaded") - before; told != 1 {
				t.Fatalf("broken by %q: told %d times", broken, told)
			}
		}
		// The same error again is not told again.
		before := lines.count("not loaded")
		events <- touched
		pass(time.Second)
		if told := lines.count("not loaded") - before; told != 0 {
			t.Fatalf("the same error was told again")
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		events <- touched
		pass(time.Second)
		is("removed", 2, 3, 40)
		if s := f.Status(); s.Err == nil || !strings.Contains(s.Err.Error(), "holds no rule file") {
			t.Fatalf("removed: status %+v", s)
		}
		if err := os.Remove(dir); err != nil {
			t.Fatal(err)
		}
		pass(6 * time.Second)
		is("the folder is gone", 2, 3, 40)

		// The last good rules come back: no new set is needed, and the error is gone.
		write(t, file, rules(40))
		pass(6 * time.Second)
		is("as before", 2, 3, 40)
		if s := f.Status(); s.Err != nil || s.Loads != 4 {
			t.Fatalf("as before: status %+v", s)
		}
		write(t, file, rules(7))
		f.Reload()
		pass(0)
		is("told to reload what has not rested", 2, 3, 40)
		pass(100 * time.Millisecond)
		is("told to reload", 2, 3, 40, 7)
		stop()
	})
}

// TestUntil: rules that stand in for a folder that is not there give way to it once it holds good
// rules, for good.
func TestUntil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(tree(t, nil), "rules")
		shop := filepath.Join(dir, "shop.yaml")
		var lines logs
		var mu sync.Mutex // the sleeps that order the goroutines are none for the race detector
		var got []int64
		until := []file.Source{{Name: "until.yaml", Data: []byte(rules(99))}}
		f, set, err := Open(Options{
			Path: dir, Until: until, Logger: slog.New(slog.NewTextHandler(&lines, nil)),
			Changed: func(s *rule.Set) {
				mu.Lock()
				defer mu.Unlock()
				got = append(got, limitOf(t, s))
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		if n := limitOf(t, set); n != 99 {
			t.Fatalf("the first set has the limit %d", n)
		}
		stop := follow(t, f, make(chan event))
		is := func(when string, waiting bool, failures uint64, want ...int64) {
			t.Helper()
			time.Sleep(11 * time.Second) // two looks
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if s := f.Status(); s.Waiting != waiting || s.Failures != failures || fmt.Sprint(got) != fmt.Sprint(want) {
				t.Fatalf("%s: sets %v, want %v; status %+v", when, got, want, s)
			}
		}
		is("nothing is there", true, 0)
		f.Reload()
		is("told to reload", true, 0)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		is("an empty folder", true, 0)
		write(t, filepath.Join(dir, "shop_test.yaml"), "tests: []\n")
		is("only tests of rules", true, 0)
		write(t, shop, "domain: shop\nlimits:\n  - name: a\n    alow: 5/min\n")
		is("broken rules", true, 1)
		write(t, shop, rules(5))
		is("good rules", false, 1, 5)
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		is("the folder is gone", false, 2, 5)
		if n := lines.count("rules loaded"); n != 1 {
			t.Errorf("told of %d loads, want 1", n)
		}
		stop()
	})
}

// TestEvents checks on the real file system that each way to change a file is noticed without
// looking from time to time.
func TestEvents(t *testing.T) {
	type fixture struct {
		path   string
		change []func(n int) // each puts rules(n) in place
	}
	for name, set := range map[string]func(t *testing.T) fixture{
		"a folder": func(t *testing.T) fixture {
			dir := tree(t, map[string]string{"shop.yaml": rules(1)})
			file := filepath.Join(dir, "shop.yaml")
			return fixture{dir, []func(int){
				func(n int) { write(t, file, rules(n)) },
				func(n int) { // as editors do
					write(t, filepath.Join(dir, ".shop.yaml.swp"), rules(n))
					rename(t, filepath.Join(dir, ".shop.yaml.swp"), file)
				},
				func(n int) { // the file before is renamed away
					rename(t, file, file+"~")
					write(t, file, rules(n))
				},
				func(n int) { // into a new folder
					if err := os.Remove(file); err != nil {
						t.Error(err)
					}
					write(t, filepath.Join(dir, "new", "shop.yaml"), rules(n))
				},
				func(n int) { write(t, filepath.Join(dir, "new", "shop.yaml"), rules(n)) },
			}}
		},
		"a ConfigMap": func(t *testing.T) fixture {
			dir := tree(t, map[string]string{"..1/shop.yaml": rules(1)})
			symlink(t, "..1", filepath.Join(dir, "..data"))
			symlink(t, filepath.Join("..data", "shop.yaml"), filepath.Join(dir, "shop.yaml"))
			swap := func(n int) {
				version := fmt.Sprintf("..%d", n)
				write(t, filepath.Join(dir, version, "shop.yaml"), rules(n))
				symlink(t, version, filepath.Join(dir, "..data_tmp"))
				rename(t, filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data"))
			}
			return fixture{dir, []func(int){swap, swap}}
		},
		"a link to a folder": func(t *testing.T) fixture {
			base := tree(t, map[string]string{"v1/shop.yaml": rules(1)})
			link := filepath.Join(base, "rules")
			symlink(t, "v1", link)
			swap := func(n int) {
				version := fmt.Sprintf("v%d", n)
				write(t, filepath.Join(base, version, "shop.yaml"), rules(n))
				symlink(t, version, filepath.Join(base, "next"))
				rename(t, filepath.Join(base, "next"), link)
			}
			return fixture{link,
				[]func(int){swap, swap, func(n int) { write(t, filepath.Join(link, "shop.yaml"), rules(n)) }}}
		},
		"a single file": func(t *testing.T) fixture {
			file := filepath.Join(t.TempDir(), "limits.conf")
			write(t, file, rules(1))
			return fixture{file, []func(int){
				func(n int) { write(t, file, rules(n)) },
				func(n int) {
					write(t, file+".new", rules(n))
					rename(t, file+".new", file)
				},
			}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := set(t)
			sets := make(chan *rule.Set, 1)
			f, first, err := Open(Options{Path: x.path, Every: time.Hour, Changed: func(s *rule.Set) { sets <- s }})
			if err != nil {
				t.Fatal(err)
			}
			if n := limitOf(t, first); n != 1 {
				t.Fatalf("the first set has the limit %d", n)
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				f.Run(ctx)
			}()
			for i, change := range x.change {
				change(i + 2)
				select {
				case s := <-sets:
					if n := limitOf(t, s); n != int64(i+2) {
						t.Fatalf("change %d: got the limit %d", i, n)
					}
				case <-time.After(patience.Left(t)):
					t.Fatalf("change %d was not noticed; status %+v", i, f.Status())
				}
			}
			cancel()
			<-done
		})
	}
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Error(err)
	}
}
