// Package ruledb keeps rules in PostgreSQL: whole folders of rule files as numbered versions, and
// for each space, which is a name, the one of them that is in force (its head). A version never
// changes, a head moves by compare and swap alone, and each move leaves a record in a chain of
// hashes. Begin with Parse; DB (read.go, write.go) is for editors, Follower (follow.go) for nodes.
//
// The tables are in schema.sql, in a schema of their own. What may write them are functions there,
// so that the role of editors can push, and can change nothing that is there.
package ruledb

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-rl/weir/internal/util/pgurl"
)

// DefaultSpace is the space of a URL that names none.
const DefaultSpace = "default"

// connectPatience bounds the time for a connection to each host, unless the URL has a
// connect_timeout. A host that hangs must not keep the next one from being asked.
const connectPatience = 3 * time.Second

// Address says where rules lie. Make one with Parse.
type Address struct {
	Space  string
	url    *pgurl.URL
	config *pgx.ConnConfig
}

// IsURL reports whether a text names a database rather than a folder.
func IsURL(s string) bool { return pgurl.Is(s) }

var spaces = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`) })

// Parse reads a URL of libpq's form, postgres://USER@HOST,HOST/DATABASE?sslmode=verify-full, with
// the further parameter space. Missing settings come from the variables and files of libpq, such as
// PGPASSFILE and sslrootcert. Of several hosts the one that takes writes is used, unless the URL
// says otherwise. Errors do not show the password.
func Parse(s string) (*Address, error) {
	u, err := pgurl.Parse(s, func(name string) bool { return name == "space" })
	if err != nil {
		return nil, fmt.Errorf("URL of the database of rules: %w", err)
	}
	a := &Address{Space: DefaultSpace, url: u}
	if space, ok := u.Own["space"]; ok {
		if a.Space = space; !spaces().MatchString(a.Space) {
			return nil, fmt.Errorf(
				"space=%s must be 1 to 63 letters, digits, dots, dashes and underscores, and begin with a letter or a digit", a.Space)
		}
	}
	if a.config, err = pgx.ParseConfig(u.Text); err != nil {
		return nil, fmt.Errorf("URL of the database of rules: %w", pgurl.Plain(err))
	}
	u.Fill(a.config, connectPatience)
	// Prepared statements have names, which a pooler in transaction mode gives to others.
	a.config.DefaultQueryExecMode = pgx.QueryExecModeExec
	return a, nil
}

// String names the address for people, without a password.
func (a *Address) String() string {
	s := fmt.Sprintf("postgres://%s@%s/%s", a.config.User, strings.Join(pgurl.Hosts(a.config), ","), a.config.Database)
	if a.Space != DefaultSpace {
		s += "?space=" + a.Space
	}
	return s
}

// schemaVersion is the version of schema.sql.
const schemaVersion = 1

// channel is the channel on which each move of a head is announced, as "SPACE VERSION".
const channel = "weir_rules"

// ErrNotReady is the error of a database that was not prepared by DB.Init.
var ErrNotReady = errors.New("the database is not prepared for rules; run: weir rules init")

// ErrNoRules is the error of a space without a version.
var ErrNoRules = errors.New("the space holds no rules")

// connect opens a connection to a database that is prepared.
func (a *Address) connect(ctx context.Context) (*pgx.Conn, error) {
	c, err := a.dial(ctx)
	if err != nil {
		return nil, err
	}
	var schema int
	err = plain(c.QueryRow(ctx, "select schema from weir_rules.meta").Scan(&schema))
	if err == nil && schema != schemaVersion {
		err = fmt.Errorf("the tables of rules have the form %d, and this version of weir knows the form %d", schema,
			schemaVersion)
	}
	if err != nil {
		_ = c.Close(ctx)
		return nil, err
	}
	return c, nil
}

// dial opens a connection, with the password and the certificates as they are by now.
func (a *Address) dial(ctx context.Context) (*pgx.Conn, error) {
	c, err := a.url.Connect(ctx, a.config)
	if err != nil {
		return nil, fmt.Errorf("the database of rules cannot be reached: %w", plain(err))
	}
	return c, nil
}

// plain turns errors of the database into errors that a person can act on.
func plain(err error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return ErrNoRules
	}
	e, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return err
	}
	switch e.Code {
	case "42P01", "3F000", "42883": // no such table, schema, function
		return ErrNotReady
	case "42501": // privilege
		return fmt.Errorf("%s; grant the role weir_node to nodes, and weir_editor to those who push", e.Message)
	case "25006": // read only
		return fmt.Errorf(
			"%s; name all hosts in the URL, postgres://HOST,HOST/…, and the one that takes writes is used", e.Message)
	}
	return err
}
