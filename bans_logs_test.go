package weir_test

import (
	"bufio"
	"cmp"
	"compress/gzip"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/internal/door/proxy"
	"github.com/weir-rl/weir/internal/testkit/traffic"
)

// Brute force, replayed through the proxy in virtual time. Who is to be banned is worked out
// beforehand by a counter that shares nothing with the limiter: it keeps all instants, and looks
// through them for each request.

// logged is a request of a log.
type logged struct {
	at           int64 // µs
	client       string
	forged       string // what the client itself wrote into X-Forwarded-For
	method, path string
}

// naiveRule is a limit by sliding_log, per address, with a ban.
type naiveRule struct {
	name               string
	meets              func(r *logged) bool
	allow, window      int64 // s
	after, within, ban int64 // s
	wide               bool
}

// naiveBan is one that must be.
type naiveBan struct {
	rule, key    string
	since, until int64
}

func (b naiveBan) String() string {
	return fmt.Sprintf("%s %s from %d to %d", b.rule, b.key, b.since, b.until)
}

// naiveKey is the key under which an address is counted.
func naiveKey(client string) string {
	a := netip.MustParseAddr(client)
	if a.Is4() {
		return "ip=" + client
	}
	b := a.As16()
	clear(b[8:])
	return "ip=" + netip.AddrFrom16(b).String() + "/64"
}

// naive tells who must be banned, and for each request whether it is refused, and of one that a ban
// refuses how long (s, rounded up).
func naive(rules []naiveRule,
	exempt func(r *logged) bool, requests []logged) (bans []naiveBan, refused []bool, banned []int64) {
	type state struct{ admitted, denied []int64 }
	states := map[string]*state{} // by rule and key
	until := map[string]int64{}   // likewise
	recent := func(list []int64, since int64) (n int64) {
		for _, at := range list {
			if at > since {
				n++
			}
		}
		return n
	}
	for i := range requests {
		r := &requests[i]
		refused, banned = append(refused, false), append(banned, 0)
		if exempt != nil && exempt(r) {
			continue
		}
		key := naiveKey(r.client)
		for _, rule := range rules {
			if end := until[rule.name+" "+key]; end > r.at && (rule.wide || rule.meets(r)) {
				refused[i], banned[i] = true, max(banned[i], (end-r.at+999_999)/1_000_000)
			}
		}
		if refused[i] {
			continue
		}
		var met, denying []naiveRule
		for _, rule := range rules {
			if !rule.meets(r) {
				continue
			}
			met = append(met, rule)
			s := states[rule.name+" "+key]
			if s == nil {
				s = &state{}
				states[rule.name+" "+key] = s
			}
			if recent(s.admitted, r.at-rule.window*1e6) >= rule.allow {
				denying = append(denying, rule)
			}
		}
		refused[i] = len(denying) > 0
		for _, rule := range denying {
			s := states[rule.name+" "+key]
			s.denied = append(s.denied, r.at)
			if recent(s.denied, r.at-rule.within*1e6) >= rule.after {
				until[rule.name+" "+key] = r.at + rule.ban*1e6
				bans = append(bans, naiveBan{rule.name, key, r.at, r.at + rule.ban*1e6})
			}
		}
		if !refused[i] {
			for _, rule := range met {
				s := states[rule.name+" "+key]
				s.admitted = append(s.admitted, r.at)
			}
		}
	}
	return bans, refused, banned
}

// replayBans sends the requests through a proxy, and compares each answer, and all bans, with the
// expectations.
func replayBans(t *testing.T, yaml string, rules []naiveRule,
	exempt func(r *logged) bool, requests []logged) (bans []naiveBan, refusedByBan int) {
	t.Helper()
	bans, refused, banned := naive(rules, exempt, requests)
	c := newClock()
	c.set(requests[0].at)
	var got []naiveBan
	l, _ := banLimiter(t, c, yaml, weir.WithBans(weir.BanOptions{Changed: func(b *weir.Ban, lifted bool) {
		if lifted {
			t.Errorf("%v was lifted", b)
		}
		got = append(got, naiveBan{b.Rule, strings.Join(b.Key, ","), b.Since.UnixMicro(), b.Until.UnixMicro()})
	}}))
	reached := 0
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached++ }))
	defer upstream.Close()
	u, err := url.Parse(upstream.URL)
	if err != nil {
		t.Fatal(err)
	}
	p, err := proxy.New(l, proxy.Options{Upstream: u,
		ClientIP: httplimit.ClientIP{Trusted: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}})
	if err != nil {
		t.Fatal(err)
	}
	passed := 0
	for i := range requests {
		r := &requests[i]
		c.set(r.at)
		q := httptest.NewRequest(r.method, "http://site.example/", nil)
		q.URL.Path, q.URL.RawPath, q.RequestURI = r.path, "", r.path
		q.RemoteAddr = "127.0.0.1:40000"
		q.Header.Set("X-Forwarded-For", strings.TrimPrefix(r.forged+", "+r.client, ", "))
		w := httptest.NewRecorder()
		p.ServeHTTP(w, q)
		want := http.StatusOK
		if refused[i] {
			want = http.StatusTooManyRequests
		} else {
			passed++
		}
		if w.Code != want {
			t.Fatalf("request %d, %s %s: status %d, want %d: %s", i, r.method, r.path, w.Code, want, w.Body)
		}
		if banned[i] > 0 {
			refusedByBan++
			if retry := w.Header().Get("Retry-After"); retry != strconv.FormatInt(banned[i], 10) {
				t.Fatalf("request %d: Retry-After %s, want %d, to the end of the ban", i, retry, banned[i])
			}
		}
	}
	if reached != passed {
		t.Errorf("%d requests reached the upstream, want %d", reached, passed)
	}
	if !slices.Equal(got, bans) {
		t.Errorf("banned were\n%v\nwant\n%v", got, bans)
	}
	if n := l.Bans().Stats().Requests; n != uint64(refusedByBan) {
		t.Errorf("bans refused %d requests, want %d", n, refusedByBan)
	}
	return bans, refusedByBan
}

