package preview

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/lab/sim"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/record"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
)

// task is everything that a preview needs beside the record. Any process can do it. The exported
// fields are sent to another process (wire.go).
type task struct {
	Files   map[string]string // the candidate
	InForce []file.Source     // the rules in force
	Options loading           // with which both are loaded
	Lint    file.LintOptions
	Known   []string // as in Options of the recorder
	Hide    []string
	Always  []string      // the attributes that are recorded whatever the rules in force read
	Over    time.Duration // as in insight.PreviewQuery

	spent func() time.Duration // processor time, in a process that does nothing else
	each  eachFunc             // for tests
}

// loading has the options of file.Load that another process can be sent.
type loading struct {
	IPv6Prefix int
	Lend       []string
	None       bool
}

func (l loading) options() file.Options {
	return file.Options{IPv6Prefix: l.IPv6Prefix, Lend: l.Lend, None: l.None}
}

type (
	eachFunc = func(e *record.Request, now, then *weir.Decision)
	// gatherer returns the records to replay. window is the longest window of the rules, in µs.
	gatherer = func(window int64) (*record.Gathered, error)
	// teller reports progress, at most ten times a second unless must is set.
	teller = func(p insight.PreviewProgress, must bool)
)

const (
	mostWarnings = 60
	mostProblems = 200
	mostFailures = 50
	mostExamples = 50
)

// run does a task. inForce returns the rules in force.
func (t *task) run(ctx context.Context, inForce func() (*rule.Set, error), gather gatherer,
	tell teller) (*insight.PreviewResult, error) {
	res := &insight.PreviewResult{Sampled: 1, Rules: []insight.PreviewRule{}, Problems: []insight.PreviewProblem{},
		Warnings: []string{},
		Tests:    insight.PreviewTests{Failures: []string{}},
		Clients:  insight.PreviewClients{Examples: []insight.PreviewKey{}}}
	then, tests := t.load(res)
	if len(res.Problems) > 0 {
		return res, nil
	}
	tell(insight.PreviewProgress{Phase: "tests"}, true)
	if err := t.runTests(ctx, then, tests, res); err != nil || len(res.Problems) > 0 {
		return res, err
	}
	now, err := inForce()
	if err != nil {
		return nil, err
	}
	window := longestWindow(now, then)
	g, err := gather(window)
	if err != nil {
		return nil, err
	}
	planned, err := newPlan(g.Records, t.Over.Microseconds(), window)
	if err != nil {
		return nil, err
	}
	res.Nodes = g.Nodes
	r, err := t.replay(ctx, planned, now, then, tell)
	if err != nil {
		return nil, err
	}
	defer r.now.close()
	defer r.then.close()
	r.result(res, planned)
	t.warn(res, r, planned)
	return res, nil
}

// newTeller returns a teller that calls f, which may be nil.
func newTeller(f func(insight.PreviewProgress)) teller {
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

// load loads the candidate's files, and puts their errors into res.
func (t *task) load(res *insight.PreviewResult) (*rule.Set, []testFile) {
	var sources []file.Source
	var tests []testFile
	for _, name := range slices.Sorted(maps.Keys(t.Files)) {
		switch {
		case isTest(name):
			tests = append(tests, testFile{name, []byte(t.Files[name])})
		case isYAML(name):
			sources = append(sources, file.Source{Name: name, Data: []byte(t.Files[name])})
		default:
			res.Problems = append(res.Problems,
				insight.PreviewProblem{File: name, Message: "this is no rule file: those end in .yaml or .yml"})
		}
	}
	set, warnings, err := file.Load(sources, t.Options.options())
	if err != nil {
		res.Problems = append(res.Problems, problemsOf("", err)...)
		return nil, nil
	}
	for _, w := range append(warnings, file.Lint(set, t.Lint)...) {
		w.Quote = ""
		res.Warnings = append(res.Warnings, w.Error())
	}
	return set, tests
}

// problemsOf returns an error's problems. file is the file of those that do not name one.
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

// runTests runs the tests of rules against the candidate, until they have taken too long together.
func (t *task) runTests(ctx context.Context, set *rule.Set, tests []testFile, res *insight.PreviewResult) error {
	meter := t.newMeter(mostTested)
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
			res.Problems = append(res.Problems,
				insight.PreviewProblem{File: f.name,
					Message: fmt.Sprintf("domain: the rules hold no domain %q; they hold %s", domain,
						strings.Join(set.Domains(), ", "))})
			continue
		}
		if err := parsed.CheckAttributes(set, domain); err != nil {
			res.Problems = append(res.Problems, problemsOf(f.name, err)...)
			continue
		}
		for _, one := range parsed.Tests {
			out, err := sim.RunTest(set, domain, one, func() error { return meter.pause(ctx) })
			switch {
			case err == nil:
			case ctx.Err() != nil:
				return ctx.Err()
			case errors.Is(err, errTooLong):
				res.Problems = append(res.Problems,
					insight.PreviewProblem{File: f.name, Line: one.Line, Message: fmt.Sprintf(
						"%s: in this test all tests together had taken %v of the processor, which is what a preview gives them: send fewer requests (times)", one.Name, mostTested)})
				return nil
			default:
				return fmt.Errorf("%s: %s: %w", f.name, one.Name, err)
			}
			if !out.Failed {
				res.Tests.Passed++
				continue
			}
			res.Tests.Failed++
			for _, s := range out.Steps {
				if s.Failed > 0 && len(res.Tests.Failures) < mostFailures {
					res.Tests.Failures = append(res.Tests.Failures,
						fmt.Sprintf("%s:%d: %s: %s: expected %s, got %s", f.name, s.Step.Line, one.Name, s.What,
							s.Expected, s.Got))
				}
			}
		}
	}
	return nil
}

// replay replays a plan.
func (t *task) replay(ctx context.Context, plan *plan, now, then *rule.Set, tell teller) (*replay, error) {
	m, err := record.NewReader(plan.streams)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	r := &replay{clients: map[uint64]*client{}, known: t.Known, from: plan.count, to: plan.count,
		series: newSeries(plan.count, plan.to), each: t.each, start: plan.from}
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
	r.meter = t.newMeter(mostBusy)
	if err := r.run(ctx, m, progress); err != nil {
		r.now.close()
		r.then.close()
		return nil, err
	}
	tell(insight.PreviewProgress{Done: r.done, Of: max(plan.requests, r.done), Phase: "then"}, true)
	return r, nil
}
