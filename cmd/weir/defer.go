package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-rl/weir/internal/door/proxy/deferred"
	"github.com/weir-rl/weir/internal/util/human"
)

func newDeferCommand() *cobra.Command {
	var admin adminClient
	cmd := &cobra.Command{
		Use:   "defer",
		Short: "The queue of deferred requests of a running server",
		Long: `The queue of requests that rules with on_limit: {defer: …} put off: list them, retry dead letters, drop what
nobody wants any more. A dead letter is a request that was given up, after several attempts or for its age.`,
		Example: "  weir defer ls\n  weir defer retry " + sampleJob + "\n  weir defer drop " + sampleJob,
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	admin.flags(cmd, defaultAdmin)

	var state string
	var n int
	var asJSON bool
	list := &cobra.Command{
		Use:     "ls",
		Short:   "List jobs: dead letters, or --state queued, active, done",
		Example: "  weir defer ls\n  weir defer ls --state queued -n 20",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := admin.open(); err != nil {
				return err
			}
			var answer struct {
				Waiting, Dead int
				Bytes         int64
				Jobs          []deferred.Ticket
			}
			q := url.Values{"state": {state}, "n": {strconv.Itoa(n)}}
			if err := admin.ask(cmd, asJSON, http.MethodGet, "/api/v1/deferred?"+q.Encode(), nil, &answer); err != nil || asJSON {
				return err
			}
			out := cmd.OutOrStdout()
			w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
			if len(answer.Jobs) > 0 {
				fmt.Fprintln(w, "ID\tQUEUE\tSTATE\tQUEUED\tATTEMPTS\tSTATUS\tERROR")
			}
			for _, t := range answer.Jobs {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\t%s\n", human.Printable(t.ID), human.Printable(t.Queue), t.State,
					t.Queued.UTC().Format(time.RFC3339), t.Attempts, numberOrDash(t.Status), human.Printable(t.Error))
			}
			if err := w.Flush(); err != nil {
				return err
			}
			fmt.Fprintf(out, "%d waiting (%s), %s\n", answer.Waiting, human.Plural(int(answer.Bytes), "byte"),
				human.Plural(answer.Dead, "dead letter"))
			return nil
		},
	}
	list.Flags().StringVar(&state, "state", string(deferred.Failed), "queued, active, done or failed")
	list.Flags().IntVarP(&n, "number", "n", 100, "how many at most, up to 1000")

	each := func(use, short, method, suffix string) *cobra.Command {
		cmd := &cobra.Command{
			Use: use + " ID…", Short: short, Args: cobra.MinimumNArgs(1), Example: "  weir defer " + use + " " + sampleJob,
			RunE: func(cmd *cobra.Command, ids []string) error {
				if err := admin.open(); err != nil {
					return err
				}
				done := jobsChanged{Jobs: []string{}}
				for _, id := range ids {
					if !deferred.ValidID(id) {
						return usageError(fmt.Errorf("%q is no ID of a job; weir defer ls lists them", id))
					}
					if err := admin.Do(cmd.Context(), method, "/api/v1/deferred/"+id+suffix, nil, nil); err != nil {
						done.Error = fmt.Sprintf("%s: %v", id, err)
						break
					}
					done.Jobs = append(done.Jobs, id)
				}
				var err error
				if asJSON {
					err = printJSON(cmd.OutOrStdout(), done)
				}
				if done.Error != "" {
					err = errors.New(done.Error)
				}
				return err
			},
		}
		jsonFlag(cmd, &asJSON)
		return cmd
	}
	jsonFlag(list, &asJSON)
	cmd.AddCommand(list,
		each("retry", "Put dead letters back at the end of their lines", http.MethodPost, "/retry"),
		each("drop", "Forget jobs that are not being forwarded", http.MethodDelete, ""))
	return cmd
}

// jobsChanged is the output of weir defer retry and drop as JSON.
type jobsChanged struct {
	Jobs  []string `json:"jobs"`            // that were changed
	Error string   `json:"error,omitempty"` // why the next one was not
}

// sampleJob is an ID of a job, for help texts.
const sampleJob = "6f1d3f0c9a2b4e5d8c7b6a5f4e3d2c1b"

func numberOrDash(n int) string {
	if n == 0 {
		return "-"
	}
	return strconv.Itoa(n)
}