var logLine = regexp.MustCompile(`^(\S+) \S+ .*?\[([^\]]+)\] "([A-Z]+) (?:https?://[^/ ]+)?(/[^ ?]*)\S* HTTP/1\.[01]"`)

// readLog reads a real log in the order of its instants.
func readLog(t *testing.T, name string) []logged {
	t.Helper()
	f, err := os.Open(traffic.File(t, name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var list []logged
	lines := bufio.NewScanner(z)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		m := logLine.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		at, err := time.Parse("02/Jan/2006:15:04:05 -0700", m[2])
		if err != nil {
			continue
		}
		if _, err := netip.ParseAddr(m[1]); err != nil {
			continue
		}
		list = append(list, logged{at: at.UnixMicro(), client: m[1], method: m[3], path: m[4]})
	}
	if lines.Err() != nil {
		t.Fatal(lines.Err())
	}
	slices.SortStableFunc(list, func(a, b logged) int { return cmp.Compare(a.at, b.at) })
	return list
}

func isPath(paths ...string) func(r *logged) bool {
	return func(r *logged) bool { return slices.Contains(paths, r.path) }
}

// stated holds what the counter found against what was stated: how many addresses each rule bans,
// and how many requests their bans refuse.
func stated(t *testing.T, bans []naiveBan, refused int, addresses map[string]int, requests int) {
	t.Helper()
	seen, got := map[string]bool{}, map[string]int{}
	for _, b := range bans {
		if !seen[b.rule+" "+b.key] {
			seen[b.rule+" "+b.key] = true
			got[b.rule]++
		}
	}
	if !maps.Equal(got, addresses) || refused != requests {
		t.Errorf("%v addresses are banned, and %d requests refused so; stated were %v and %d", got, refused, addresses,
			requests)
	}
}

// TestBansOnRealLogs: a sign-up form that is abused from hundreds of addresses, and a site that
// crawlers and break-in attempts visit.
func TestBansOnRealLogs(t *testing.T) {
	t.Run("basjes", func(t *testing.T) {
		const yaml = `
limits:
  - {name: signup, when: {path: /join_form, method: POST}, per: [ip], allow: 1/hour, algorithm: sliding_log, ban: {after: 2, within: 24h, for: 48h}}
  - {name: login, when: {path: [/login_form, /acl_users/credentials_cookie_auth/require_login]}, per: [ip], allow: 2/min, algorithm: sliding_log, ban: {after: 3, within: 1h, for: 12h, scope: domain}}`
		bans, n := replayBans(t, yaml, []naiveRule{
			{name: "signup", meets: func(r *logged) bool { return r.path == "/join_form" && r.method == "POST" }, allow: 1, window: 3600, after: 2, within: 86400, ban: 172800},
			{name: "login", meets: isPath("/login_form", "/acl_users/credentials_cookie_auth/require_login"), allow: 2, window: 60, after: 3, within: 3600, ban: 43200, wide: true},
		}, nil, readLog(t, "basjes_hackers/access.log.gz"))
		stated(t, bans, n, map[string]int{"signup": 3, "login": 2}, 111)
	})
	t.Run("secrepo", func(t *testing.T) {
		const yaml = `
limits:
  - {name: site, per: [ip], allow: 20/min, algorithm: sliding_log, ban: {after: 10, within: 10m, for: 30m}}
  - {name: guesses, when: {path: [/wp-login.php, /user.php, /.env]}, per: [ip], allow: 1/hour, algorithm: sliding_log, ban: {after: 1, within: 24h, for: 24h, scope: domain}}`
		bans, n := replayBans(t, yaml, []naiveRule{
			{name: "site", meets: func(*logged) bool { return true }, allow: 20, window: 60, after: 10, within: 600, ban: 1800},
			{name: "guesses", meets: isPath("/wp-login.php", "/user.php", "/.env"), allow: 1, window: 3600, after: 1, within: 86400, ban: 86400, wide: true},
		}, nil, readLog(t, "secrepo_202110/access.log.gz"))
		stated(t, bans, n, map[string]int{"site": 4, "guesses": 4}, 228)
	})
}

// TestPasswordGuessing: several ways to guess passwords, and people who only log in.
func TestPasswordGuessing(t *testing.T) {
	const yaml = `
exempt: {ip: [10.0.0.0/8]}
limits:
  - {name: login, when: {method: POST, path: /login}, per: [ip], allow: 5/min, algorithm: sliding_log, ban: {after: 20, within: 10m, for: 15m, scope: domain}}
  - {name: site, per: [ip], allow: 1000/min, algorithm: sliding_log}`
	var requests []logged
	from := func(client string, begin, end, every time.Duration, method, path string) {
		for at := begin; at < end; at += every {
			requests = append(requests, logged{at: epoch + at.Microseconds(), client: client, method: method,
				path: path})
		}
	}
	hour := time.Hour
	// A guess a second for an hour, and a look at the site now and then.
	from("192.0.2.1", 0, hour, time.Second, "POST", "/login")
	from("192.0.2.1", 500*time.Millisecond, hour, 7*time.Second, "GET", "/")
	// Guesses that stay below the limit, and a little above: 19 denials within any 10 minutes are
	// one too few.
	from("192.0.2.2", 0, hour, 12*time.Second, "POST", "/login")
	for burst := range 3 {
		from("192.0.2.3", time.Duration(burst)*11*time.Minute, time.Duration(burst)*11*time.Minute+24*time.Second,
			time.Second, "POST", "/login")
	}
	// Guesses from all addresses of one network, and from 200 addresses of many.
	for i := range 600 {
		from(fmt.Sprintf("2001:db8:0:7::%x", i+1), time.Duration(i)*time.Second, time.Duration(i)*time.Second+1,
			time.Second, "POST", "/login")
		from(fmt.Sprintf("198.51.100.%d", i%200), time.Duration(i)*3*time.Second, time.Duration(i)*3*time.Second+1,
			time.Second, "POST", "/login")
	}
	from("2001:db8:0:8::1", 0, hour, 20*time.Second, "POST", "/login") // the network next door
	// Somebody who forges where the requests come from.
	for i := range 300 {
		requests = append(requests, logged{at: epoch + int64(i)*2e6, client: "203.0.113.5",
			forged: fmt.Sprintf("192.0.2.%d, 10.1.1.1", 100+i%100), method: "POST", path: "/login"})
	}
	// A user who mistypes a password seven times, an office of forty behind one address, and a
	// monitor that is exempt.
	from("203.0.113.7", 0, 7*time.Second, time.Second, "POST", "/login")
	from("203.0.113.7", time.Minute+10*time.Second, time.Minute+11*time.Second, time.Second, "POST", "/login")
	from("203.0.113.8", 0, hour, 90*time.Second, "POST", "/login")
	from("203.0.113.8", 0, 20*time.Minute, time.Second, "GET", "/")
	from("10.1.2.3", 0, 10*time.Minute, 500*time.Millisecond, "POST", "/login")
	slices.SortStableFunc(requests, func(a, b logged) int { return cmp.Compare(a.at, b.at) })

	// Stated beforehand: of these three keys, and nobody else's. The first guesser is denied from
	// the 6th guess of a minute on, so that the 20th denial is the 25th guess; the one that forges
	// sends one each two seconds, of which 5 in a minute pass.
	banned := []string{"ip=192.0.2.1", "ip=2001:db8:0:7::/64", "ip=203.0.113.5"}
	bans, refused := replayBans(t, yaml, []naiveRule{
		{name: "login", meets: func(r *logged) bool { return r.method == "POST" && r.path == "/login" }, allow: 5, window: 60, after: 20, within: 600, ban: 900, wide: true},
		{name: "site", meets: func(*logged) bool { return true }, allow: 1000, window: 60, after: 1 << 40, within: 1, ban: 1},
	}, func(r *logged) bool { return strings.HasPrefix(r.client, "10.") }, requests)
	var keys []string
	for _, b := range bans {
		if !slices.Contains(keys, b.key) {
			keys = append(keys, b.key)
		}
	}
	slices.Sort(keys)
	if !slices.Equal(keys, banned) {
		t.Errorf("%q are banned, stated were %q", keys, banned)
	}
	if first := bans[0]; first.key != "ip=192.0.2.1" && first.key != "ip=2001:db8:0:7::/64" ||
		first.since != epoch+24e6 {
		t.Errorf("the first ban is %v", first)
	}
	if refused == 0 {
		t.Error("the bans refused nobody")
	}
}
