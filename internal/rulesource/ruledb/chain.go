package ruledb

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-rl/weir/internal/util/hashchain"
)

// Record is one of the audit.
type Record struct {
	Number int64     `json:"number"` // 1, 2, 3, …
	At     time.Time `json:"at"`
	Who    string    `json:"who"`   // as the editor said
	Login  string    `json:"login"` // the user of the database
	What   string    `json:"what"`
	Before int64     `json:"before,omitempty"` // version in force; 0 for none
	After  int64     `json:"after,omitempty"`
	Note   string    `json:"note,omitempty"`
	Hash   string    `json:"hash"`

	digest []byte // of the files of After
}

// History returns records, newest first: at most n of those before the number before, unless that
// is 0.
func (d *DB) History(ctx context.Context, n int, before int64) ([]Record, error) {
	return d.records(ctx, "and ($2 = 0 or number < $2) order by number desc limit $3", before, int64(n))
}

func (d *DB) records(ctx context.Context, where string, args ...any) ([]Record, error) {
	rows, err := d.c.Query(ctx, `select number, at, who, login, what, coalesce(before, 0), coalesce(after, 0), note, digest, hash
		from weir_rules.audit where space = $1 `+where, append([]any{d.address.Space}, args...)...)
	if err != nil {
		return nil, plain(err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (r Record, err error) {
		var hash []byte
		err = row.Scan(&r.Number, &r.At, &r.Who, &r.Login, &r.What, &r.Before, &r.After, &r.Note, &r.digest, &hash)
		r.At, r.Hash = r.At.UTC(), hex.EncodeToString(hash)
		return r, err
	})
	return list, plain(err)
}

// sum is the hash of a record behind one with the hash before. schema.sql computes the same.
func (r *Record) sum(space, before string) (string, error) {
	text, err := hex.DecodeString(before)
	if err != nil {
		return "", err
	}
	sized := func(s string) { text = fmt.Appendf(text, "%d:%s,", len(s), s) }
	optional := func(s string, there bool) {
		if there {
			sized(s)
		} else {
			text = append(text, "-,"...)
		}
	}
	sized(space)
	sized(strconv.FormatInt(r.Number, 10))
	sized(strconv.FormatInt(r.At.UnixMicro(), 10))
	sized(r.Who)
	sized(r.Login)
	sized(r.What)
	optional(strconv.FormatInt(r.Before, 10), r.Before != 0)
	optional(strconv.FormatInt(r.After, 10), r.After != 0)
	sized(r.Note)
	optional(hex.EncodeToString(r.digest), r.digest != nil)
	return hashchain.Sum(text), nil
}

// BrokenError says where a history is not as it was written.
type BrokenError struct{ What string }

func (e *BrokenError) Error() string { return e.What }

// Checked is what Check has found.
type Checked struct {
	Records, Versions int64
	Pruned            int64  // versions whose files are gone
	Hash              string // of the last record
	// Upto is the number of the record with the noted hash: the records up to it are as they were
	// when that was noted. It is 0 if no record has that hash.
	Upto int64
}

// checkStep is how many records are read at a time.
const checkStep = 1000

// Check reads the whole history of the space and recomputes it here, without trusting the database:
// the records are numbered from 1, each has the hash of its text and of the record before it, and
// each version, with its files, is the one that its record describes. The error is a BrokenError if
// that does not hold. noted is the Hash of a record as it was noted elsewhere; "" is none. Without
// it, a history whose end was cut off passes, and so does one that was computed anew.
func (d *DB) Check(ctx context.Context, noted string) (c Checked, err error) {
	// All of it is as it was at one instant: otherwise a version pushed meanwhile would seem to
	// lack a record.
	err = pgx.BeginTxFunc(ctx, d.c, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly},
		func(pgx.Tx) error {
			c, err = d.check(ctx, noted)
			return err
		})
	return c, plain(err)
}

func (d *DB) check(ctx context.Context, noted string) (c Checked, err error) {
	chain, head := hashchain.Chain{Hash: hashchain.Start, Noted: noted}, int64(0)
	made := map[int64]*Record{} // by the version that each made
	for {
		list, err := d.records(ctx, "and number > $2 order by number limit $3", c.Records, int64(checkStep))
		if err != nil {
			return c, err
		}
		for i := range list {
			r := &list[i]
			sum, err := r.sum(d.address.Space, chain.Hash)
			if err != nil {
				return c, err
			}
			if err := chain.Follow(uint64(r.Number), chain.Hash, r.Hash); err != nil {
				return c, &BrokenError{fmt.Sprintf("record %d is missing", c.Records+1)}
			}
			if sum != r.Hash {
				return c, &BrokenError{fmt.Sprintf("record %d was altered, or one before it left out or put in",
					r.Number)}
			}
			if r.digest != nil {
				made[r.After] = r
			}
			head, c.Records, c.Hash, c.Upto = r.After, r.Number, r.Hash, int64(chain.Upto)
		}
		if len(list) < checkStep {
			break
		}
	}
	return c, d.checkVersions(ctx, &c, made, head)
}

func (d *DB) checkVersions(ctx context.Context, c *Checked, made map[int64]*Record, head int64) error {
	versions, err := d.Versions(ctx, 1<<30)
	if err != nil {
		return err
	}
	present := int64(0)
	for _, v := range versions {
		r := made[v.Number]
		switch {
		case r == nil:
			return &BrokenError{fmt.Sprintf("version %d is there, and no record tells who made it", v.Number)}
		case !bytes.Equal(r.digest, v.Digest[:]) || r.Who != v.Author || r.Note != v.Note || r.Before != v.Parent:
			return &BrokenError{fmt.Sprintf("version %d is not the one that record %d tells of", v.Number, r.Number)}
		}
		if v.Head {
			present = v.Number
		}
		whole, err := readVersion(ctx, d.c, d.address.Space, v.Number)
		switch {
		case errors.Is(err, errDamaged):
			return &BrokenError{fmt.Sprintf("the files of version %d were altered", v.Number)}
		case err != nil:
			return err
		case whole.Files == nil:
			c.Pruned++
		}
		c.Versions++
		delete(made, v.Number)
	}
	for n, r := range made {
		return &BrokenError{fmt.Sprintf("version %d, which record %d tells of, is gone", n, r.Number)}
	}
	if present != head {
		return &BrokenError{fmt.Sprintf("version %d is in force, and by the records it should be %d", present, head)}
	}
	return nil
}
