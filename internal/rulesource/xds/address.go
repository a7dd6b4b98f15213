// Package xds reads rules from a control plane, as envoyproxy/ratelimit does: Envoy Gateway makes
// them of its policies, and serves them over xDS as RateLimitConfigs, one for each domain. Each of
// them becomes a rule file in the Lyft form.
//
// Begin with Parse and Follow. stream.go speaks the protocol, follow.go decides what of an answer
// is put in force, and text.go writes rule files of resources.
package xds

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/weir-rl/weir/internal/util/suggest"
)

// Require says what a start needs.
type Require string

// What a start may need.
const (
	RequireStart   Require = "start"   // rules, or it fails
	RequireReady   Require = "ready"   // nothing; but it is not ready before there are rules
	RequireNothing Require = "nothing" // nothing; it is ready, and no request is decided before there are rules
)

// Address says where rules come from. Make one with Parse.
type Address struct {
	Node    string        // the id under which the server holds the rules
	Require Require       // what a start needs
	Wait    time.Duration // how long a start waits for the first rules
	Cache   string        // file that keeps the rules in force; "" for none

	host       string // with the port
	secure     bool
	ca         string // files
	cert, key  string
	serverName string
	metadata   map[string]string
	maxMessage int // bytes
}

const (
	defaultWait = 5 * time.Second
	// defaultMaxMessage bounds one answer of the server, in MiB: 10,000 gateways are some 6 MB.
	defaultMaxMessage = 64
)

// IsURL reports whether a text names an xDS server rather than a folder.
func IsURL(s string) bool { return strings.HasPrefix(s, "xds://") || strings.HasPrefix(s, "xdss://") }

// parameters are what a URL may have behind the question mark, tlsParameters for xdss:// alone.
var (
	parameters    = []string{"node", "require", "wait", "cache", "max_message"}
	tlsParameters = []string{"ca", "cert", "key", "server_name"}
)

// Parse reads a URL: xdss://HOST:PORT?node=ID for TLS, or xds:// for plain text.
func Parse(s string) (*Address, error) {
	u, err := url.Parse(s)
	if err != nil {
		if e, ok := errors.AsType[*url.Error](err); ok {
			err = e.Err
		}
		return nil, fmt.Errorf("URL of the xDS server: %w", err)
	}
	a := &Address{Require: RequireStart, Wait: defaultWait, host: u.Host, secure: u.Scheme == "xdss",
		maxMessage: defaultMaxMessage << 20, metadata: map[string]string{}}
	if err := a.read(u); err != nil {
		return nil, fmt.Errorf("URL of the xDS server: %w", err)
	}
	return a, nil
}

func (a *Address) read(u *url.URL) error {
	if u.User != nil || u.Fragment != "" || u.Path != "" && u.Path != "/" {
		return errors.New("expected xdss://HOST:PORT?node=ID, or xds:// for plain text")
	}
	host, port, err := net.SplitHostPort(u.Host)
	if err != nil || host == "" || port == "" {
		return fmt.Errorf("%q: expected HOST:PORT", u.Host)
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return fmt.Errorf("its parameters cannot be read: %w", err)
	}
	for name, values := range query {
		if len(values) > 1 {
			return fmt.Errorf("%s is given twice", name)
		}
		if err := a.set(name, values[0]); err != nil {
			return err
		}
	}
	if a.Node == "" {
		return errors.New("node is missing: the id under which the server holds the rules, as in ?node=envoy-ratelimit")
	}
	if (a.cert == "") != (a.key == "") {
		return errors.New("cert and key belong together")
	}
	return nil
}

// set sets one parameter.
func (a *Address) set(name, value string) (err error) {
	if slices.Contains(tlsParameters, name) && !a.secure {
		return fmt.Errorf("%s is for TLS: begin with xdss://", name)
	}
	switch name {
	case "node":
		a.Node = value
	case "require":
		a.Require = Require(value)
		if !slices.Contains([]Require{RequireStart, RequireReady, RequireNothing}, a.Require) {
			return fmt.Errorf("require=%s must be %s, %s or %s", value, RequireStart, RequireReady, RequireNothing)
		}
	case "wait":
		if a.Wait, err = time.ParseDuration(value); err != nil || a.Wait < 0 {
			return fmt.Errorf("wait=%s is no duration, such as 5s", value)
		}
	case "cache":
		a.Cache = value
	case "max_message":
		n, err := strconv.Atoi(value)
		if err != nil || n < 1 || n > 1024 {
			return fmt.Errorf("max_message=%s must be a number of MiB, 1 to 1024", value)
		}
		a.maxMessage = n << 20
	case "ca":
		a.ca = value
	case "cert":
		a.cert = value
	case "key":
		a.key = value
	case "server_name":
		a.serverName = value
	default:
		if key, ok := strings.CutPrefix(name, "metadata."); ok && key != "" {
			a.metadata[key] = value
			return nil
		}
		known := append(slices.Clone(parameters), tlsParameters...)
		return fmt.Errorf("the parameter %s is not known%s; there are %s and metadata.NAME", name,
			suggest.DidYouMean(suggest.Nearest(name, known)), strings.Join(known, ", "))
	}
	return nil
}

// String names the server for people.
func (a *Address) String() string {
	scheme := "xds"
	if a.secure {
		scheme = "xdss"
	}
	return scheme + "://" + a.host + "?node=" + url.QueryEscape(a.Node)
}

// credentials read the certificates as they are by now.
func (a *Address) credentials() (credentials.TransportCredentials, error) {
	if !a.secure {
		return insecure.NewCredentials(), nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: a.serverName}
	if a.ca != "" {
		pem, err := os.ReadFile(a.ca)
		if err != nil {
			return nil, fmt.Errorf("ca: %w", err)
		}
		if c.RootCAs = x509.NewCertPool(); !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("ca: %s holds no certificate in PEM", a.ca)
		}
	}
	if a.cert != "" {
		pair, err := tls.LoadX509KeyPair(a.cert, a.key)
		if err != nil {
			return nil, fmt.Errorf("cert and key: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return credentials.NewTLS(c), nil
}
