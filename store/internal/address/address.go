// Package address reads the URLs of servers that stores connect to.
package address

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
)

// URL is what net/url makes of a URL, but with any number of hosts.
type URL struct {
	Scheme         string
	User, Password string
	Hosts          []string // HOST:PORT, at least one
	Path           string   // without the slashes around it
	Query          url.Values
	// kind begins every error.
	kind string
}

// Form says how a kind of URL is to look.
type Form struct {
	Kind string // such as "redis": errors begin with it
	// Port returns the port of a host without one.
	Port func(scheme string) string
	// Check returns an error for an unknown scheme; nil means that all are known.
	Check func(scheme string) error
	Shown string // how to write one, for errors
}

// Parse reads a URL. Its errors hold no credentials.
func Parse(text string, f Form) (*URL, error) {
	u := &URL{kind: f.Kind}
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok {
		return nil, u.Errorf("there is no scheme; %s", f.Shown)
	}
	u.Scheme = scheme
	if err := f.Check(scheme); err != nil {
		return nil, u.Errorf("%w; %s", err, f.Shown)
	}
	// net/url takes one host, so the list of them is read apart; the errors of url.Parse would
	// quote the password.
	end := strings.IndexAny(rest, "/?#")
	if end >= 0 && strings.Contains(rest[end:], "@") {
		return nil, u.Errorf(
			"there is an @ behind the hosts; percent-encode what is not a letter or a digit in the user and the password")
	}
	if end < 0 {
		end = len(rest)
	}
	authority, tail := rest[:end], rest[end:]
	hosts := authority
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		hosts = authority[at+1:]
		login, err := url.Parse("x://" + authority[:at] + "@h")
		if err != nil {
			return nil, u.Errorf("the user and password cannot be read; percent-encode what is not a letter or a digit")
		}
		u.User = login.User.Username()
		u.Password, _ = login.User.Password()
	}
	for host := range strings.SplitSeq(hosts, ",") {
		if host == "" {
			return nil, u.Errorf("a host is missing; %s", f.Shown)
		}
		one, ok := hostPort(host, f.Port(scheme))
		if !ok {
			return nil, u.Errorf("%q is no HOST:PORT", host)
		}
		u.Hosts = append(u.Hosts, one)
	}
	behind, err := url.Parse("x://h" + tail)
	if err != nil || behind.Fragment != "" {
		return nil, u.Errorf("what follows the hosts cannot be read; %s", f.Shown)
	}
	u.Path, u.Query = strings.Trim(behind.Path, "/"), behind.Query()
	return u, nil
}

// Errorf makes an error that names the kind of URL.
func (u *URL) Errorf(format string, args ...any) error {
	return fmt.Errorf(u.kind+" URL: "+format, args...)
}

func hostPort(text, port string) (string, bool) {
	host := text
	if h, p, err := net.SplitHostPort(text); err == nil {
		host, port = h, p
	} else if strings.Count(text, ":") == 1 || strings.HasSuffix(text, "]:") {
		return "", false
	}
	host = strings.Trim(host, "[]")
	if _, err := netip.ParseAddr(host); err != nil && strings.Contains(host, ":") {
		return "", false
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || host == "" ||
		strings.ContainsAny(host, " \t\r\n") {
		return "", false
	}
	return net.JoinHostPort(host, port), true
}

// CheckParameters reports a parameter that is not among those known, or is given twice.
func (u *URL) CheckParameters(known []string) error {
	for name, values := range u.Query {
		if !slices.Contains(known, name) {
			return u.Errorf("the parameter %q is not known; there are %s", name, strings.Join(known, ", "))
		}
		if len(values) != 1 {
			return u.Errorf("the parameter %q is given twice", name)
		}
	}
	return nil
}

// TLSParameters are the parameters that TLS reads.
var TLSParameters = []string{"ca", "cert", "key", "server_name"}

// TLS makes a configuration of TLSParameters. Without a ca, the system's authorities are trusted.
func (u *URL) TLS() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: u.Query.Get("server_name")}
	if file := u.Query.Get("ca"); file != "" {
		pem, err := os.ReadFile(file)
		if err != nil {
			return nil, u.Errorf("ca: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, u.Errorf("ca: %s holds no certificate in PEM", file)
		}
	}
	if cert, key := u.Query.Get("cert"), u.Query.Get("key"); cert != "" || key != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, u.Errorf("cert and key: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// ErrScheme says that a scheme is not known.
func ErrScheme(scheme string) error {
	return errors.New("the scheme " + strconv.Quote(scheme) + " is not known")
}
