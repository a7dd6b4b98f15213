package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/weir-rl/weir/internal/admin"
	"github.com/weir-rl/weir/internal/door/auth"
	"github.com/weir-rl/weir/internal/door/httpapi"
	"github.com/weir-rl/weir/internal/door/rls"
	"github.com/weir-rl/weir/internal/server/settings"
	"github.com/weir-rl/weir/internal/wire/listen"
)

// trustSettings say who is trusted, and how connections are protected.
var trustSettings = []setting{
	{Path: "trusted_peers", Kind: settings.List, Value: "127.0.0.0/8,::1",
		Help: "who may refund, release and ask for more than 1,000 hits without a token: addresses, networks, private, loopback; unix: peers of unix sockets",
		Set:  settings.Peers(func(c *Config) (*[]netip.Prefix, *bool) { return &c.trust.Peers, &c.trust.Unix })},
	{Path: "auth.tokens_file",
		Help: "file of bearer tokens, one on a line: needed for the admin API then, and trusted as trusted_peers are",
		Set:  settings.String(func(c *Config) *string { return &c.tokensFile })},
	{Path: "auth.doors", Kind: settings.List,
		Help: "decision doors that need a token of auth.tokens_file as well: http, grpc, resp, forward_auth",
		Set:  settings.Doors(tokenDoors, func(c *Config) *[]string { return &c.authDoors })},
	{Path: "tls.cert", Kind: settings.List,
		Help: "files of this server's certificates with their intermediates, in PEM; they turn on TLS, and are followed as they change",
		Set:  func(c *Config, items []string) error { c.certificates.Cert = items; return nil }},
	{Path: "tls.key", Kind: settings.List,
		Help: "files of their private keys, in the same order",
		Set:  func(c *Config, items []string) error { c.certificates.Key = items; return nil }},
	{Path: "tls.doors", Kind: settings.List, Value: strings.Join(allDoors, ","),
		Help: "doors that speak TLS",
		Set:  settings.Doors(allDoors, func(c *Config) *[]string { return &c.tlsDoors })},
	{Path: "tls.client_ca",
		Help: "file of the authorities of clients' certificates, in PEM; it turns on mutual TLS",
		Set:  settings.String(func(c *Config) *string { return &c.certificates.ClientCA })},
	{Path: "tls.client_doors", Kind: settings.List, Value: strings.Join(allDoors, ","),
		Help: "doors that demand such a certificate, of those that speak TLS",
		Set:  settings.Doors(allDoors, func(c *Config) *[]string { return &c.clientDoors })},
	{Path: "tls.min_version", Value: "1.2",
		Help: "oldest version of TLS: 1.2 or 1.3",
		Set: settings.Text(func(c *Config, s string) error {
			versions := map[string]uint16{"1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13}
			if c.certificates.MinVersion = versions[s]; c.certificates.MinVersion == 0 {
				return fmt.Errorf("%q must be 1.2 or 1.3", s)
			}
			return nil
		})},
	{Path: "proxy_protocol.doors", Kind: settings.List,
		Help: "doors whose connections begin with a PROXY protocol header; needs proxy_protocol.peers",
		Set:  settings.Doors(allDoors, func(c *Config) *[]string { return &c.proxyDoors })},
	{Path: "proxy_protocol.peers", Kind: settings.List,
		Help: "the proxies that send it: addresses, networks, private, loopback; connections from elsewhere are closed; unix: peers of unix sockets",
		Set: settings.Peers(func(c *Config) (*[]netip.Prefix, *bool) {
			return &c.proxyPeers.Peers, &c.proxyPeers.Unix
		})},
	{Path: "admin.hosts", Kind: settings.List,
		Help: "names that the admin port, and the HTTP door on loopback, may be called by, beside addresses and localhost",
		Set:  func(c *Config, items []string) error { c.admin.Hosts = items; return nil }},
	{Path: "admin.page", Value: "on",
		Help: "the operator's page at the admin port: on or off",
		Set: settings.Text(func(c *Config, s string) error {
			if c.page = s == "on"; !c.page && s != "off" {
				return fmt.Errorf("%q must be on or off", s)
			}
			return nil
		})},
	{Path: "audit.path",
		Help: "file of the audit log, a record for each change by hand, chained by hashes; none if empty: the log only",
		Set:  settings.String(func(c *Config) *string { return &c.auditPath })},
}

// trustConfig is the configuration of trust and transport.
type trustConfig struct {
	trust        auth.Trust // all but the tokens
	tokensFile   string
	authDoors    []string // doors that need a token
	certificates listen.CertificateFiles
	tlsDoors     []string // doors that speak TLS
	clientDoors  []string // doors that demand a client's certificate
	proxyDoors   []string // doors that take PROXY protocol headers
	proxyPeers   listen.ProxyPeers
	admin        admin.Options
	page         bool   // the operator's page is on
	auditPath    string // "" for none
}

// allDoors are the names of all doors, tokenDoors those that auth.doors may list.
var (
	allDoors   = []string{"http", "grpc", "resp", "spoe", "proxy", "admin"}
	tokenDoors = []string{"http", "grpc", "resp", "forward_auth"}
)

// openTokens loads the tokens, if there is a file of them.
func (p *program) openTokens(context.Context) error {
	if p.c.tokensFile == "" {
		return nil
	}
	p.tokens = &auth.Tokens{ClientIP: p.c.clientIP, Logger: p.log}
	if err := p.tokens.Load(p.c.tokensFile); err != nil {
		return fmt.Errorf("auth.tokens_file: %w", err)
	}
	return nil
}

// reloadTokens loads the tokens anew.
func (p *program) reloadTokens() {
	if p.tokens == nil {
		return
	}
	if err := p.tokens.Load(p.c.tokensFile); err != nil {
		p.log.Error("auth.tokens_file not loaded, the tokens from before stay good", "error", err)
	}
}

// openCertificates reports settings that do not go together, and loads the certificates.
func (p *program) openCertificates(context.Context) error {
	c := p.c
	if len(c.authDoors) > 0 && c.tokensFile == "" {
		return errors.New("auth.doors: needs auth.tokens_file")
	}
	if len(c.proxyDoors) > 0 && len(c.proxyPeers.Peers) == 0 && !c.proxyPeers.Unix {
		return errors.New(
			"proxy_protocol.peers: is missing; without it anybody could send a header that makes him somebody else")
	}
	if err := c.clientIP.Check(); err != nil {
		return fmt.Errorf("client_ip: %w", err)
	}
	if err := c.checkTLSDoors(); err != nil {
		return err
	}
	files := c.certificates
	if len(files.Cert) == 0 {
		if len(files.Key) > 0 || files.ClientCA != "" {
			return errors.New("tls.cert: is missing")
		}
		return nil
	}
	var err error
	files.Logger = p.log
	p.certificates, err = listen.LoadCertificates(files)
	return err
}

// followCertificates follows the files of the certificates until ctx ends.
func (p *program) followCertificates(ctx context.Context) {
	if p.certificates != nil {
		p.certificates.Run(ctx)
	}
}

func (p *program) reloadCertificates() {
	if p.certificates != nil {
		_ = p.certificates.Reload() // logs errors itself
	}
}

// checkTLSDoors reports doors that somebody wants closed by TLS or by certificates of clients, and
// that would be open. Lists of all doors are the defaults, and so say nothing.
func (c *Config) checkTLSDoors() error {
	named := func(doors []string) bool { return len(doors) > 0 && !slices.Equal(doors, allDoors) }
	if named(c.tlsDoors) && len(c.certificates.Cert) == 0 {
		return errors.New("tls.doors: needs tls.cert and tls.key")
	}
	if !named(c.clientDoors) {
		return nil
	}
	if c.certificates.ClientCA == "" {
		return errors.New("tls.client_doors: needs tls.client_ca; without it no certificate is demanded")
	}
	for _, door := range c.clientDoors {
		if !slices.Contains(c.tlsDoors, door) {
			return fmt.Errorf("tls.client_doors: %s is not in tls.doors, and without TLS it can demand no certificate",
				door)
		}
	}
	return nil
}

// tlsOf returns the TLS configuration of a door; nil if it speaks plain text.
func (p *program) tlsOf(d *door) func() *tls.Config {
	if p.certificates == nil || !slices.Contains(p.c.tlsDoors, d.name) {
		return nil
	}
	var protocols []string
	switch d.name {
	case "http", "proxy", "admin":
		protocols = []string{"h2", "http/1.1"}
	case "grpc":
		protocols = []string{"h2"}
	}
	return p.certificates.Server(protocols, p.demandsCertificate(d))
}

// demandsCertificate reports whether d speaks mutual TLS.
func (p *program) demandsCertificate(d *door) bool {
	return p.c.certificates.ClientCA != "" && slices.Contains(p.c.tlsDoors, d.name) &&
		slices.Contains(p.c.clientDoors, d.name)
}

// needsToken reports whether a door requires a token.
func (p *program) needsToken(name string) bool { return slices.Contains(p.c.authDoors, name) }

// tokensFirst asks for a token before the HTTP door h sees a request, where auth.doors wants it.
func (p *program) tokensFirst(h http.Handler) http.Handler {
	doors := httpapi.TokenDoors{HTTP: p.needsToken("http"), ForwardAuth: p.needsToken("forward_auth")}
	if doors == (httpapi.TokenDoors{}) {
		return h
	}
	return httpapi.RequireToken(h, p.tokens, doors)
}

// authorizer authorizes the calls of a gRPC door; the zero value if every client may call.
func (p *program) authorizer(name string) rls.Authorizer {
	if !p.needsToken(name) {
		return rls.Authorizer{}
	}
	return rls.Authorize(p.tokens)
}

// remarks are shown to an operator by a server that is ready.
func (p *program) remarks() string {
	remark := p.remark()
	also := func(more string) {
		if remark != "" {
			remark += "; "
		}
		remark += more
	}
	if why := p.awaitsRules(); why != "" {
		also(why)
	} else if p.xds != nil && p.xds.Remark() != "" {
		also(p.xds.Remark())
	}
	if silent := p.storage.silentRegions(); silent != "" {
		also(silent)
	}
	if !p.followed() {
		also("bans and grants have not been read yet")
	}
	if p.certificates != nil {
		if err := p.certificates.Status().Err; err != nil {
			also("new certificates are not in force: " + oneLine(err))
		}
	}
	return remark
}

// listenerOptions bound and shape the connections of a door.
func (p *program) listenerOptions(d *door) listen.Options {
	c := p.c
	o := listen.Options{
		MaxConnections: p.connections(), MaxPerAddress: c.limits.perAddress, Exempt: c.clientIP.Trusted,
		SetupTimeout: c.limits.headerTimeout, TLS: p.tlsOf(d), Logger: p.log,
	}
	if slices.Contains(c.proxyDoors, d.name) {
		o.Proxy = &c.proxyPeers
	}
	if d.name == "proxy" || d.name == "admin" { // the others bound the time of an answer
		o.Stall = c.limits.stall
	}
	return o
}

// connections is how many connections a door may have, and the proxy to its upstream. All share the
// files that the process may open; if one of them could take all, the others were closed as well,
// the admin door among them.
func (p *program) connections() int {
	doors, l := 0, &p.c.listen
	for _, address := range []string{l.http, l.grpc, l.resp, l.spoe, l.proxy, l.metrics, l.admin} {
		if address != "" {
			doors++
		}
	}
	if l.proxy != "" {
		doors++ // its connections to the upstream
	}
	return shareFiles(int(min(listen.MaxFiles(), 1<<30)), p.c.maxConnections, doors)
}

// shareFiles is how many connections each door may have, out of wanted, when the process may open
// files files; files 0 means that this number is unknown, and wanted 0 is any number.
func shareFiles(files, wanted, doors int) int {
	if files == 0 {
		return wanted
	}
	const other = 64 // the store, rules, and whatever else is open
	return max(1, min(wanted, (files-min(other, files/2))/doors))
}

// warnOfFiles warns if the system's bound on open files takes effect: if a configured
// max_connections cannot be had, or if few connections are left. The default of max_connections is
// only an upper bound, so a smaller number alone is no reason to warn.
func (p *program) warnOfFiles() {
	n := p.connections()
	if n >= p.c.maxConnections || !p.c.named["max_connections"] && n >= fewConnections {
		return
	}
	p.log.Warn(
		"this process may open too few files for max_connections at each door; raise its limit (ulimit -n, LimitNOFILE)",
		"files", listen.MaxFiles(), "max_connections", p.c.maxConnections, "in_force", n)
}

// fewConnections is the number of connections to a door below which an operator is warned.
const fewConnections = 1000

// doorAttributes are the log attributes of a door that opens.
func (p *program) doorAttributes(d *door) []any {
	attributes := []any{"door", d.name, "addr", listen.Text(d.listener.Addr())}
	if p.tlsOf(d) != nil {
		attributes = append(attributes, "tls", true)
	}
	if p.demandsCertificate(d) {
		attributes = append(attributes, "client_certificates", true)
	}
	if slices.Contains(p.c.proxyDoors, d.name) {
		attributes = append(attributes, "proxy_protocol", true)
	}
	return attributes
}

// bound puts the limits of the configuration on a server of HTTP.
func (p *program) bound(s *http.Server) {
	l := &p.c.limits
	s.MaxHeaderBytes = headerBytes
	s.ReadHeaderTimeout, s.IdleTimeout = l.headerTimeout, l.idle
	s.HTTP2.MaxConcurrentStreams = streams
	s.HTTP2.WriteByteTimeout = min(s.HTTP2.WriteByteTimeout, l.stall)
	if s.ErrorLog == nil {
		s.ErrorLog = slog.NewLogLogger(p.log.Handler(), slog.LevelDebug)
	}
}
