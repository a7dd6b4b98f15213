package redis

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

// target is what a URL says.
type target struct {
	addresses                      []string
	cluster                        bool
	master                         string // of Sentinel
	user, password                 string
	sentinelUser, sentinelPassword string
	database                       int
	tls                            *tls.Config
}

// String names the servers, without credentials.
func (t *target) String() string {
	s := strings.Join(t.addresses, ",")
	if t.master != "" {
		s += ", master " + t.master
	}
	return s
}

// urlForms is what a message shows.
const urlForms = "write redis://HOST:PORT/DATABASE, redis+sentinel://HOST:PORT,HOST:PORT/MASTER, or redis+cluster://HOST:PORT,HOST:PORT (rediss… for TLS)"

var urlParameters = []string{"ca", "cert", "key", "server_name", "sentinel_user", "sentinel_password"}

// CheckURL reports whether text is a URL that Open takes. Its error holds no credentials.
func CheckURL(text string) error {
	_, err := parseURL(text)
	return err
}

func parseURL(text string) (*target, error) {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok {
		return nil, errors.New("redis URL: there is no scheme; " + urlForms)
	}
	t := &target{}
	base, form, _ := strings.Cut(scheme, "+")
	switch form {
	case "":
	case "cluster":
		t.cluster = true
	case "sentinel":
	default:
		return nil, fmt.Errorf("redis URL: the scheme %q is not known; %s", scheme, urlForms)
	}
	secure := base == "rediss"
	if !secure && base != "redis" {
		return nil, fmt.Errorf("redis URL: the scheme %q is not known; %s", scheme, urlForms)
	}
	// net/url takes one host, so the list of them is read apart; the errors of url.Parse would
	// quote the password.
	end := strings.IndexAny(rest, "/?#")
	if end >= 0 && strings.Contains(rest[end:], "@") {
		return nil, errors.New("redis URL: there is an @ behind the hosts; percent-encode what is not a letter or a digit in the user and the password")
	}
	if end < 0 {
		end = len(rest)
	}
	authority, tail := rest[:end], rest[end:]
	hosts := authority
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		hosts = authority[at+1:]
		u, err := url.Parse("redis://" + authority[:at] + "@h")
		if err != nil {
			return nil, errors.New("redis URL: the user and password cannot be read; percent-encode what is not a letter or a digit")
		}
		t.user = u.User.Username()
		t.password, _ = u.User.Password()
	}
	defaultPort := "6379"
	if form == "sentinel" {
		defaultPort = "26379"
	}
	for host := range strings.SplitSeq(hosts, ",") {
		address, err := hostPort(host, defaultPort)
		if err != nil {
			return nil, err
		}
		t.addresses = append(t.addresses, address)
	}
	if form == "" && len(t.addresses) > 1 {
		return nil, errors.New("redis URL: there are several hosts; write redis+cluster:// or redis+sentinel://")
	}
	u, err := url.Parse("redis://h" + tail)
	if err != nil || u.Fragment != "" {
		return nil, errors.New("redis URL: what follows the hosts cannot be read; " + urlForms)
	}
	if err := t.readPath(form, strings.Trim(u.Path, "/")); err != nil {
		return nil, err
	}
	return t, t.readParameters(u.Query(), secure)
}

func hostPort(text, port string) (string, error) {
	if text == "" {
		return "", errors.New("redis URL: a host is missing; " + urlForms)
	}
	host := text
	if h, p, err := net.SplitHostPort(text); err == nil {
		host, port = h, p
	} else if strings.Count(text, ":") == 1 || strings.HasSuffix(text, "]:") {
		return "", fmt.Errorf("redis URL: %q is no HOST:PORT", text)
	}
	host = strings.Trim(host, "[]")
	if _, err := netip.ParseAddr(host); err != nil && strings.Contains(host, ":") {
		return "", fmt.Errorf("redis URL: %q is no HOST:PORT", text)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || host == "" || strings.ContainsAny(host, " \t\r\n") {
		return "", fmt.Errorf("redis URL: %q is no HOST:PORT", text)
	}
	return net.JoinHostPort(host, port), nil
}

func (t *target) readPath(form, path string) error {
	database := path
	if form == "sentinel" {
		t.master, database, _ = strings.Cut(path, "/")
		if t.master == "" {
			return errors.New("redis URL: the name of the master is missing, as in redis+sentinel://HOST:PORT/mymaster")
		}
	}
	if database == "" {
		return nil
	}
	n, err := strconv.ParseUint(database, 10, 31)
	if err != nil {
		return fmt.Errorf("redis URL: the database %q is no number", database)
	}
	if t.cluster && n != 0 {
		return errors.New("redis URL: a Cluster has the database 0 only")
	}
	t.database = int(n)
	return nil
}

func (t *target) readParameters(q url.Values, secure bool) error {
	for name, values := range q {
		if !slices.Contains(urlParameters, name) {
			return fmt.Errorf("redis URL: the parameter %q is not known; there are %s", name, strings.Join(urlParameters, ", "))
		}
		if len(values) != 1 {
			return fmt.Errorf("redis URL: the parameter %q is given twice", name)
		}
	}
	t.sentinelUser, t.sentinelPassword = q.Get("sentinel_user"), q.Get("sentinel_password")
	if !secure {
		for _, name := range urlParameters[:4] {
			if q.Has(name) {
				return fmt.Errorf("redis URL: %q is for TLS; write rediss:// in place of redis://", name)
			}
		}
		return nil
	}
	t.tls = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: q.Get("server_name")}
	if file := q.Get("ca"); file != "" {
		pem, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("redis URL: ca: %w", err)
		}
		t.tls.RootCAs = x509.NewCertPool()
		if !t.tls.RootCAs.AppendCertsFromPEM(pem) {
			return fmt.Errorf("redis URL: ca: %s holds no certificate in PEM", file)
		}
	}
	if cert, key := q.Get("cert"), q.Get("key"); cert != "" || key != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return fmt.Errorf("redis URL: cert and key: %w", err)
		}
		t.tls.Certificates = []tls.Certificate{pair}
	}
	return nil
}
