package preview

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/insight"
	"github.com/weir-rl/weir/internal/sim"
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

type eachFunc = func(e *request, now, then *weir.Decision)

// New returns a Preview of what r recorded, beside the rules that rules returns. options are those
// with which files are loaded.
func New(r *Recorder, rules func() *rule.Set, options file.Options) *Preview {
	return &Preview{recorder: r, rules: rules, options: options}
}

// SetNodes makes results warn where several nodes count the same keys: nodes returns how many there
// are. It must be called before Run.
func (p *Preview) SetNodes(nodes func() int) { p.others = nodes }

const (
	// mostRequests is how many requests are replayed at most: of more, fewer clients are taken.
	mostRequests = 4 << 20
	mostWarnings = 60
	mostProblems = 200
	mostFailures = 50
	mostExamples = 50
)

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
	tell := teller(q.Progress)
	tell(insight.PreviewProgress{Phase: "load"}, true)
	res := &insight.PreviewResult{Sampled: 1, Rules: []insight.PreviewRule{}, Problems: []insight.PreviewProblem{}, Warnings: []string{},
		Tests: insight.PreviewTests{Failures: []string{}}, Clients: insight.PreviewClients{Examples: []insight.PreviewKey{}}}
	then, tests := p.load(q.Files, res)
	if len(res.Problems) > 0 {
		return res, nil
	}
	tell(insight.PreviewProgress{Phase: "tests"}, true)
	if err := runTests(ctx, then, tests, res); err != nil || len(res.Problems) > 0 {
		return res, err
	}
	now := p.rules()
	if now == nil {
		return nil, errors.New("no rules are in force")
	}
	plan, err := p.recorder.plan(q.Over, longestWindow(now, then))
	if err != nil {
		return nil, err
	}
	r, err := p.replay(ctx, plan, now, then, tell)
	if err != nil {
		return nil, err
	}
	defer r.now.close()
	defer r.then.close()
	r.result(res, plan)
	p.warn(res, r, plan)
	return res, nil
}

// teller tells of progress at most ten times a second.
func teller(f func(insight.PreviewProgress)) func(p insight.PreviewProgress, must bool) {
	var last time.Time
	return func(p insight.PreviewProgress, must bool) {
		if f != nil && (must || time.Since(last) >= 100*time.Millisecond) {
			last = time.Now()
			f(p)
		}
	}
}

// testFile is a file of rule tests.
type testFile struct {
	name string
	data []byte
}

func isYAML(name string) bool {
	return strings.HasSuffix(name, ".yaml") || strings.HasSuffix(name, ".yml")
}

func isTest(name string) bool {
	return strings.HasSuffix(name, "_test.yaml") || strings.HasSuffix(name, "_test.yml")
}

// load loads the candidate's files. What is wrong with them goes into res.
func (p *Preview) load(files map[string]string, res *insight.PreviewResult) (*rule.Set, []testFile) {
	var sources []file.Source
	var tests []testFile
	for _, name := range slices.Sorted(maps.Keys(files)) {
		switch {
		case isTest(name):
			tests = append(tests, testFile{name, []byte(files[name])})
		case isYAML(name):
			sources = append(sources, file.Source{Name: name, Data: []byte(files[name])})
		default:
			res.Problems = append(res.Problems, insight.PreviewProblem{File: name, Message: "this is no rule file: those end in .yaml or .yml"})
		}
	}
	set, warnings, err := file.Load(sources, p.options)
	if err != nil {
		res.Problems = append(res.Problems, problemsOf("", err)...)
		return nil, nil
	}
	for _, w := range append(warnings, file.Lint(set, file.LintOptions{})...) {
		w.Quote = ""
		res.Warnings = append(res.Warnings, w.Error())
	}
	return set, tests
}

// problemsOf lists an error's problems. file is where it is, if it says nothing of that.
func problemsOf(file string, err error) (list []insight.PreviewProblem) {
	problems, ok := errors.AsType[rule.Problems](err)
	if !ok {
		if one, is := errors.AsType[rule.Problem](err); is {
			problems = rule.Problems{one}
		} else {
			return []insight.PreviewProblem{{File: file, Message: err.Error()}}
		}
	}
	for _, one := range problems[:min(len(problems), mostProblems)] {
		text := one.Message
		if one.Rule != "" {
			text = one.Rule + ": " + text
		}
		if one.Hint != "" {
			text += " (" + one.Hint + ")"
		}
		at := one.Pos.File
		if at == "" {
			at = file
		}
		list = append(list, insight.PreviewProblem{File: at, Line: one.Pos.Line, Column: one.Pos.Column, Message: text})
	}
	return list
}

