package xds

import (
	"context"
	"crypto/tls"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	configpb "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/weir-rl/weir/internal/rulesource"
	"github.com/weir-rl/weir/internal/testkit/certtest"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/xdstest"
	"github.com/weir-rl/weir/rule"
)

// log is what a follower logs. Safe for concurrent use.
type log struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// bed is a follower of a server.
type bed struct {
	*Follower
	t    *testing.T
	log  *log
	stop func() // ends Run

	mu     sync.Mutex
	limits map[string]int64 // in force, by domain and name
	sets   int              // that Run has put in force
}

// address is the address of a server, with further parameters.
func address(t *testing.T, scheme string, s *xdstest.Server, parameters string) *Address {
	t.Helper()
	a, err := Parse(scheme + "://" + s.Addr + "?node=" + xdstest.Node + "&wait=10m" + parameters)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// begin follows a server, and runs the follower until the end of the test.
func begin(t *testing.T, o Options) *bed {
	t.Helper()
	b := &bed{t: t, log: &log{}, limits: map[string]int64{}}
	o.Version, o.Logger = "test", slog.New(slog.NewTextHandler(b.log, nil))
	o.Looked = func(_, _ rulesource.Status) {}
	o.Changed = func(s *rule.Set) { b.took(s); b.mu.Lock(); b.sets++; b.mu.Unlock() }
	f, set, err := Follow(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	b.Follower = f
	if set != nil {
		b.took(set)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); f.Run(ctx) }()
	b.stop = func() { cancel(); <-done }
	t.Cleanup(b.stop)
	return b
}

func (b *bed) took(s *rule.Set) {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.limits)
	for _, r := range s.Rules() {
		b.limits[r.Domain+" "+r.Name] = -1
		if len(r.Windows) > 0 {
			b.limits[r.Domain+" "+r.Name] = r.Windows[0].Limit.Config().N
		}
	}
}

// limit is the number of a limit in force; 0 for none.
func (b *bed) limit(name string) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.limits[name]
}

func (b *bed) await(name string, n int64) {
	b.t.Helper()
	patience.Until(b.t, "the limit "+name+" is in force, or gone", func() bool { return b.limit(name) == n })
}

// says waits for a line of the log.
func (b *bed) says(text string) {
	b.t.Helper()
	patience.Until(b.t, "the log says "+text, func() bool { return strings.Contains(b.log.String(), text) })
}

// certificates are files of one authority, and the TLS of a server that demands its certificates.
func certificates(t *testing.T, dir, name string) *tls.Config {
	t.Helper()
	a := certtest.New(t, name)
	cert, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	a.IssueTo(cert, key)
	a.Write(filepath.Join(dir, "ca.crt"))
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: a.Pool(),
		ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12}
}

func files(dir string) string {
	return "&ca=" + filepath.Join(dir, "ca.crt") + "&cert=" + filepath.Join(dir, "tls.crt") +
		"&key=" + filepath.Join(dir, "tls.key")
}

// TestFollow: rules come into force, change and are acknowledged with their version; a version with
// the same rules costs nothing.
func TestFollow(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"xds", "xdss"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			var config *tls.Config
			parameters := "&metadata.zone=a"
			if scheme == "xdss" {
				dir := t.TempDir()
				config = certificates(t, dir, "one")
				parameters += files(dir)
			}
			s := xdstest.New(t, config)
			s.Set("1", xdstest.Config("a", 1, "k"), xdstest.Config("b", 2, "k"))
			b := begin(t, Options{Address: address(t, scheme, s, parameters)})
			if b.limit("a k") != 1 || b.limit("b k") != 2 {
				t.Fatalf("limits %v", b.limits)
			}
			s.AwaitAck("1")
			patience.Until(t, "the stream has begun", func() bool { return b.Stats().Same == 1 })
			first := s.Requests()[0]
			if n := first.GetNode(); n.GetId() != xdstest.Node || n.GetUserAgentName() != "weir" ||
				n.GetMetadata().AsMap()["zone"] != "a" || first.GetVersionInfo() != "none" || len(first.GetResourceNames()) > 0 {
				t.Errorf("the first request is %v", first)
			}
			s.Set("2", xdstest.Config("b", 3, "k"))
			b.await("b k", 3)
			b.await("a k", 0)
			s.AwaitAck("2")
			loads := b.Status().Loads
			s.Set("3", xdstest.Config("b", 3, "k"))
			s.AwaitAck("3")
			patience.Until(t, "the version is known", func() bool { return b.Status().Version == "3" })
			if st := b.Status(); st.Loads != loads || !slices.Equal(st.Files, []string{"b.yaml"}) || st.Err != nil {
				t.Errorf("status %+v", st)
			}
			if st := b.Stats(); st.Same == 0 || st.Refused > 0 || !st.Connected || st.Last.IsZero() {
				t.Errorf("stats %+v", st)
			}
		})
	}
}

