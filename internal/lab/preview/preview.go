// Package preview says what other rules would have done to the requests that were recorded.
//
// Preview gathers the records of all nodes (package record), and starts a process (process.go,
// wire.go, child.go). The process chooses a part of the records (plan.go), replays it in virtual
// time, through the rules in force and through the other rules side by side (task.go, replay.go),
// and sums up (result.go).
package preview

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/record"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
)

// Preview says what rules would have done to the requests that were recorded. Safe for
// concurrent use; previews run one after the other.
type Preview struct {
	gather   func(ctx context.Context, o record.Others, back time.Duration) *record.Gathered
	recorded record.Options
	rules    func() *rule.Set
	options  file.Options
	lint     file.LintOptions
	others   record.Others
	process  *process // nil: requests are replayed in this one
	one      sync.Mutex
	each     eachFunc // for tests, which then replay in this process
}

// New returns a Preview that replays the requests of r. rules returns the rules in force, to
// compare with. options are used to load rule files.
func New(r *record.Recorder, rules func() *rule.Set, options file.Options) *Preview {
	return &Preview{gather: r.Gather, recorded: r.Options(), rules: rules, options: options}
}

// SetOthers makes Run replay the requests of all nodes. It must be called before Run.
func (p *Preview) SetOthers(o record.Others) { p.others = o }

// SetLint makes lint know the configuration, as Lint of package file describes it. It must be
// called before Run.
func (p *Preview) SetLint(o file.LintOptions) { p.lint = o }

// SetProcess makes Run replay in a process of its own, at the lowest priority: so a replay takes no
// processor time from decisions, and its garbage collection does not delay them. The process is
// this program with args, and must call Replay. If no process can be started, or if the rules in
// force are not from files, Run replays in this process, and logs that once. SetProcess must be
// called before Run, by a program that lets no other process inherit its files: it keeps from then
// on the files that this program has inherited.
func (p *Preview) SetProcess(args []string, log *slog.Logger) {
	keepFiles()
	p.process = &process{args: args, log: log}
}

// Run returns what the rules of q would have done to the recorded requests, and what the rules in
// force do to them. The replay takes at most 10 s of processor time. If the files are not valid
// rules, the result has Problems. If there are no requests, the error is insight.ErrNotRecorded.
func (p *Preview) Run(ctx context.Context, q insight.PreviewQuery) (*insight.PreviewResult, error) {
	p.one.Lock()
	defer p.one.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	tell := newTeller(q.Progress)
	tell(insight.PreviewProgress{Phase: "load"}, true)
	now := p.rules()
	o := p.recorded
	t := &task{Files: q.Files, Options: loading{p.options.IPv6Prefix, p.options.Lend, p.options.None}, Lint: p.lint,
		Over: q.Over, Known: o.Known, Hide: o.Hide, Always: o.Always(), each: p.each}
	gather := func(window int64) (*record.Gathered, error) {
		back := q.Over
		if back > 0 {
			back += time.Duration(window) * time.Microsecond
		}
		return p.gather(ctx, p.others, back), ctx.Err()
	}
	if p.process != nil && p.each == nil && now != nil {
		res, err := p.process.run(ctx, now, t, gather, tell)
		if !errors.Is(err, errNotBegun) {
			return res, err
		}
	}
	inForce := func() (*rule.Set, error) {
		if now == nil {
			return nil, errors.New("no rules are in force")
		}
		return now, nil
	}
	return t.run(ctx, inForce, gather, tell)
}
