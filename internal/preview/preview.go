package preview

import (
	"context"
	"errors"
	"sync"

	"github.com/weir-rl/weir/internal/insight"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
)

// Preview tells what rules would have done to the requests that a Recorder recorded. Safe for
// concurrent use; previews run one after the other.
type Preview struct {
	recorder *Recorder
	rules    func() *rule.Set
	options  file.Options
	others   func() int
	one      sync.Mutex
	each     eachFunc // for tests
}

// New returns a Preview of what r recorded, beside the rules that rules returns. options are those
// with which files are loaded.
func New(r *Recorder, rules func() *rule.Set, options file.Options) *Preview {
	return &Preview{recorder: r, rules: rules, options: options}
}

// SetNodes makes results warn where several nodes count the same keys: nodes returns how many there
// are. It must be called before Run.
func (p *Preview) SetNodes(nodes func() int) { p.others = nodes }

// Run returns what the rules of q would have done to the recorded requests, and what the rules in
// force do to them. It uses one goroutine that yields, for 10 s of the processor at most. Files
// that are no rules are a result with Problems; without any request it returns
// insight.ErrNotRecorded.
func (p *Preview) Run(ctx context.Context, q insight.PreviewQuery) (*insight.PreviewResult, error) {
	p.one.Lock()
	defer p.one.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	tell := newTeller(q.Progress)
	tell(insight.PreviewProgress{Phase: "load"}, true)
	now := p.rules()
	t := &task{Files: q.Files, Options: p.options, Known: p.recorder.o.Known, Hide: p.recorder.o.Hide, each: p.each}
	if p.others != nil {
		t.Nodes = p.others()
	}
	plan := func(window int64) (*plan, error) { return p.recorder.plan(q.Over, window) }
	inForce := func() (*rule.Set, error) {
		if now == nil {
			return nil, errors.New("no rules are in force")
		}
		return now, nil
	}
	return t.run(ctx, inForce, plan, tell)
}
