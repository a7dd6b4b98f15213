package server

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/host/nftables"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store/memory"
)

// namespace is a new network namespace.
func namespace(t *testing.T) int {
	t.Helper()
	type made struct {
		file *os.File
		err  error
	}
	done := make(chan made)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- made{err: err}
			return
		}
		f, err := os.Open("/proc/thread-self/ns/net")
		done <- made{f, err}
	}()
	m := <-done
	if m.err != nil {
		t.Skipf("no network namespace can be made here (that needs root): %v", m.err)
	}
	t.Cleanup(func() { _ = m.file.Close() })
	return int(m.file.Fd())
}

// The kernel holds the bans that ask for it, from whatever made them, and no others.
func TestNFTablesFollowsBans(t *testing.T) {
	set, _, err := file.Load([]file.Source{{Name: "test.yaml", Data: []byte(`
limits:
  - {name: login, per: [ip], allow: 1/min, algorithm: sliding_log, ban: {after: 1, within: 1m, for: 1h, at: [http, nftables]}}
  - {name: other, per: [user], allow: 1/min, algorithm: sliding_log, ban: {after: 1, within: 1m, for: 1h}}
`)}}, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	fw := newFirewall(nftables.Options{IPv6Prefix: 64, Never: []netip.Prefix{netip.MustParsePrefix("203.0.113.64/26")}},
		slog.New(slog.NewTextHandler(t.Output(), nil)))
	fw.options.NetNS = namespace(t)
	if err := fw.open(set); err != nil {
		if strings.Contains(err.Error(), "this kernel has no nftables") {
			t.Skip(err)
		}
		t.Fatal(err)
	}
	defer fw.close()
	store, err := memory.New(memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	l, err := weir.New(store, weir.WithRules(set), weir.WithBans(weir.BanOptions{Changed: fw.changed}))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { fw.run(ctx, l) })
	defer running.Wait()
	defer cancel()
	holds := func(want ...string) {
		t.Helper()
		slices.Sort(want)
		patience.Until(t, fmt.Sprintf("the kernel holds %q", want), func() bool {
			list, err := fw.table.List()
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, e := range list {
				if e.Left > 50*time.Minute {
					got = append(got, e.Block.String())
				}
			}
			slices.Sort(got)
			return slices.Equal(got, want)
		})
	}
	ask := func(name, value string) {
		t.Helper()
		for range 2 {
			if _, err := l.Allow(t.Context(), weir.Request{Attributes: weir.Map{name: value}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	ban := func(limit, key string) {
		t.Helper()
		if _, err := l.Bans().Set(t.Context(), "", limit, []string{key}, time.Now().Add(time.Hour), ""); err != nil {
			t.Fatal(err)
		}
	}
	ask("user", "ada")
	ask("ip", "203.0.113.77") // a trusted proxy
	ask("ip", "203.0.113.1")
	ask("ip", "2001:db8::1")
	holds("203.0.113.1/32", "2001:db8::/64")
	ban("login", "203.0.113.2")
	holds("203.0.113.1/32", "203.0.113.2/32", "2001:db8::/64")
	if _, err := l.Bans().Lift(t.Context(), "", "login", []string{"203.0.113.1"}); err != nil {
		t.Fatal(err)
	}
	holds("203.0.113.2/32", "2001:db8::/64")
	if s := fw.stats(); s.Spared != 1 || s.Failed != 0 || s.Entries != 2 {
		t.Errorf("%+v", s)
	}
	if n := len(l.Bans().List()); n != 4 {
		t.Errorf("%d bans over HTTP", n)
	}
	// A table of a run before is made anew, and gets what is in force.
	again := newFirewall(nftables.Options{IPv6Prefix: 64}, fw.log)
	again.options.NetNS = fw.options.NetNS
	if err := again.open(set); err != nil {
		t.Fatal(err)
	}
	fw.again()
	holds("203.0.113.2/32", "2001:db8::/64")
	if _, ok := fw.wanted(ruleSetOf(t, "limits: [{name: a, allow: 1/min}]")); ok {
		t.Error("rules without nftables want it")
	}
	bad := newFirewall(nftables.Options{IPv6Prefix: 999}, fw.log)
	if err := bad.open(set); err == nil || !strings.HasPrefix(err.Error(),
		`test.yaml:3: the limit "login" asks for at: nftables: ban: `) {
		t.Errorf("got %v", err)
	}
}
