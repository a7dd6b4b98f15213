package fleet

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/weir-rl/weir/internal/admin/nodes"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/insight/judge"
	"github.com/weir-rl/weir/internal/observe/insight/snapshot"
)

const (
	lookEvery  = 30 * time.Second
	judgeEvery = 5 * time.Minute
	// dutyTime bounds one look.
	dutyTime = 20 * time.Second
	// judgePause is the pause between two rules, so that judging leaves room for other questions.
	judgePause = 200 * time.Millisecond

	seedKey     = "seed"
	seedTTL     = 30 * 24 * time.Hour
	watchedKey  = "watched"
	watchedTTL  = 5 * lookEvery
	verdictsKey = "verdicts"
	verdictsTTL = 4 * judgeEvery
	// mostWatched bounds the keys of one rule that all nodes follow: as many as a sample holds.
	mostWatched = 256
	// mostBoard bounds a value on the board, in bytes.
	mostBoard = 1 << 20
)

// Run does the duties of this node until ctx ends.
func (f *Fleet) Run(ctx context.Context) {
	if f.o.Board == nil || f.o.Insight == nil {
		return
	}
	judged := time.Now() // at first the other nodes are not known
	for wait := time.Second; ; wait = min(2*wait, lookEvery) {
		f.nodeLeft() // so that a node which nobody asked before it left is missed
		leads := f.look(ctx)
		if leads && time.Since(judged) >= judgeEvery {
			judged = time.Now()
			f.judge(ctx)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// look agrees with the other nodes on the seed, and follows the keys that all nodes follow. It
// reports whether this node leads.
func (f *Fleet) look(ctx context.Context) (leads bool) {
	ctx, cancel := context.WithTimeout(ctx, dutyTime)
	defer cancel()
	if err := f.agree(ctx); err != nil {
		f.dropVerdicts()
		return false // Redis is away; look will be called again
	}
	if leads = f.o.Leads(ctx); leads {
		seed := binary.LittleEndian.AppendUint64(nil, f.o.Insight.Seed())
		_ = f.o.Board.Set(ctx, seedKey, seed, seedTTL, false) // so that it does not expire
		if err := f.tellRefused(ctx); err != nil {
			f.o.Logger.Debug("the nodes were not told which refused keys to follow", "error", err)
		}
	}
	if b, err := f.o.Board.Get(ctx, watchedKey); err == nil && len(b) > 0 {
		f.watch(b)
	}
	if b, err := f.o.Board.Get(ctx, verdictsKey); err == nil && len(b) > 0 {
		f.takeVerdicts(b)
	}
	f.dropVerdicts()
	return leads
}

// agree takes over the seed of all nodes, or gives them one.
func (f *Fleet) agree(ctx context.Context) error {
	// Offer the seed of this node. If Redis has lost the common seed, it becomes the common one
	// again, and no samples are lost.
	own := binary.LittleEndian.AppendUint64(nil, f.o.Insight.Seed())
	if err := f.o.Board.Set(ctx, seedKey, own, seedTTL, true); err != nil {
		return err
	}
	b, err := f.o.Board.Get(ctx, seedKey)
	if err != nil {
		return err
	}
	if len(b) != 8 {
		return errors.New("the seed of the nodes is none")
	}
	seed := binary.LittleEndian.Uint64(b)
	f.o.Insight.SetSeed(seed)
	if f.o.Seeded != nil {
		f.o.Seeded(seed)
	}
	return nil
}

// refusedKeys are the refused keys of a rule that are in the sample of a node.
type refusedKeys struct {
	Domain string   `json:"d"`
	Rule   string   `json:"r"`
	Hashes []uint64 `json:"h"`
	Texts  []string `json:"t"`
}

// refusedOf returns the keys of a snapshot's rules that were refused on its node.
func refusedOf(s *snapshot.Snapshot) (list []refusedKeys) {
	for i := range s.Rules {
		r := &s.Rules[i]
		x := refusedKeys{Domain: r.Domain, Rule: r.Name}
		for _, k := range r.Refused.Keys {
			if !k.Remote && len(x.Hashes) < mostWatched {
				x.Hashes, x.Texts = append(x.Hashes, k.Hash), append(x.Texts, k.Text)
			}
		}
		if len(x.Hashes) > 0 {
			list = append(list, x)
		}
	}
	return list
}

// ownRefused returns the refused keys of this node, of fewer rules if they would take too many
// bytes.
func (f *Fleet) ownRefused() []refusedKeys {
	list := refusedOf(f.o.Insight.SnapshotAsked(snapshot.Want{Over: time.Hour, Samples: true}))
	bytes := 0
	for i := range list {
		for _, text := range list[i].Texts {
			bytes += len(text) + 24
		}
		if bytes > mostBoard {
			return list[:i]
		}
	}
	return list
}

func (f *Fleet) answerRefused(context.Context, []byte) ([]byte, error) {
	return json.Marshal(f.ownRefused())
}

// tellRefused asks all nodes for the refused keys in their samples, and puts on the board those
// that belong in the common sample.
func (f *Fleet) tellRefused(ctx context.Context) error {
	type id struct{ domain, rule string }
	keys := map[id]map[uint64]string{}
	add := func(list []refusedKeys) {
		for _, x := range list {
			at := id{x.Domain, x.Rule}
			if keys[at] == nil {
				keys[at] = map[uint64]string{}
			}
			for i := range min(len(x.Hashes), len(x.Texts)) {
				keys[at][x.Hashes[i]] = x.Texts[i]
			}
		}
	}
	add(f.ownRefused())
	f.others(ctx, kindRefused, nil, func(a nodes.Answer) {
		var list []refusedKeys
		if f.read(a, &list) {
			add(list)
		}
	})
	var all []refusedKeys
	for at, some := range keys {
		x := refusedKeys{Domain: at.domain, Rule: at.rule}
		for hash := range some {
			x.Hashes = append(x.Hashes, hash)
		}
		slices.Sort(x.Hashes)
		x.Hashes = x.Hashes[:min(len(x.Hashes), mostWatched)]
		for _, hash := range x.Hashes {
			x.Texts = append(x.Texts, some[hash])
		}
		all = append(all, x)
	}
	text, err := json.Marshal(all)
	if err != nil {
		return err
	}
	return f.o.Board.Set(ctx, watchedKey, text, watchedTTL, false)
}

// watch follows the keys on the board.
func (f *Fleet) watch(text []byte) {
	var all []refusedKeys
	if json.Unmarshal(text, &all) != nil {
		return
	}
	for _, x := range all {
		list := make([]snapshot.RefusedKey, 0, len(x.Hashes))
		for i := range min(len(x.Hashes), len(x.Texts), mostWatched) {
			list = append(list, snapshot.RefusedKey{SampledKey: snapshot.SampledKey{Hash: x.Hashes[i]},
				Text: x.Texts[i]})
		}
		f.o.Insight.Watch(x.Domain, x.Rule, list)
	}
}

// ruleVerdicts are the verdicts on one rule, and what the next leader has to remember.
type ruleVerdicts struct {
	Domain     string            `json:"domain"`
	Rule       string            `json:"rule"`
	Definition uint64            `json:"definition"`
	Verdicts   []insight.Verdict `json:"verdicts"`
	Memory     judge.Memory      `json:"memory"`
}

// ruleName names a rule.
type ruleName struct {
	Domain string `json:"d"`
	Rule   string `json:"r"`
}

// ownAsked names the rules that this node judges one by one, or the first of them if all would take
// too many bytes.
func (f *Fleet) ownAsked() (list []ruleName) {
	s := f.o.Insight.SnapshotAsked(snapshot.Want{OnlyTop: true})
	bytes := 0
	for i := range s.Rules {
		r := &s.Rules[i]
		if bytes += len(r.Domain) + len(r.Name) + 24; bytes > mostBoard {
			break
		}
		if !r.IsCommand() {
			list = append(list, ruleName{r.Domain, r.Name})
		}
	}
	return list
}

func (f *Fleet) answerAsked(context.Context, []byte) ([]byte, error) {
	return json.Marshal(f.ownAsked())
}

// allAsked names the rules that some node judges one by one.
func (f *Fleet) allAsked(ctx context.Context) []ruleName {
	list := f.ownAsked()
	have := make(map[ruleName]bool, len(list))
	for _, r := range list {
		have[r] = true
	}
	f.others(ctx, kindAsked, nil, func(a nodes.Answer) {
		var other []ruleName
		if !f.read(a, &other) {
			return
		}
		for _, r := range other {
			if !have[r] {
				have[r] = true
				list = append(list, r)
			}
		}
	})
	return list
}

// judge judges the rules, one by one, by the data of all nodes, and puts the verdicts on the board.
// If there are many, it leaves out those that nobody asked for at any node. It takes long with many
// rules, or if a node hangs. So it calls look in between, and stops if this node does not lead any
// more.
func (f *Fleet) judge(ctx context.Context) {
	over := snapshot.JudgedOver(time.Now())
	looked := time.Now()
	var all []ruleVerdicts
	for _, r := range f.allAsked(ctx) {
		want := snapshot.Want{Domain: r.Domain, Rule: r.Rule, Over: over, Samples: true, Top: true}
		if v, ok := f.judgeRule(ctx, want); ok {
			all = append(all, v)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(judgePause):
		}
		if time.Since(looked) >= lookEvery {
			if !f.look(ctx) {
				return
			}
			looked = time.Now()
		}
	}
	text, left := boardOf(all)
	if left > 0 {
		f.full.Do(func() {
			f.o.Logger.Warn(
				"so many rules have verdicts that each node shows its own on some of those that need no attention",
				"rules", left)
		})
	}
	f.takeVerdicts(text)
	ctx, cancel := context.WithTimeout(ctx, dutyTime)
	defer cancel()
	if err := f.o.Board.Set(ctx, verdictsKey, text, verdictsTTL, false); err != nil {
		f.o.Logger.Debug("the verdicts were not left for other nodes", "error", err)
	}
}

// boardOf writes verdicts for the board, and returns how many rules it left out because they would
// take too many bytes: at first those that need no attention, of which there is nothing to
// remember.
func boardOf(all []ruleVerdicts) (text []byte, left int) {
	var urgent, rest []ruleVerdicts
	for _, v := range all {
		alarming := slices.ContainsFunc(v.Verdicts, func(v insight.Verdict) bool { return insight.Alarming(v.Verdict) })
		if alarming || len(v.Memory.Candidates) > 0 {
			urgent = append(urgent, v)
		} else {
			rest = append(rest, v)
		}
	}
	for _, v := range append(urgent, rest...) {
		one, err := json.Marshal(v)
		if err != nil || len(text)+len(one)+2 > mostBoard {
			left++
			continue
		}
		text = append(append(text, ','), one...)
	}
	if len(text) == 0 {
		return []byte("[]"), left
	}
	text[0] = '['
	return append(text, ']'), left
}

// judgeRule judges one rule. If some node does not answer, the verdicts from the data of all stay
// for as long as they last. A malformed answer of another node must not end the program.
func (f *Fleet) judgeRule(ctx context.Context, want snapshot.Want) (v ruleVerdicts, ok bool) {
	defer f.recovered(func() { ok = false })
	s, n := f.merge(ctx, want)
	if s == nil || len(s.Rules) != 1 {
		return v, false
	}
	facts := s.Facts(0)
	id := ruleID{want.Domain, want.Rule, s.Rules[0].Definition}
	f.mu.Lock()
	before, have := f.verdicts[id]
	f.mu.Unlock()
	if have && n.Answered < n.Asked && facts.To.Unix()-before.Memory.At < int64(verdictsTTL.Seconds()) {
		return before, true
	}
	verdicts, memory := f.o.Insight.Judge(&facts, before.Memory)
	judge.KeepSince(before.Verdicts, verdicts)
	return ruleVerdicts{id.domain, id.rule, id.definition, verdicts, memory}, true
}

// takeVerdicts takes over the verdicts that were made from the data of all nodes.
func (f *Fleet) takeVerdicts(text []byte) {
	var all []ruleVerdicts
	if json.Unmarshal(text, &all) != nil {
		return
	}
	m := make(map[ruleID]ruleVerdicts, len(all))
	for _, x := range all {
		m[ruleID{x.Domain, x.Rule, x.Definition}] = x
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !bytes.Equal(text, f.board) {
		f.board, f.taken = text, time.Now()
	}
	f.verdicts = m
}

// dropVerdicts forgets verdicts that are older than they last on the board. Nobody renews them, and
// this node's own data is newer.
func (f *Fleet) dropVerdicts() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.verdicts != nil && time.Since(f.taken) >= verdictsTTL {
		f.verdicts = nil
	}
}