// TestRefused: what cannot be in force is refused with resource and field, twice at most although
// the server sends it again at once; what was in force stays, and a mended set comes at once.
func TestRefused(t *testing.T) {
	t.Parallel()
	s := xdstest.New(t, nil)
	s.Set("1", xdstest.Config("a", 1, "k"))
	b := begin(t, Options{Address: address(t, "xds", s, "")})
	patience.Until(t, "the stream has begun", func() bool { return b.Stats().Same == 1 })
	bad := xdstest.Config("a", 7, "k")
	bad.Descriptors = append(bad.Descriptors, &configpb.RateLimitDescriptor{Key: "x",
		Descriptors: []*configpb.RateLimitDescriptor{
			{Key: "y", RateLimit: &configpb.RateLimitPolicy{RequestsPerUnit: 1}}, {Value: "v"}}})
	s.Set("2", bad)
	patience.Until(t, "it is refused twice", func() bool { return len(s.Refusals()) >= 2 })
	for i, want := range []string{"1", "2"} {
		r := s.Refusals()[i]
		for _, part := range []string{
			`resource "a": descriptors[1].descriptors[0].rate_limit.unit: invalid rate limit unit 'unknown'`,
			`resource "a": descriptors[1].descriptors[1].key: descriptor has empty key`} {
			if !strings.Contains(r.GetErrorDetail().GetMessage(), part) {
				t.Errorf("refusal %q lacks %q", r.GetErrorDetail().GetMessage(), part)
			}
		}
		if r.GetVersionInfo() != want || r.GetResponseNonce() == "" {
			t.Errorf("refusal %d has the version %q, want %q", i, r.GetVersionInfo(), want)
		}
	}
	if b.limit("a k") != 1 || b.Status().Err == nil || b.Status().Failures != 1 {
		t.Errorf("limits %v, status %+v", b.limits, b.Status())
	}
	s.Set("3", xdstest.Config("a", 9, "k"))
	b.await("a k", 9)
	s.AwaitAck("3")
	if n := len(s.Refusals()); n != 2 {
		t.Errorf("%d refusals, want 2", n)
	}
	if st := b.Status(); st.Err != nil {
		t.Errorf("still refused: %v", st.Err)
	}
	if n := strings.Count(b.log.String(), "rules not loaded"); n != 1 {
		t.Errorf("%d lines about it in the log:\n%s", n, b.log)
	}
	// Refused and then as before.
	s.Set("4", bad)
	patience.Until(t, "it is refused again", func() bool { return len(s.Refusals()) == 4 })
	s.Set("5", xdstest.Config("a", 9, "k"))
	s.AwaitAck("5")
	patience.Until(t, "all is well", func() bool { return b.Status().Err == nil })
}

