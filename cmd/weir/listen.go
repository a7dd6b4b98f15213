package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/internal/listen"
	"github.com/weir-rl/weir/internal/server"
	"github.com/weir-rl/weir/internal/telemetry"
)

// allDoors are the names of all doors, tokenDoors those that auth.doors may list.
var (
	allDoors   = []string{"http", "grpc", "resp", "spoe", "proxy", "admin"}
	tokenDoors = []string{"http", "grpc", "resp", "forward_auth"}
)

// toPeers takes prefixes, addresses, and the word unix for whoever comes over a unix socket.
func toPeers(field func(*config) (*[]netip.Prefix, *bool)) func(*config, []string) error {
	return func(c *config, items []string) (err error) {
		prefixes, unix := field(c)
		*unix = slices.Contains(items, "unix")
		*prefixes, err = httplimit.ParseTrusted(slices.DeleteFunc(slices.Clone(items), func(s string) bool { return s == "unix" }))
		return err
	}
}

// toDoors takes names of doors out of known.
func toDoors(known []string, field func(*config) *[]string) func(*config, []string) error {
	return func(c *config, items []string) error {
		for _, item := range items {
			if !slices.Contains(known, item) {
				return fmt.Errorf("%q is no door; write any of %s", item, strings.Join(known, ", "))
			}
		}
		*field(c) = items
		return nil
	}
}

type tlsConfig struct {
	cert, key          []string
	clientCA           string
	doors, clientDoors []string
	minVersion         uint16
}

type limitsConfig struct {
	perAddress, streams        int
	header, body               int64
	headerTimeout, idle, stall time.Duration
}

// clientIPOf is how the client of an HTTP request is found.
func (c *config) clientIPOf() httplimit.ClientIP {
	return httplimit.ClientIP{Trusted: c.clientIP.trusted, TrustUnix: c.clientIP.unix}
}

// checkTransport reports settings that do not go together, and loads the certificates.
func (p *program) checkTransport() error {
	c := p.c
	if len(c.authDoors) > 0 && c.tokensFile == "" {
		return errors.New("auth.doors: needs auth.tokens_file")
	}
	if len(c.proxyProtocol.doors) > 0 && len(c.proxyProtocol.peers) == 0 && !c.proxyProtocol.unix {
		return errors.New("proxy_protocol.peers: is missing; without it anybody could send a header that makes him somebody else")
	}
	if err := c.tls.checkDoors(); err != nil {
		return err
	}
	if len(c.tls.cert) == 0 {
		if len(c.tls.key) > 0 || c.tls.clientCA != "" {
			return errors.New("tls.cert: is missing")
		}
		return nil
	}
	var err error
	p.certificates, err = listen.LoadCertificates(listen.CertificateFiles{
		Cert: c.tls.cert, Key: c.tls.key, ClientCA: c.tls.clientCA, MinVersion: c.tls.minVersion, Logger: p.log,
	})
	return err
}

// checkDoors reports doors that somebody wants closed by TLS or by certificates of clients, and that would be open. Lists of all
// doors are the defaults, and so say nothing.
func (t *tlsConfig) checkDoors() error {
	named := func(doors []string) bool { return len(doors) > 0 && !slices.Equal(doors, allDoors) }
	if named(t.doors) && len(t.cert) == 0 {
		return errors.New("tls.doors: needs tls.cert and tls.key")
	}
	if !named(t.clientDoors) {
		return nil
	}
	if t.clientCA == "" {
		return errors.New("tls.client_doors: needs tls.client_ca; without it no certificate is demanded")
	}
	for _, door := range t.clientDoors {
		if !slices.Contains(t.doors, door) {
			return fmt.Errorf("tls.client_doors: %s is not in tls.doors, and without TLS it can demand no certificate", door)
		}
	}
	return nil
}

