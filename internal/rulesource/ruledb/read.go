package ruledb

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-rl/weir/internal/rulesource"
	"github.com/weir-rl/weir/internal/util/human"
)

// DB is a connection for an editor. Make one with Open; not safe for concurrent use.
type DB struct {
	address *Address
	c       *pgx.Conn
}

// Open connects to a database that Init has prepared.
func Open(ctx context.Context, a *Address) (*DB, error) {
	c, err := a.connect(ctx)
	if err != nil {
		return nil, err
	}
	return &DB{a, c}, nil
}

// Close ends the connection.
func (d *DB) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return d.c.Close(ctx)
}

const versionColumns = `v.number, coalesce(v.parent, 0), v.author, v.note, v.origin, v.made, v.digest, h.version is not null`

const fromVersions = ` from weir_rules.version v left join weir_rules.head h on h.space = v.space and h.version = v.number where v.space = $1`

// scan reads versionColumns, and then what more there is.
func scan(row pgx.Row, more ...any) (*Version, error) {
	v := new(Version)
	var digest []byte
	into := append([]any{&v.Number, &v.Parent, &v.Author, &v.Note, &v.Origin, &v.Made, &digest, &v.Head}, more...)
	if err := row.Scan(into...); err != nil {
		return nil, plain(err)
	}
	copy(v.Digest[:], digest)
	return v, nil
}

// Head returns the version in force, without its files. A space without one is ErrNoRules.
func (d *DB) Head(ctx context.Context) (*Version, error) {
	return scan(d.c.QueryRow(ctx, "select "+versionColumns+fromVersions+" and h.version is not null", d.address.Space))
}

// UnusableError is the error of a version that cannot be had, however often it is asked for: there
// is none of its number, or its files were pruned or are damaged.
type UnusableError struct{ What string }

func (e *UnusableError) Error() string { return e.What }

// Version returns a version with its files. If it cannot be had, the error is an UnusableError.
func (d *DB) Version(ctx context.Context, number int64) (*Version, error) {
	v, err := readVersion(ctx, d.c, d.address.Space, number)
	switch {
	case errors.Is(err, errDamaged):
		return nil, &UnusableError{err.Error()}
	case err != nil:
		return nil, err
	case v.Files == nil:
		return nil, &UnusableError{fmt.Sprintf("the files of version %d were pruned", number)}
	}
	return v, nil
}

// errDamaged is the error of files that are no folder of rules.
var errDamaged = errors.New("its files are damaged")

func readVersion(ctx context.Context, c *pgx.Conn, space string, number int64) (*Version, error) {
	var raw *string
	v, err := scan(c.QueryRow(ctx, "select "+versionColumns+", v.files::text"+fromVersions+" and v.number = $2", space,
		number), &raw)
	if err == ErrNoRules {
		return nil, &UnusableError{fmt.Sprintf("the space %s has no version %d", space, number)}
	}
	if err != nil || raw == nil {
		return v, err
	}
	if v.Files, err = decode([]byte(*raw)); err != nil {
		return nil, fmt.Errorf("version %d: %w: %w", number, errDamaged, err)
	}
	// A role that may push may give any digest. Nodes would cache a version that cannot start them.
	if rulesource.Digest(v.Files) != v.Digest {
		return nil, fmt.Errorf("version %d: %w: they are not those with which it was made", number, errDamaged)
	}
	return v, nil
}

// Versions returns the last versions, newest first, without their files.
func (d *DB) Versions(ctx context.Context, n int) ([]*Version, error) {
	rows, err := d.c.Query(ctx, "select "+versionColumns+fromVersions+" order by v.number desc limit $2",
		d.address.Space, int64(n))
	if err != nil {
		return nil, plain(err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (*Version, error) { return scan(row) })
}

// Node is a node's report on itself.
type Node struct {
	Name    string    `json:"node"`              // with its address, if another node has its name
	Version int64     `json:"version"`           // in force
	Refused int64     `json:"refused,omitempty"` // a version it cannot put in force; 0 for none
	Error   string    `json:"error,omitempty"`   // why
	Silent  bool      `json:"silent,omitempty"`  // no messages reach it: a pooler swallows them
	At      time.Time `json:"at"`                // when it said so
	Live    bool      `json:"live"`
}

// Nodes returns all nodes that were heard of in the last day, sorted by name.
func (d *DB) Nodes(ctx context.Context) ([]Node, error) {
	rows, err := d.c.Query(ctx, `select node, version, coalesce(refused, 0), error, silent, at, until > now() from weir_rules.node
		where space = $1 and at > now() - interval '1 day' order by node`, d.address.Space)
	if err != nil {
		return nil, plain(err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (n Node, err error) {
		err = row.Scan(&n.Name, &n.Version, &n.Refused, &n.Error, &n.Silent, &n.At, &n.Live)
		return n, err
	})
	return shown(list), plain(err)
}

// shown names nodes as people read them, and leaves out those that have started anew since: a node
// keeps its name and address then, and has another id.
func shown(list []Node) (out []Node) {
	label := func(n Node) string { return human.ParseNodeName(n.Name).Label() }
	live := map[string]bool{}
	for _, n := range list {
		live[label(n)] = live[label(n)] || n.Live
	}
	last := map[string]Node{} // by label, of those without a live one
	var names []string
	for _, n := range list {
		switch {
		case n.Live:
			out, names = append(out, n), append(names, n.Name)
		case !live[label(n)] && !n.At.Before(last[label(n)].At):
			last[label(n)] = n
		}
	}
	for _, n := range last {
		out, names = append(out, n), append(names, n.Name)
	}
	as := human.NewNodeNames(names)
	for i := range out {
		out[i].Name = as.Shown(out[i].Name)
	}
	slices.SortFunc(out, func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
	return out
}
