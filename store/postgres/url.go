package postgres

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// urlForms is what a message shows.
const urlForms = "write postgres://USER:PASSWORD@HOST:PORT/DATABASE?sslmode=verify-full"

// Parameters of the URL that are Weir's own.
const (
	paramSchema = "weir_schema"
	paramTables = "weir_tables"
)

// DefaultSchema is the schema of the store's tables if the URL names none.
const DefaultSchema = "weir"

// connectTimeout is how long a host may take to accept a connection, if the URL has no
// connect_timeout: the next host is tried then.
const connectTimeout = 2 * time.Second

// target is what a URL says.
type target struct {
	text   string // the URL without Weir's own parameters
	config *pgxpool.Config
	hosts  string // without credentials
	schema string
	tables tables
	// poolSize is true if the URL has a pool_max_conns.
	poolSize bool
}

// tables says what the tables of states are to survive.
type tables int

// The values of weir_tables.
const (
	tablesAsTheyAre tables = iota // those of a new schema are logged
	tablesUnlogged
	tablesLogged
	tablesSynced
)

var tablesNames = map[string]tables{"unlogged": tablesUnlogged, "logged": tablesLogged, "synced": tablesSynced}

// CheckURL reports whether text is a URL that Open takes. Its error holds no credentials.
func CheckURL(text string) error {
	_, err := parseURL(text)
	return err
}

// IsURL reports whether text is meant to be the URL of a PostgreSQL.
func IsURL(text string) bool {
	return strings.HasPrefix(text, "postgres://") || strings.HasPrefix(text, "postgresql://")
}

// schemaForm is how a schema may be named: with what the name of its channel begins with, it has
// the 63 bytes at most that PostgreSQL takes.
var schemaForm = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z_][a-z0-9_]{0,57}$`) })

func parseURL(text string) (*target, error) {
	if !IsURL(text) {
		return nil, errors.New("postgres URL: the scheme is not postgres; " + urlForms)
	}
	text, own, err := cutOwn(text)
	if err != nil {
		return nil, err
	}
	front, _, _ := strings.Cut(text, "?")
	_, front, _ = strings.Cut(front, "://")
	if _, path, _ := strings.Cut(front, "/"); strings.Contains(path, "@") {
		// A part of the password would be taken for the database, and shown with it.
		return nil, errors.New("postgres URL: there is an @ behind the hosts; percent-encode what is not a letter or a digit in the user and the password")
	}
	t := &target{text: text, schema: DefaultSchema}
	if s, ok := own[paramSchema]; ok {
		if !schemaForm().MatchString(s) || strings.HasPrefix(s, "pg_") {
			return nil, fmt.Errorf("postgres URL: %s %q is no name of a schema: write up to 58 lower-case letters, digits and _", paramSchema, s)
		}
		t.schema = s
	}
	if s, ok := own[paramTables]; ok {
		if t.tables = tablesNames[s]; t.tables == tablesAsTheyAre {
			return nil, fmt.Errorf("postgres URL: %s is %q; it may be unlogged, logged or synced", paramTables, s)
		}
	}
	if t.config, err = pgxpool.ParseConfig(text); err != nil {
		return nil, fmt.Errorf("postgres URL: %w", withoutCredentials(err))
	}
	t.poolSize = strings.Contains(text, "pool_max_conns=")
	c := t.config.ConnConfig
	hosts := []string{fmt.Sprint(c.Host, ":", c.Port)}
	for _, f := range c.Fallbacks {
		if h := fmt.Sprint(f.Host, ":", f.Port); h != hosts[len(hosts)-1] {
			hosts = append(hosts, h)
		}
	}
	t.hosts = strings.Join(hosts, ",") + "/" + c.Database
	if len(hosts) > 1 && c.ValidateConnect == nil {
		// Of several, only one takes writes.
		c.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = connectTimeout
	}
	if _, set := c.RuntimeParams["application_name"]; !set {
		c.RuntimeParams["application_name"] = "weir"
	}
	return t, nil
}

// cutOwn takes Weir's own parameters out of a URL. net/url takes one host, so only what follows the
// hosts is read by it.
func cutOwn(text string) (rest string, own map[string]string, err error) {
	own = map[string]string{}
	before, query, ok := strings.Cut(text, "?")
	if !ok {
		return text, own, nil
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return "", nil, errors.New("postgres URL: what follows the ? cannot be read; percent-encode what is not a letter or a digit")
	}
	for name, all := range values {
		if !strings.HasPrefix(name, "weir_") {
			continue
		}
		if name != paramSchema && name != paramTables {
			return "", nil, fmt.Errorf("postgres URL: the parameter %q is not known; of Weir's own there are %s and %s", name, paramSchema, paramTables)
		}
		if len(all) != 1 {
			return "", nil, fmt.Errorf("postgres URL: the parameter %q is given twice", name)
		}
		own[name] = all[0]
		values.Del(name)
	}
	if len(own) == 0 {
		return text, own, nil
	}
	if len(values) == 0 {
		return before, own, nil
	}
	return before + "?" + values.Encode(), own, nil
}

// withoutCredentials returns what pgx says of a URL that it cannot read, without the URL, which it
// shows with its password masked where it finds one.
func withoutCredentials(err error) error {
	var parse *pgconn.ParseConfigError
	if !errors.As(err, &parse) {
		return errors.New("it cannot be read; " + urlForms)
	}
	if inner := parse.Unwrap(); inner != nil {
		var u *url.Error
		if errors.As(inner, &u) {
			return errors.New("it cannot be read; percent-encode what is not a letter or a digit in the user and the password; " + urlForms)
		}
		return inner
	}
	return errors.New("it cannot be read; " + urlForms)
}