// tlsOf returns what makes a door speak TLS; nil if it does not.
func (p *program) tlsOf(d *door) func() *tls.Config {
	if p.certificates == nil || !slices.Contains(p.c.tls.doors, d.name) {
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
	return p.c.tls.clientCA != "" && slices.Contains(p.c.tls.doors, d.name) && slices.Contains(p.c.tls.clientDoors, d.name)
}

// needsToken reports whether a door is closed to who has no token.
func (p *program) needsToken(name string) bool { return slices.Contains(p.c.authDoors, name) }

// tokensFirst asks for a token before the HTTP door h sees a request, where auth.doors wants it.
func (p *program) tokensFirst(h http.Handler) http.Handler {
	doors := server.TokenDoors{HTTP: p.needsToken("http"), ForwardAuth: p.needsToken("forward_auth")}
	if doors == (server.TokenDoors{}) {
		return h
	}
	return server.RequireToken(h, p.tokens, doors)
}

// authorizer is what decides about the calls of a gRPC door; nil if everybody may call.
func (p *program) authorizer(name string) server.Authorizer {
	if !p.needsToken(name) {
		return nil
	}
	return p.tokens.Authorizer()
}

// remarks is what an operator should know of a server that is ready.
func (p *program) remarks() string {
	remark := p.remark()
	if p.certificates == nil {
		return remark
	}
	if err := p.certificates.Status().Err; err != nil {
		if remark != "" {
			remark += "; "
		}
		remark += "new certificates are not in force: " + oneLine(err)
	}
	return remark
}

// listenerOptions bound and shape the connections of a door.
func (p *program) listenerOptions(d *door) listen.Options {
	c := p.c
	o := listen.Options{
		MaxConnections: p.connections(), MaxPerAddress: c.limits.perAddress, Exempt: c.clientIP.trusted,
		SetupTimeout: c.limits.headerTimeout, TLS: p.tlsOf(d), Logger: p.log,
	}
	if slices.Contains(c.proxyProtocol.doors, d.name) {
		o.Proxy = &listen.ProxyPeers{Peers: c.proxyProtocol.peers, Unix: c.proxyProtocol.unix}
	}
	if d.name == "proxy" || d.name == "admin" { // the others bound the time of an answer
		o.Stall = c.limits.stall
	}
	return o
}

// connections is how many connections a door may have. All doors share the files that the process may open; if one of them could
// take all, the others were closed as well, the admin door among them.
func (p *program) connections() int {
	doors := len(p.doors)
	if p.proxy != nil {
		doors++ // its connections to the upstream
	}
	return shareFiles(int(min(listen.MaxFiles(), 1<<30)), p.c.maxConnections, doors)
}

// shareFiles is how many connections each door may have where so many are wanted, and there are so many files; 0 for any number.
func shareFiles(files, wanted, doors int) int {
	if files == 0 {
		return wanted
	}
	const other = 64 // the store, rules, and whatever else is open
	return max(1, min(wanted, (files-min(other, files/2))/doors))
}

// warnOfFiles tells if max_connections is more than the system allows.
func (p *program) warnOfFiles() {
	if n := p.connections(); n < p.c.maxConnections {
		p.log.Warn("this process may open too few files for max_connections at each door; raise its limit (ulimit -n, LimitNOFILE)",
			"files", listen.MaxFiles(), "max_connections", p.c.maxConnections, "in_force", n)
	}
}

// doorAttributes are what the log tells of a door that opens.
func (p *program) doorAttributes(d *door) []any {
	attributes := []any{"door", d.name, "addr", listen.Text(d.listener.Addr())}
	if p.tlsOf(d) != nil {
		attributes = append(attributes, "tls", true)
	}
	if p.demandsCertificate(d) {
		attributes = append(attributes, "client_certificates", true)
	}
	if slices.Contains(p.c.proxyProtocol.doors, d.name) {
		attributes = append(attributes, "proxy_protocol", true)
	}
	return attributes
}

// bound puts the limits of the configuration on a server of HTTP.
func (p *program) bound(s *http.Server) {
	l := &p.c.limits
	s.MaxHeaderBytes = int(min(l.header, 1<<30))
	s.ReadHeaderTimeout, s.IdleTimeout = l.headerTimeout, l.idle
	s.HTTP2.MaxConcurrentStreams = l.streams
	s.HTTP2.WriteByteTimeout = min(s.HTTP2.WriteByteTimeout, l.stall)
	if s.ErrorLog == nil {
		s.ErrorLog = slog.NewLogLogger(p.log.Handler(), slog.LevelDebug)
	}
}

// collectDoors adds the metrics of the doors, tokens and certificates.
func (p *program) collectDoors() {
	o := telemetry.DoorOptions{Doors: p.doorReadings}
	if p.tokens != nil {
		o.Tokens = func() (wrong, tooMany uint64) { s := p.tokens.Stats(); return s.Wrong, s.TooMany }
	}
	if p.certificates != nil {
		o.Certificates = func() telemetry.Certificates {
			s := p.certificates.Status()
			return telemetry.Certificates{Expires: s.Expires, Loads: s.Loads, Failures: s.Failures}
		}
	}
	p.metrics.Registry().MustRegister(telemetry.NewDoors(o))
}

func (p *program) doorReadings() []telemetry.Door {
	if !p.opened.Load() {
		return nil
	}
	var out []telemetry.Door
	for _, d := range p.doors {
		s := d.listener.Stats()
		r := telemetry.Door{Name: d.name, Open: s.Open, Accepted: s.Accepted, Refused: map[string]uint64{}}
		for reason := range listen.Reasons {
			r.Refused[reason.String()] = s.Refused[reason]
		}
		out = append(out, r)
	}
	return out
}
