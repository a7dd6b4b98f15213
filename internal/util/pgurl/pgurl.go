// Package pgurl reads the PostgreSQL URLs that Weir is given. They are libpq's, as pgx reads them,
// with further parameters of Weir's own. No error shows a password. Begin with Parse.
package pgurl

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// form is the form that a message shows.
const form = "write postgres://USER:PASSWORD@HOST:PORT/DATABASE?sslmode=verify-full"

// URL is one that was read. It is safe for concurrent use.
type URL struct {
	// Own are Weir's own parameters, by name. Do not change it.
	Own map[string]string
	// Text is the URL without them, for pgx.
	Text     string
	sessions bool // it says which servers will do
}

// Is reports whether text is meant to be the URL of a PostgreSQL.
func Is(text string) bool {
	return strings.HasPrefix(text, "postgres://") || strings.HasPrefix(text, "postgresql://")
}

// Parse takes the parameters for which own reports true out of a URL. It leaves the rest to pgx,
// but refuses URLs that pgx would misread.
func Parse(text string, own func(name string) bool) (*URL, error) {
	if !Is(text) {
		return nil, errors.New("the scheme is not postgres; " + form)
	}
	// net/url takes one host, so only what follows the hosts is read by it.
	front, query, _ := strings.Cut(text, "?")
	if _, path, _ := strings.Cut(strings.SplitN(front, "://", 2)[1], "/"); strings.Contains(path, "@") {
		// A part of the password would be taken for the database, and shown with it.
		return nil, errors.New(
			"there is an @ behind the hosts; percent-encode what is not a letter or a digit in the user and the password")
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return nil, errors.New("what follows the ? cannot be read; percent-encode what is not a letter or a digit")
	}
	u := &URL{Own: map[string]string{}, Text: text, sessions: values.Has("target_session_attrs")}
	for name, all := range values {
		if !own(name) {
			continue
		}
		if len(all) != 1 {
			return nil, fmt.Errorf("the parameter %q is given twice", name)
		}
		u.Own[name] = all[0]
		values.Del(name)
	}
	if len(u.Own) == 0 {
		return u, nil
	}
	if u.Text = front; len(values) > 0 {
		u.Text += "?" + values.Encode()
	}
	return u, nil
}

// Fill sets defaults in the configuration that pgx read from the URL: how long a host may take to
// accept a connection before the next one is asked, to use the host that takes writes if there are
// several, and the name of the application. It also sets how texts are written, for which a
// database or a role may have other defaults: pgx writes UTF-8, and quotes as the SQL standard
// says. Poolers know these two settings.
func (u *URL) Fill(c *pgx.ConnConfig, patience time.Duration) {
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = patience
	}
	if len(Hosts(c)) > 1 && !u.sessions && c.ValidateConnect == nil { // the environment may say it
		c.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	if c.RuntimeParams["application_name"] == "" {
		c.RuntimeParams["application_name"] = "weir"
	}
	c.RuntimeParams["client_encoding"], c.RuntimeParams["standard_conforming_strings"] = "UTF8", "on"
}

// Renew reads the credentials of a connection anew: the password, which may be in a file, and the
// certificates may have been replaced.
func (u *URL) Renew(c *pgx.ConnConfig) error {
	now, err := pgx.ParseConfig(u.Text)
	if err != nil {
		return Plain(err)
	}
	c.Password, c.TLSConfig, c.Fallbacks = now.Password, now.TLSConfig, now.Fallbacks
	return nil
}

// Connect opens a connection with the present credentials.
func (u *URL) Connect(ctx context.Context, c *pgx.ConnConfig) (*pgx.Conn, error) {
	c = c.Copy()
	if err := u.Renew(c); err != nil {
		return nil, err
	}
	return pgx.ConnectConfig(ctx, c)
}

// Hosts returns the hosts of a URL, with their ports.
func Hosts(c *pgx.ConnConfig) []string {
	hosts := []string{fmt.Sprint(c.Host, ":", c.Port)}
	for _, f := range c.Fallbacks { // twice with sslmode=prefer, once without TLS
		if h := fmt.Sprint(f.Host, ":", f.Port); h != hosts[len(hosts)-1] {
			hosts = append(hosts, h)
		}
	}
	return hosts
}

// Plain returns what pgx says of a URL that it cannot read, without the URL, which it shows with
// its password masked where it finds one.
func Plain(err error) error {
	var parse *pgconn.ParseConfigError
	if !errors.As(err, &parse) {
		return errors.New("it cannot be read; " + form)
	}
	inner := parse.Unwrap()
	var u *url.Error
	switch {
	case errors.As(inner, &u):
		return errors.New(
			"it cannot be read; percent-encode what is not a letter or a digit in the user and the password; " + form)
	case inner != nil:
		return inner
	}
	return errors.New("it cannot be read; " + form)
}
