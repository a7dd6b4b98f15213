package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/weir-rl/weir/internal/admin/audit"
	"github.com/weir-rl/weir/internal/admin/words"
	"github.com/weir-rl/weir/internal/util/human"
)

func newAuditCommand() *cobra.Command {
	var port adminClient
	var files []string
	var follows, noted string
	var n int
	var after uint64
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Who changed what on a running server, when and why; check an audit log",
		Long: `Lists who changed what on a running server, when and why, newest first.

With --verify it checks a file of the audit log (audit.path) instead, without a server: that each record has the hash of its text
and follows the one before it. Files that follow one another are given in their order. A chain that was cut at an end, or computed
anew, passes too. --follows is the hash with which it must begin: 64 zeros at the very beginning. --noted is the hash of a record
as it stands elsewhere, such as in the server's log: if a record has it, those up to it are as they were when it was noted.

Exit status with --verify: 0 if the chain holds, 1 if it is broken or no record has the noted hash, 2 if that could not be found
out.`,
		Example: "  weir audit\n  weir audit -n 500 --json\n  weir audit --verify weir-audit.jsonl\n  weir audit --verify weir-audit.jsonl.1 --verify weir-audit.jsonl",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(files) > 0 {
				return verifyAudit(cmd.OutOrStdout(), files, follows, noted, asJSON)
			}
			if follows != "" || noted != "" {
				return usageError(errors.New("--follows is for --verify, and so is --noted"))
			}
			if err := port.open(); err != nil {
				return err
			}
			q := url.Values{"n": {strconv.Itoa(n)}}
			if after > 0 {
				q.Set("after", strconv.FormatUint(after, 10))
			}
			var raw json.RawMessage
			if err := port.Do(cmd.Context(), http.MethodGet, "/api/v1/audit?"+q.Encode(), nil, &raw); err != nil {
				return err
			}
			if asJSON {
				_, err := cmd.OutOrStdout().Write(raw)
				return err
			}
			var answer struct {
				Records []audit.Entry
				Lost    uint64
			}
			if err := json.Unmarshal(raw, &answer); err != nil {
				return fmt.Errorf("%s answered with something else than audit records: %w", port.Name(), err)
			}
			if answer.Lost > 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "weir: warning: %s could not be written\n",
					human.Plural(int(answer.Lost), "record"))
			}
			return words.Audit(cmd.OutOrStdout(), answer.Records)
		},
	}
	port.flags(cmd, defaultAdmin)
	f := cmd.Flags()
	f.StringArrayVar(&files, "verify", nil, "check this file of an audit log instead; several in their order")
	f.StringVar(&follows, "follows", "",
		"with --verify: the hash with which the file before the first one ends (default: not checked)")
	f.StringVar(&noted, "noted", "",
		"with --verify: the hash of a record that was noted elsewhere (default: not checked)")
	f.IntVarP(&n, "number", "n", 100, "how many records at most")
	f.Uint64Var(&after, "after", 0, "only records with a higher number")
	jsonFlag(cmd, &asJSON)
	return cmd
}

// verified is the result for one file, as JSON.
type verified struct {
	File    string `json:"file"`
	Records uint64 `json:"records"`
	First   uint64 `json:"first"`
	Last    uint64 `json:"last"`
	Hash    string `json:"hash"`
	Upto    uint64 `json:"as_noted_to,omitempty"` // the record with the noted hash
	Broken  string `json:"broken,omitempty"`
}

// verifyAudit checks files of an audit log, each of which follows the one before it. One of them
// must have a record with the noted hash, unless that is "".
func verifyAudit(out io.Writer, files []string, follows, noted string, asJSON bool) error {
	found := noted == ""
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return blind(err)
		}
		s, err := audit.Verify(f, follows, noted)
		_ = f.Close() // it was only read
		broken, isBroken := errors.AsType[*audit.BrokenError](err)
		if err != nil && !isBroken {
			return blind(fmt.Errorf("%s: %w", name, err))
		}
		switch {
		case asJSON:
			v := verified{File: name, Records: s.Records, First: s.First, Last: s.Last, Hash: s.Hash, Upto: s.Upto}
			if isBroken {
				v.Broken = broken.Error()
			}
			raw, err := json.Marshal(v)
			if err != nil {
				return blind(err)
			}
			fmt.Fprintln(out, string(raw))
		case isBroken:
			fmt.Fprintf(out, "%s: BROKEN: %s\n", name, broken.Error())
			fmt.Fprintf(out, "before it %s as written\n", human.PluralIs(int(s.Records), "record"))
		case s.Records == 0:
			fmt.Fprintf(out, "%s: no records\n", name)
		default:
			fmt.Fprintf(out, "%s: %s, %d to %d, from %s to %s: each follows the one before it\n",
				name, human.Plural(int(s.Records), "record"), s.First, s.Last, words.Instant(s.From),
				words.Instant(s.To))
			if s.Upto > 0 {
				fmt.Fprintf(out, "up to %d none was altered, left out, put in or moved since that hash was noted\n",
					s.Upto)
			}
			fmt.Fprintf(out, "last hash %s\n", s.Hash)
		}
		if isBroken {
			return &exitError{code: exitFound}
		}
		follows, found = s.Hash, found || s.Upto > 0
	}
	if !found {
		if !asJSON {
			fmt.Fprintf(out, "BROKEN: no record has the hash %s\n", noted)
		}
		return &exitError{code: exitFound}
	}
	return nil
}