// Each fault of a set is told with its resource.
func TestFaults(t *testing.T) {
	t.Parallel()
	limit := func(u configpb.RateLimitUnit) *configpb.RateLimitPolicy {
		return &configpb.RateLimitPolicy{Unit: u, RequestsPerUnit: 1}
	}
	one := func(d *configpb.RateLimitDescriptor) []*configpb.RateLimitConfig {
		return []*configpb.RateLimitConfig{{Name: "n", Domain: "d", Descriptors: []*configpb.RateLimitDescriptor{d}}}
	}
	unlimited := limit(configpb.RateLimitUnit_DAY)
	unlimited.Unlimited = true
	replaces := limit(configpb.RateLimitUnit_DAY)
	replaces.Name, replaces.Replaces = "me", []*configpb.RateLimitReplace{{Name: "me"}}
	deep := &configpb.RateLimitDescriptor{Key: "k"}
	for range maxDeep {
		deep = &configpb.RateLimitDescriptor{Key: "k", Descriptors: []*configpb.RateLimitDescriptor{deep}}
	}
	twice := xdstest.Config("d", 1, "k", "k")
	twice.Name = "n"
	for want, configs := range map[string][]*configpb.RateLimitConfig{
		`resource "n": domain: config file cannot have empty domain`:                                      {{Name: "n"}},
		`resource "n": descriptors[0].rate_limit.unit: invalid rate limit unit 'number 8'`:                one(&configpb.RateLimitDescriptor{Key: "k", RateLimit: limit(8)}),
		`resource "n": descriptors[0].rate_limit.unit: should not specify rate limit unit when unlimited`: one(&configpb.RateLimitDescriptor{Key: "k", RateLimit: unlimited}),
		`resource "n": descriptors[0].rate_limit.replaces[0].name: replaces should not contain name of`:   one(&configpb.RateLimitDescriptor{Key: "k", RateLimit: replaces}),
		`resource "n": descriptors[1].key: duplicate descriptor composite key 'd.k'`:                      {twice},
		`resource "e": the resource "d" has its domain, "d", too`:                                         {{Name: "e", Domain: "d"}, {Name: "d", Domain: "d"}},
		"descriptors nest more than 100 levels deep":                                                      one(deep),
	} {
		_, err := loadConfigs(t, configs...)
		if err == nil || !strings.Contains(told(err), want) || strings.Contains(told(err), "\n") {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	for _, unit := range []string{"SECOND", "MINUTE", "HOUR", "DAY", "WEEK", "MONTH", "YEAR"} {
		u := configpb.RateLimitUnit(configpb.RateLimitUnit_value[unit])
		set, err := loadConfigs(t, one(&configpb.RateLimitDescriptor{Key: "k", RateLimit: limit(u)})...)
		if err != nil || set.Rules()[0].Lyft.Unit != unit {
			t.Errorf("%s: %v", unit, err)
		}
	}
}

// TestSettle: a server that comes back with some of the domains does not take the others away
// before they have had the time to come; one that is told on the same stream goes at once.
func TestSettle(t *testing.T) {
	t.Parallel()
	s := xdstest.New(t, nil)
	s.Set("1", xdstest.Config("a", 1, "k"), xdstest.Config("b", 2, "k"), xdstest.Config("c", 3, "k"))
	b := begin(t, Options{Address: address(t, "xds", s, ""), Settle: time.Hour})
	s.Stop()
	s.Start(nil)
	s.Set("1", xdstest.Config("a", 11, "k")) // the same number for other rules
	b.await("a k", 11)
	if b.limit("b k") != 2 || b.limit("c k") != 3 {
		t.Errorf("limits %v", b.limits)
	}
	s.Set("2", xdstest.Config("a", 11, "k"), xdstest.Config("b", 12, "k"))
	b.await("b k", 12)
	if b.limit("c k") != 3 {
		t.Errorf("limits %v", b.limits)
	}
	s.Set("3", xdstest.Config("a", 11, "k")) // b was named, and is gone
	b.await("b k", 0)
	if b.limit("a k") != 11 || b.limit("c k") != 3 {
		t.Errorf("limits %v", b.limits)
	}
	if n := len(s.Refusals()); n > 0 {
		t.Errorf("%d refusals", n)
	}
}

// What has not come again after that time is gone.
func TestSettled(t *testing.T) {
	t.Parallel()
	s := xdstest.New(t, nil)
	s.Set("1", xdstest.Config("a", 1, "k"), xdstest.Config("b", 2, "k"))
	b := begin(t, Options{Address: address(t, "xds", s, ""), Settle: time.Millisecond})
	s.Stop()
	s.Start(nil)
	s.Set("1", xdstest.Config("a", 1, "k"))
	b.await("b k", 0)
	if b.limit("a k") != 1 {
		t.Errorf("limits %v", b.limits)
	}
	b.says("domains that the server names no longer are not in force any more")
}

// A refused first answer lets no domain go, and what was refused stays in the status when domains
// are let go.
func TestSettleRefused(t *testing.T) {
	t.Parallel()
	s := xdstest.New(t, nil)
	s.Set("1", xdstest.Config("a", 1, "k"), xdstest.Config("b", 2, "k"))
	b := begin(t, Options{Address: address(t, "xds", s, ""), Settle: time.Hour})
	s.Stop()
	s.Start(nil)
	s.Set("1", xdstest.Config("a", 11, "k"), xdstest.Config("b", 12, ""))
	patience.Until(t, "the set is refused", func() bool { return b.Status().Err != nil })
	s.Set("2", xdstest.Config("a", 21, "k"))
	b.await("a k", 21)
	if b.limit("b k") != 2 {
		t.Errorf("limits %v: b is to stay for an hour", b.limits)
	}

	s = xdstest.New(t, nil)
	s.Set("1", xdstest.Config("a", 1, "k"), xdstest.Config("b", 2, "k"))
	b = begin(t, Options{Address: address(t, "xds", s, ""), Settle: 200 * time.Millisecond})
	s.Stop()
	s.Start(nil)
	s.Set("1", xdstest.Config("a", 11, "k"))
	b.await("a k", 11)
	s.Set("2", xdstest.Config("a", 12, ""))
	b.await("b k", 0)
	patience.Until(t, "the set is refused", func() bool { return b.Status().Err != nil })
}

// TestEmpty: a server whose last gateway is gone holds nothing, under the empty version.
func TestEmpty(t *testing.T) {
	t.Parallel()
	s := xdstest.New(t, nil)
	s.Set("")
	b := begin(t, Options{Address: address(t, "xds", s, "")})
	if !b.Has() || len(b.limits) > 0 || len(b.Sources()) > 0 {
		t.Errorf("limits %v", b.limits)
	}
	b.says("the server holds no rate limits: requests pass")
	s.Set("1", xdstest.Config("a", 1, "k"), &configpb.RateLimitConfig{Name: "none", Domain: "none"})
	b.await("a k", 1)
	s.Set("2")
	b.await("a k", 0)
	s.AwaitAck("2")
}

// TestNone: a start without rules ends, or goes on as the address says, and the log wonders.
func TestNone(t *testing.T) {
	t.Parallel()
	s := xdstest.New(t, nil)
	parse := func(parameters string) *Address {
		a, err := Parse("xds://" + s.Addr + "?wait=1ms&node=" + parameters)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	_, _, err := Follow(t.Context(), Options{Address: parse("other")})
	if err == nil || !strings.Contains(err.Error(), "rules: none have come from xds://"+s.Addr+"?node=other within 1ms") {
		t.Errorf("got %v", err)
	}
	b := begin(t, Options{Address: parse("other&require=nothing"), Silence: time.Millisecond})
	if b.Has() {
		t.Error("there are rules")
	}
	b.says("the xDS server has sent nothing")
	s.Set("1", xdstest.Config("a", 1, "k"))
	c := begin(t, Options{Address: parse(xdstest.Node + "&require=ready")})
	c.await("a k", 1)
	if !c.Has() || b.Has() {
		t.Error("the wrong one has rules")
	}
}

// TestUnknownFields: what this version does not know is told, and what it knows is in force.
func TestUnknownFields(t *testing.T) {
	t.Parallel()
	s := xdstest.New(t, nil)
	c := xdstest.Config("a", 1, "k")
	field := protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 1)
	c.Descriptors[0].ProtoReflect().SetUnknown(field)
	c.Descriptors[0].RateLimit.ProtoReflect().SetUnknown(field)
	s.Set("1", c)
	b := begin(t, Options{Address: address(t, "xds", s, "")})
	b.await("a k", 1)
	b.says(`fields=2 first="resource \"a\": descriptors[0]: field 99"`)
	const want = "the rules have 2 fields that this version of weir does not understand"
	if got := b.Remark(); got != want || b.Stats().Unknown != 2 {
		t.Errorf("remark %q", got)
	}
	s.Set("2", xdstest.Config("a", 2, "k"))
	b.await("a k", 2)
	patience.Until(t, "nothing is unknown", func() bool { return b.Remark() == "" })
}

// TestAway: decisions go on with the rules in force while the server is away.
func TestAway(t *testing.T) {
	t.Parallel()
	s := xdstest.New(t, nil)
	s.Set("1", xdstest.Config("a", 1, "k"))
	b := begin(t, Options{Address: address(t, "xds", s, "")})
	s.Stop()
	patience.Until(t, "it is away", func() bool { return b.Status().AwayErr != nil && !b.Stats().Connected })
	b.says("rules cannot be followed; those in force stay")
	s.Start(nil)
	s.Set("1", xdstest.Config("a", 2, "k"))
	b.await("a k", 2)
	patience.Until(t, "it is there", func() bool { return b.Status().AwayErr == nil && b.Stats().Connected })
	b.says("rules are followed again")
	n := len(s.Requests())
	b.Reload()
	patience.Until(t, "it is asked anew", func() bool {
		return slices.ContainsFunc(s.Requests()[n:], func(r *requestOf) bool { return r.GetVersionInfo() == "none" })
	})
}

// TestRotated: each connection reads the certificates anew.
func TestRotated(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := xdstest.New(t, certificates(t, dir, "one"))
	s.Set("1", xdstest.Config("a", 1, "k"))
	b := begin(t, Options{Address: address(t, "xdss", s, files(dir))})
	s.Stop()
	other := t.TempDir()
	s.Start(certificates(t, other, "two"))
	s.Set("1", xdstest.Config("a", 2, "k"))
	patience.Until(t, "the server is refused", func() bool {
		err := b.Status().AwayErr
		return err != nil && strings.Contains(err.Error(), "certificate")
	})
	for _, name := range []string{"ca.crt", "tls.crt", "tls.key"} {
		data, err := os.ReadFile(filepath.Join(other, name))
		if err != nil {
			t.Fatal(err)
		}
		certtest.Write(t, []string{filepath.Join(dir, name)}, data)
	}
	b.await("a k", 2)
}

// A client without a certificate is sent away, and its start says so.
func TestNoCertificate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := xdstest.New(t, certificates(t, dir, "one"))
	s.Set("1", xdstest.Config("a", 1, "k"))
	a, err := Parse("xdss://" + s.Addr + "?node=n&wait=1ms&require=nothing&ca=" + filepath.Join(dir, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	b := begin(t, Options{Address: a})
	patience.Until(t, "it is told why", func() bool {
		err := b.Status().AwayErr
		return err != nil && strings.Contains(err.Error(), "certificate required")
	})
}

// TestLarge: an answer may be larger than the 4 MiB that gRPC takes by default.
func TestLarge(t *testing.T) {
	t.Parallel()
	s := xdstest.New(t, nil)
	var names []string
	long := strings.Repeat("x", 4000)
	for i := range 1500 {
		names = append(names, long+string(rune('a'+i%26))+strings.Repeat("y", i/26))
	}
	s.Set("1", xdstest.Config("a", 1, names...))
	b := begin(t, Options{Address: address(t, "xds", s, "")})
	if got := len(b.limits); got != len(names) {
		t.Errorf("%d limits, want %d", got, len(names))
	}
	small, err := Parse("xds://" + s.Addr + "?node=" + xdstest.Node + "&wait=1ms&require=nothing&max_message=1")
	if err != nil {
		t.Fatal(err)
	}
	c := begin(t, Options{Address: small})
	patience.Until(t, "the answer is too large", func() bool {
		err := c.Status().AwayErr
		return err != nil && strings.Contains(err.Error(), "larger than max")
	})
}

// TestCache: a node that starts while the server is away goes on with the rules that it had.
func TestCache(t *testing.T) {
	t.Parallel()
	s := xdstest.New(t, nil)
	s.Set("7", xdstest.Config("a", 1, "k"), xdstest.Config("b", 2, "k"))
	path := filepath.Join(t.TempDir(), "cache")
	b := begin(t, Options{Address: address(t, "xds", s, "&cache="+path)})
	patience.Until(t, "it is written", func() bool { _, err := os.Stat(path); return err == nil })
	s.Set("8", xdstest.Config("a", 5, "k"), xdstest.Config("b", 2, "k"))
	b.await("a k", 5)
	b.stop()
	s.Stop()
	a, err := Parse("xds://" + s.Addr + "?node=" + xdstest.Node + "&wait=1ms&cache=" + path)
	if err != nil {
		t.Fatal(err)
	}
	c := begin(t, Options{Address: a})
	if c.limit("a k") != 5 || c.limit("b k") != 2 || c.Status().Version != "8" {
		t.Errorf("limits %v, %+v", c.limits, c.Status())
	}
	c.says("rules come from the cache until the server gives others")
	s.Start(nil)
	s.Set("1", xdstest.Config("a", 6, "k"), xdstest.Config("b", 2, "k"))
	c.await("a k", 6)
	c.stop()
	s.Stop()
	for want, spoil := range map[string]func(*Address){
		"there is no cache of them yet at":        func(a *Address) { a.Cache += "x" },
		"is damaged":                              func(a *Address) { damage(t, a.Cache) },
		"holds rules of the node " + xdstest.Node: func(a *Address) { a.Node = "other" },
	} {
		other := *a
		other.Cache = filepath.Join(t.TempDir(), "cache")
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		certtest.Write(t, []string{other.Cache}, data)
		spoil(&other)
		if _, _, err := Follow(t.Context(), Options{Address: &other}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// damage changes the last byte of a file.
func damage(t *testing.T, path string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)-1]++
	certtest.Write(t, []string{path}, data)
}
