package auth

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir/internal/testkit/doortest"
)

// TestGuessing: after ten wrong tokens within a minute an address learns nothing more, not even of
// the right one; the others go on, and so does it after a while.
func TestGuessing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tokens := doortest.Tokens[Tokens](t, "sesame", "simsim")
		var log bytes.Buffer
		tokens.Logger = slog.New(slog.NewTextHandler(&log, nil))
		const thief, owner = "192.0.2.1:5", "192.0.2.2:5"
		for i := range 15 {
			want := Wrong
			if i >= 10 {
				want = TooMany
			}
			if got := tokens.Check(thief, fmt.Sprint("guess-", i)); got != want {
				t.Errorf("guess %d: %v, want %v", i, got, want)
			}
		}
		for _, c := range []struct {
			address string
			want    Verdict
		}{
			{thief, TooMany}, {"192.0.2.1:99", TooMany}, {"[::ffff:192.0.2.1]:7", TooMany}, {owner, Right}, {"@", Right},
		} {
			if got := tokens.Check(c.address, "sesame"); got != c.want {
				t.Errorf("%s: %v, want %v", c.address, got, c.want)
			}
		}
		if s := tokens.Stats(); s != (TokenStats{Wrong: 10, TooMany: 8}) {
			t.Errorf("got %+v", s)
		}
		time.Sleep(6 * time.Second) // one guess is forgiven
		if got := tokens.Check(thief, "simsim"); got != Right {
			t.Errorf("after a while: %v", got)
		}
		if a, b := tokens.Check(thief, "x"), tokens.Check(thief, "sesame"); a != Wrong || b != TooMany {
			t.Errorf("one more guess: %v, %v", a, b)
		}
		// A network of IPv6 counts as one address, and so do all peers of a unix socket.
		for i := range 10 {
			tokens.Check(fmt.Sprintf("[2001:db8::%x]:5", i), "x")
			tokens.Check("@", "x")
		}
		for address, want := range map[string]Verdict{"[2001:db8::ffff]:5": TooMany, "[2001:db8:0:1::1]:5": Right,
			"@": TooMany} {
			if got := tokens.Check(address, "sesame"); got != want {
				t.Errorf("%s: %v, want %v", address, got, want)
			}
		}
		if n := strings.Count(log.String(), "wrong tokens"); n != 1 || strings.Contains(log.String(), "guess-") {
			t.Errorf("told %d times:\n%s", n, &log)
		}
		time.Sleep(time.Minute)
		tokens.Check(thief, "x")
		if n := strings.Count(log.String(), "wrong tokens"); n != 2 {
			t.Errorf("told %d times:\n%s", n, &log)
		}
	})
}

// TestManyGuessers: what is remembered is bounded, and those who come together get no more guesses
// than apart.
func TestManyGuessers(t *testing.T) {
	tokens := doortest.Tokens[Tokens](t, "sesame")
	address := netip.MustParseAddr("2001:db8::")
	for i := range 3 * maxGuessers {
		b := address.As16()
		b[5], b[6], b[7] = byte(i>>16), byte(i>>8), byte(i)
		tokens.check(netip.AddrFrom16(b), "x")
	}
	if n := len(tokens.guesses.mu.states); n > maxGuessers {
		t.Errorf("%d addresses are remembered", n)
	}
	var all sync.WaitGroup
	before := tokens.Stats().Wrong
	for range 100 {
		all.Go(func() { tokens.Check("192.0.2.1:5", "x") })
	}
	all.Wait()
	if got := tokens.Stats().Wrong - before; got > guessesPerMinute+1 {
		t.Errorf("%d guesses at once", got)
	}
	var none *Tokens
	if none.Check("@", "") == Right || none.CheckBearer("@", "Bearer ") == Right ||
		new(Tokens).Check("@", "") == Right {
		t.Error("where there are no tokens one is right")
	}
}

// TestUnixPeers: whoever comes over a unix socket is trusted only if that is said.
func TestUnixPeers(t *testing.T) {
	for _, c := range []struct {
		trust   Trust
		address string
		want    bool
	}{
		{Trust{}, "@", false}, {Trust{Unix: true}, "@", true}, {Trust{Unix: true}, "", false}, {Trust{Unix: true}, "192.0.2.1:5", false},
		{Trust{Peers: doortest.Loopback}, "@", false}, {Trust{Peers: []netip.Prefix{netip.MustParsePrefix("::/0"), netip.MustParsePrefix("0.0.0.0/0")}}, "@", false},
	} {
		if got := c.trust.TrustedPeer(c.address); got != c.want {
			t.Errorf("%+v, %q: %v", c.trust, c.address, got)
		}
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = c.address
		if got := c.trust.Trusted(r); got != c.want {
			t.Errorf("%+v, request from %q: %v", c.trust, c.address, got)
		}
	}
}