// runTests runs the tests of rules against the candidate.
func runTests(ctx context.Context, set *rule.Set, tests []testFile, res *insight.PreviewResult) error {
	for _, f := range tests {
		parsed, err := sim.ParseTests(f.name, f.data)
		if err != nil {
			res.Problems = append(res.Problems, problemsOf(f.name, err)...)
			continue
		}
		domain := parsed.Domain
		if domain == "" && len(set.Domains()) == 1 {
			domain = set.Domains()[0]
		}
		if !set.HasDomain(domain) {
			res.Problems = append(res.Problems, insight.PreviewProblem{File: f.name, Message: fmt.Sprintf("domain: the rules hold no domain %q; they hold %s", domain, strings.Join(set.Domains(), ", "))})
			continue
		}
		if err := parsed.CheckAttributes(set, domain); err != nil {
			res.Problems = append(res.Problems, problemsOf(f.name, err)...)
			continue
		}
		for _, t := range parsed.Tests {
			if err := ctx.Err(); err != nil {
				return err
			}
			out, err := sim.RunTest(set, domain, t)
			if err != nil {
				return fmt.Errorf("%s: %s: %w", f.name, t.Name, err)
			}
			if !out.Failed {
				res.Tests.Passed++
				continue
			}
			res.Tests.Failed++
			for _, s := range out.Steps {
				if s.Failed > 0 && len(res.Tests.Failures) < mostFailures {
					res.Tests.Failures = append(res.Tests.Failures, fmt.Sprintf("%s:%d: %s: %s: expected %s, got %s", f.name, s.Step.Line, t.Name, s.What, s.Expected, s.Got))
				}
			}
		}
	}
	return nil
}

// plan says what of the record is replayed.
type plan struct {
	level    int // strata from here on: one client in 2^level
	from     int64
	count    int64 // from where requests count
	to       int64
	requests uint64
	whole    bool // nothing was before it
	short    bool // the windows need longer to warm up than there is
	chunks   [][]chunk
	gaps     []gap
	changes  int // of the rules, in that time
	names    *names
}

// plan chooses the sample that reaches back as far as it is asked to with the most clients.
func (r *Recorder) plan(over time.Duration, window int64) (*plan, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drainLocked()
	r.drainLocked() // what waits to be sorted
	g := r.mu.ring
	level := int(r.level.Load())
	now := g.latest
	if now == 0 || g.reach(level) == 0 {
		return nil, insight.ErrNotRecorded
	}
	asked := now - over.Microseconds()
	warm := window
	if over <= 0 {
		longest := int64(0)
		for n := level; n < strata; n++ {
			longest = max(longest, now-g.reach(n))
		}
		asked, warm = now-longest*9/10, 0
	}
	best := level
	for n := level; n < strata; n++ {
		if g.reach(n) < g.reach(best) {
			best = n
		}
		if g.reach(n) <= asked-warm {
			best = n
			break
		}
	}
	p := &plan{level: best, to: now, names: r.names.Load()}
	for p.level < strata-1 && g.requests(p.level, asked-warm) > mostRequests {
		p.level++
	}
	reach := g.reach(p.level)
	p.from = reach
	if over > 0 {
		p.from = max(reach, asked-warm)
	}
	p.whole = r.o.Fresh && p.from <= g.first
	p.count = p.from + window
	if p.whole {
		p.count = p.from
	}
	if over > 0 {
		p.count = max(p.count, asked)
	}
	if half := p.from + (now-p.from)/2; p.count > half && !(over > 0 && asked >= p.from+window) && !p.whole {
		p.count, p.short = half, true
	}
	p.chunks = g.take(p.level, p.from)
	p.requests = g.requests(p.level, p.from)
	for _, gap := range r.mu.gaps {
		if gap.to >= p.from {
			p.gaps = append(p.gaps, gap)
		}
	}
	for _, c := range r.mu.changes[min(1, len(r.mu.changes)):] {
		if c.at >= p.from {
			p.changes++
		}
	}
	if p.requests == 0 {
		return nil, insight.ErrNotRecorded
	}
	return p, nil
}

// longestWindow is how long the record has to be before it counts, in µs.
func longestWindow(sets ...*rule.Set) (longest int64) {
	for _, set := range sets {
		for _, r := range set.Rules() {
			for _, w := range r.Windows {
				if w.Limit != nil && w.Limit.Algorithm() != algo.Concurrency {
					longest = max(longest, w.Limit.Config().Window.Microseconds())
				}
			}
			if b := r.Ban; b != nil {
				longest = max(longest, b.Within.Microseconds(), b.For.Microseconds())
			}
		}
	}
	return longest
}

// replay replays a plan.
func (p *Preview) replay(ctx context.Context, plan *plan, now, then *rule.Set, tell func(insight.PreviewProgress, bool)) (*replay, error) {
	m, err := newMerged(plan.chunks)
	if err != nil {
		return nil, err
	}
	defer m.z.Close()
	r := &replay{clients: map[uint64]*client{}, known: p.recorder.o.Known, from: plan.count, to: plan.count, series: newSeries(plan.count, plan.to), each: p.each, start: plan.from}
	if r.now, err = newSide(now, 1<<plan.level); err != nil {
		return nil, err
	}
	if r.then, err = newSide(then, 1<<plan.level); err != nil {
		r.now.close()
		return nil, err
	}
	progress := func(done uint64) {
		tell(insight.PreviewProgress{Done: done, Of: max(plan.requests, done), Phase: "then"}, false)
	}
	tell(insight.PreviewProgress{Of: plan.requests, Phase: "then"}, true)
	if err := r.run(ctx, m, progress); err != nil {
		r.now.close()
		r.then.close()
		return nil, err
	}
	tell(insight.PreviewProgress{Done: r.done, Of: max(plan.requests, r.done), Phase: "then"}, true)
	return r, nil
}
