package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-rl/weir/internal/admin/client"
	"github.com/weir-rl/weir/internal/admin/words"
	"github.com/weir-rl/weir/internal/observe/recent"
	"github.com/weir-rl/weir/internal/util/human"
)

func newTailCommand() *cobra.Command {
	t := new(tail)
	cmd := &cobra.Command{
		Use:   "tail",
		Short: "Print the decisions of a running server as they are made, a line each",
		Long: `Prints the decisions of a running server, and of the nodes that share its Redis, as they are made, a line each: time, outcome,
request, key, limit, and when the request would have passed. It ends with Ctrl+C or SIGTERM, or when nobody reads its output
any more, and all of that with status 0. When the server goes away it says so on the standard error, and tries on until it is
back.

A server shows at most 50 decisions a second, and remembers not all that it admitted: which share is shown is told on the
standard error. The decision log (decisions.log) has them all.`,
		Example: "  weir tail\n  weir tail --limit login --outcome denied\n  weir tail --key user=ada --json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if t.outcome != "" && !slices.Contains(recent.Outcomes, t.outcome) {
				return usageError(fmt.Errorf("--outcome %q: expected one of %s", t.outcome,
					strings.Join(recent.Outcomes, ", ")))
			}
			if err := t.admin.open(); err != nil {
				return err
			}
			// A reader that went away is an error of writing, and no signal.
			signal.Ignore(syscall.SIGPIPE)
			return t.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	t.admin.flags(cmd, defaultAdmin)
	f := cmd.Flags()
	f.StringVar(&t.domain, "domain", "", "only decisions of this domain")
	f.StringVar(&t.limit, "limit", "", "only decisions that met this limit")
	f.StringVar(&t.outcome, "outcome", "", "only decisions with this outcome: "+strings.Join(recent.Outcomes, ", "))
	f.StringVar(&t.key, "key", "",
		"only decisions of this key, such as user=ada (--cert-key names the file of a private key)")
	f.StringVar(&t.node, "node", "", "only decisions of this node, as the page and /api/v1/nodes name them")
	f.BoolVar(&t.json, "json", false, "print each decision as JSON")
	completeFlag(cmd, "outcome", recent.Outcomes)
	return cmd
}

// tail prints decisions as they come.
type tail struct {
	admin                             adminClient
	domain, limit, outcome, key, node string
	json                              bool

	out, errs io.Writer
	lastID    string
	shown     string // the share that was printed last
	reached   bool   // there was a stream
	away      bool   // the server is away, and that was printed
	ended     error  // the server has ended the stream: it may be had again, or the server is away
}

// path is the path and query of the stream.
func (t *tail) path() string {
	q := url.Values{"views": {"decisions"}, "nodes": {"all"}}
	for name, value := range map[string]string{"domain": t.domain, "limit": t.limit, "outcome": t.outcome, "key": t.key,
		"node": t.node} {
		if value != "" {
			q.Set(name, value)
		}
	}
	return "/api/v1/stream?" + q.Encode()
}

// run prints until ctx ends or nobody reads.
func (t *tail) run(ctx context.Context, out, errs io.Writer) error {
	t.out, t.errs = out, errs
	for {
		err := t.admin.Follow(ctx, t.path(), t.lastID, t.opened, t.event)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrClosedPipe) || errors.Is(err, os.ErrClosed):
			return nil
		case errors.Is(err, client.ErrStopped):
			return err
		}
		if _, refused := errors.AsType[client.RefusedError](err); refused || !t.reached {
			return err
		}
		switch {
		case t.away:
		case t.ended == nil && errors.Is(err, client.ErrEnded):
			t.ended = err // it may be had again, or the server says why not
		default:
			t.away = true
			fmt.Fprintf(t.errs, "weir: %s is away, trying on: %s\n", t.admin.Name(),
				human.Printable(cmp.Or(t.ended, err).Error()))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
	}
}

// opened notes that there is a stream.
func (t *tail) opened() {
	if t.reached, t.ended = true, nil; t.away {
		t.away = false
		fmt.Fprintf(t.errs, "weir: %s is back\n", t.admin.Name())
	}
}

// event prints the decisions of one event.
func (t *tail) event(e client.Event) error {
	if e.ID != "" {
		t.lastID = e.ID
	}
	switch e.Name {
	case "decisions":
	case "problem":
		var problem struct{ Detail string }
		if err := json.Unmarshal(e.Data, &problem); err != nil {
			return err
		}
		fmt.Fprintf(t.errs, "weir: %s\n", human.Printable(problem.Detail))
		return nil
	default:
		return nil
	}
	var event struct {
		Decisions []json.RawMessage
		Shown     string
		LeftOut   int `json:"left_out"`
	}
	if err := json.Unmarshal(e.Data, &event); err != nil {
		return err
	}
	if event.Shown != "" && event.Shown != t.shown {
		t.shown = event.Shown
		text := t.shown + " of the remembered decisions are shown"
		if t.shown == "all" {
			text = "all remembered decisions are shown"
		}
		fmt.Fprintf(t.errs, "weir: %s\n", human.Printable(text))
	}
	for _, raw := range event.Decisions {
		var d recent.Entry
		if err := json.Unmarshal(raw, &d); err != nil {
			return err
		}
		line := words.DecisionLine(&d)
		if t.json {
			line = string(raw)
		}
		if _, err := fmt.Fprintln(t.out, line); err != nil {
			return err
		}
	}
	return nil
}

// The statuses of commands that judge, as in grep: they found something, or they could not look.
const (
	exitFound = 1
	exitBlind = 2
)

// blind is the error of a command that judges and could not.
func blind(err error) error { return &exitError{code: exitBlind, err: err} }
