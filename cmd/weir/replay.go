package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/weir-rl/weir/internal/lab/accesslog"
	"github.com/weir-rl/weir/internal/lab/report"
	"github.com/weir-rl/weir/internal/lab/sim"
	"github.com/weir-rl/weir/internal/util/human"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
)

type replayOptions struct {
	rules, domain, compare, format, html string
	fields, trusted                      []string
	reorder                              time.Duration
	suggest, json, markdown              bool
	ipv6Prefix                           int
}

func newReplayCommand() *cobra.Command {
	var o replayOptions
	cmd := &cobra.Command{
		Use:   "replay --rules DIR LOG…",
		Short: "Backtest rules on real access logs",
		Long: `Runs access logs through the rules in virtual time, and tells what would have been refused: by which limit, for which
clients, and when. Logs may be plain, gzipped or zstd-compressed; "-" is standard input. Several logs are merged in
order of time. Memory does not grow with the log.

The format is found out: common, combined and vhost_combined of Apache and nginx, JSON lines, CSV, TSV, w3c (IIS,
CloudFront), and what Envoy, Istio, HAProxy and the balancers of AWS (alb, elb) write, also behind the prefix of syslog
or of a container, or in a collector's JSON. Any other one is given as the server's own configuration has it:
  --format '$remote_addr - $remote_user [$time_local] "$request" $status "$http_x_forwarded_for"'
  --format '%v:%p %h %l %u %t "%r" %>s %b'
The client is the peer of the connection. Of the proxies in --trusted-proxies, their word in X-Forwarded-For counts.

--fields names the columns of CSV and TSV in order, or takes fields from JSON keys, named or numbered columns:
  --fields time,ip,method,path        --fields time=ts,ip=client.address,path=uri        --fields time=1,ip=4
Of each rule it says whether it does its job: too strict, too loose (it lets a rush through in which 5 % of the answers
of the log are 5xx), never met, never near, or good, and what to do.
--suggest proposes limits, for clients, users and single routes, from what ordinary ones ask for, and says what each
would refuse. It reads the log three times, and works without --rules too.`,
		Example: `  weir replay --rules rules/ access.log
  weir replay --rules rules/ --html report.html /var/log/nginx/access.log*
  weir replay --rules rules/ --trusted-proxies 10.0.0.0/8 access.log
  zcat access.log.gz | weir replay --rules rules/ --compare drafts/ --json -
  weir replay --rules main/rules --compare rules/ --markdown access.log > comment.md
  weir replay --suggest access.log > rules/suggested.yaml`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return replay(cmd.Context(), o, args, cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.rules, "rules", "", "folder or file of rules, or URL of a database that holds some")
	f.StringVar(&o.domain, "domain", "", "domain of the requests (default: the only one that the rules hold)")
	f.StringVar(&o.compare, "compare", "", "a second folder, file or database of rules, to set beside the first")
	f.StringVar(&o.format, "format", "",
		"format of the logs: a name, or as the configuration of nginx, Apache, Envoy or HAProxy has it (default: found out)")
	f.StringSliceVar(&o.fields, "fields", nil, "names of the columns, or field=key")
	f.StringSliceVar(&o.trusted, "trusted-proxies", nil,
		"proxies whose word for the client is believed, in X-Forwarded-For: addresses, networks, private, loopback; unix: peers of unix sockets")
	f.DurationVar(&o.reorder, "reorder", 15*time.Minute, "how far out of order lines may be")
	f.StringVar(&o.html, "html", "", "write a page with charts to this file")
	f.BoolVar(&o.suggest, "suggest", false, "propose limits from the traffic")
	f.BoolVar(&o.json, "json", false, "print the report as JSON")
	f.BoolVar(&o.markdown, "markdown", false,
		"print a comment for a pull request, in Markdown, without clients, keys and paths; with --compare what changes")
	f.IntVar(&o.ipv6Prefix, "client-ip-ipv6-prefix", 64, "how many bits of an IPv6 address make a key")
	return cmd
}

func replay(ctx context.Context, o replayOptions, paths []string, stdin io.Reader, stdout, stderr io.Writer) error {
	switch {
	case len(paths) == 0:
		return usageError(errors.New("replay: name access logs, or - for standard input"))
	case o.rules == "" && !o.suggest:
		return usageError(errors.New("replay: name the rules to try with --rules DIR (or ask for --suggest)"))
	case o.rules == "" && o.compare != "":
		return usageError(errors.New("replay: --compare needs --rules to compare with"))
	case o.markdown && (o.json || o.suggest):
		return usageError(errors.New("replay: --markdown stands without --json and --suggest, which print something else"))
	case o.reorder < 0:
		return usageError(fmt.Errorf("replay: --reorder %s is below 0", o.reorder))
	}
	if err := checkIPv6Prefix(o.ipv6Prefix); err != nil {
		return err
	}
	format, err := accesslog.ParseFormat(o.format)
	if err != nil {
		return usageError(err)
	}
	client, err := clientFinder(o.trusted)
	if err != nil {
		return usageError(fmt.Errorf("replay: --trusted-proxies: %w", err))
	}
	sets, err := replaySets(ctx, o, stderr)
	if err != nil {
		return err
	}
	named, keptIn := paths, ""
	if o.suggest {
		// Proposals take several readings.
		kept, remove, err := keepInput(paths, stdin)
		if err != nil {
			return err
		}
		defer remove()
		if at := slices.Index(paths, "-"); at >= 0 {
			keptIn = kept[at]
		}
		paths = kept
	}
	open := func() (*accesslog.Log, error) {
		return accesslog.Open(paths, stdin, accesslog.Options{Format: format, Fields: o.fields, Client: client,
			Kept: keptIn, Reorder: o.reorder.Microseconds()})
	}
	log, err := open()
	if err != nil {
		return usageError(err)
	}
	defer log.Close()
	if err := wrongClients(log.Readings()); err != nil {
		return err
	}
	options := sim.ReplayOptions{}
	if o.suggest {
		options.Suggest = &sim.SuggestOptions{Open: open, Load: func(text string) (*rule.Set, error) {
			set, _, err := file.Load([]file.Source{{Name: "suggested.yaml", Data: []byte(text)}},
				file.Options{IPv6Prefix: o.ipv6Prefix})
			return set, err
		}}
	}
	var page *os.File
	if o.html != "" {
		// Open it before the work, so that a bad name shows at once.
		if page, err = os.OpenFile(o.html, os.O_CREATE|os.O_WRONLY, 0o644); err != nil {
			return usageError(err)
		}
		defer page.Close()
	}
	stop := showProgress(log, stderr)
	result, err := sim.Replay(ctx, log, sets, options)
	stop()
	if err != nil {
		if ctx.Err() != nil {
			return errors.New("replay: interrupted")
		}
		return err
	}
	if err := misread(log.Readings(), result); err != nil {
		return err
	}
	if page != nil {
		if err := writePage(page, result, named); err != nil {
			return fmt.Errorf("%s: %w", o.html, err)
		}
	}
	if err := writeReplay(o, result, stdout); err != nil {
		return err
	}
	return nothingReplayed(result)
}

// keepInput copies standard input, if it is one of the logs, to a file that can be read again, and
// returns the logs with that file in its place. remove deletes it.
func keepInput(paths []string, stdin io.Reader) (kept []string, remove func(), err error) {
	at := slices.Index(paths, "-")
	if at < 0 {
		return paths, func() {}, nil
	}
	f, err := os.CreateTemp("", "weir-replay-*")
	if err != nil {
		return nil, nil, err
	}
	remove = func() { os.Remove(f.Name()) }
	if _, err = io.Copy(f, stdin); err == nil {
		err = f.Close()
	}
	if err != nil {
		f.Close()
		remove()
		return nil, nil, fmt.Errorf("replay: standard input could not be kept for a second reading: %w", err)
	}
	kept = slices.Clone(paths)
	kept[at] = f.Name()
	return kept, remove, nil
}

// nothingReplayed is the error of a replay that did not do its job, and would otherwise look
// successful.
func nothingReplayed(r *sim.Report) error {
	switch {
	case r.Requests == 0 && r.Skipped > 0:
		why := ""
		if len(r.SkippedLines) > 0 {
			f := r.SkippedLines[0]
			why = fmt.Sprintf("; %s, line %d: %s: %q", f.Log, f.Line, f.Why, f.Text)
		}
		return &exitError{code: exitFailure,
			err: fmt.Errorf("replay: nothing was replayed: none of %s did parse (see --format and --fields)%s",
				human.Plural(int(r.Skipped), "line"), why)}
	case r.Requests == 0:
		return &exitError{code: exitFailure, err: errors.New("replay: nothing was replayed: the log is empty")}
	case len(r.MissingFields) > 0:
		return &exitError{code: exitFailure, err: fmt.Errorf("replay: no line has what --fields names: %s",
			strings.Join(r.MissingFields, ", "))}
	}
	return nil
}

func writeReplay(o replayOptions, result *sim.Report, stdout io.Writer) error {
	switch {
	case o.json:
		return printJSON(stdout, result)
	case o.markdown:
		return report.Markdown(stdout, result)
	case o.rules == "":
		if result.Suggestions.YAML == "" && result.Requests > 0 {
			return &exitError{code: exitFailure,
				err: fmt.Errorf(
					"the log holds too few clients and users to suggest limits from (%d requests, %d clients)", result.Requests, result.Clients)}
		}
		_, err := io.WriteString(stdout, result.Suggestions.YAML)
		return err
	}
	return report.Text(stdout, result)
}

// replaySets loads the rules of --rules and --compare.
func replaySets(ctx context.Context, o replayOptions, stderr io.Writer) ([]sim.RuleSet, error) {
	var sets []sim.RuleSet
	for _, path := range []string{o.rules, o.compare} {
		if path == "" {
			continue
		}
		p, err := openPlace(ctx, path)
		if err != nil {
			return nil, err
		}
		set, err := p.load(file.Options{IPv6Prefix: o.ipv6Prefix}, stderr)
		if err != nil {
			return nil, err
		}
		domain, err := chooseDomain(set, o.domain, p.name, "--domain")
		if err != nil {
			return nil, err
		}
		texts := map[string]string{}
		for _, f := range p.files {
			texts[f.Name] = string(f.Data)
		}
		sets = append(sets, sim.RuleSet{Name: p.name, Domain: domain, Set: set, Texts: texts})
	}
	return sets, nil
}

func writePage(f *os.File, r *sim.Report, paths []string) error {
	var b strings.Builder
	if err := report.Page(&b, r, paths, time.Now()); err != nil {
		return err
	}
	if err := f.Truncate(0); err != nil && !errors.Is(err, os.ErrInvalid) {
		// A device such as /dev/stdout cannot be cut; there is nothing to cut off either.
		if info, statErr := f.Stat(); statErr != nil || info.Mode().IsRegular() {
			return err
		}
	}
	if _, err := io.WriteString(f, b.String()); err != nil {
		return err
	}
	return f.Close()
}

// showProgress draws a progress bar while stderr is a terminal. The returned function removes it.
func showProgress(log *accesslog.Log, stderr io.Writer) (stop func()) {
	f, ok := stderr.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return func() {}
	}
	_, total := log.Progress()
	if total == 0 {
		total = -1 // unknown: a spinner
	}
	bar := progressbar.NewOptions64(total,
		progressbar.OptionSetWriter(f),
		progressbar.OptionSetDescription("replaying"),
		progressbar.OptionShowBytes(true),
		progressbar.OptionFullWidth(),
		progressbar.OptionThrottle(65*time.Millisecond),
		progressbar.OptionClearOnFinish(),
	)
	return drawWhile(bar, func() int64 {
		read, _ := log.Progress()
		if total > 0 {
			read = min(read, total)
		}
		return read
	})
}

// drawWhile draws a progress bar until the returned function is called, which removes it.
func drawWhile(bar *progressbar.ProgressBar, value func() int64) (stop func()) {
	done := make(chan struct{})
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-done:
				bar.Finish()
				return
			case <-tick.C:
				bar.Set64(value())
			}
		}
	}()
	return func() {
		close(done)
		<-finished
	}
}
