package postgres

import (
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-rl/weir/internal/util/pgurl"
)

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

// target holds the contents of a URL.
type target struct {
	url    *pgurl.URL
	config *pgxpool.Config
	hosts  string // without credentials
	schema string
	tables tables
	// poolSize is true if the URL has a pool_max_conns.
	poolSize bool
}

// tables says which crashes the tables of states are to survive.
type tables int

// The values of weir_tables.
const (
	tablesAsTheyAre tables = iota // tables of a new schema are logged
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

// schemaForm is how a schema may be named: behind the prefix of its channel's name, it has the 63
// bytes at most that PostgreSQL takes.
var schemaForm = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z_][a-z0-9_]{0,57}$`) })

func parseURL(text string) (*target, error) {
	u, err := pgurl.Parse(text, func(name string) bool { return strings.HasPrefix(name, "weir_") })
	if err != nil {
		return nil, fmt.Errorf("postgres URL: %w", err)
	}
	for name := range u.Own {
		if name != paramSchema && name != paramTables {
			return nil, fmt.Errorf("postgres URL: the parameter %q is not known; of Weir's own there are %s and %s",
				name, paramSchema, paramTables)
		}
	}
	t := &target{url: u, schema: DefaultSchema}
	if s, ok := u.Own[paramSchema]; ok {
		if !schemaForm().MatchString(s) || strings.HasPrefix(s, "pg_") {
			return nil, fmt.Errorf(
				"postgres URL: %s %q is no name of a schema: write up to 58 lower-case letters, digits and _", paramSchema, s)
		}
		t.schema = s
	}
	if s, ok := u.Own[paramTables]; ok {
		if t.tables = tablesNames[s]; t.tables == tablesAsTheyAre {
			return nil, fmt.Errorf("postgres URL: %s is %q; it may be unlogged, logged or synced", paramTables, s)
		}
	}
	if t.config, err = pgxpool.ParseConfig(u.Text); err != nil {
		return nil, fmt.Errorf("postgres URL: %w", pgurl.Plain(err))
	}
	t.poolSize = strings.Contains(u.Text, "pool_max_conns=")
	c := t.config.ConnConfig
	t.hosts = strings.Join(pgurl.Hosts(c), ",") + "/" + c.Database
	u.Fill(c, connectTimeout)
	return t, nil
}
