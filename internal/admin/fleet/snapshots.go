package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/weir-rl/weir/internal/admin/nodes"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/insight/snapshot"
	"github.com/weir-rl/weir/internal/util/human"
)

// keptFor is how long an answer of all nodes serves further callers with the same question. So many
// tabs on one page cost the nodes one question a second.
const keptFor = time.Second

// mostKept bounds the answers that are kept, and mostUnderWay the questions that wait for one: each
// may wait for seconds, and hold what nodes have answered.
const (
	mostKept     = 64
	mostUnderWay = 32
)

// asked is a question of a moment ago, or one without an answer yet.
type asked struct {
	done     chan struct{}
	at       time.Time // when it was answered
	snapshot *snapshot.Snapshot
	nodes    insight.Nodes
	err      error
}

// snapshot merges the data of all nodes, this one first. It is the Ask of snapshot.View.
func (f *Fleet) snapshot(ctx context.Context, want snapshot.Want) (*snapshot.Snapshot, insight.Nodes, error) {
	f.mu.Lock()
	a := f.asked[want]
	if a == nil || !a.at.IsZero() && time.Since(a.at) >= keptFor {
		f.forget()
		if f.o.Nodes != nil && f.underWay() >= mostUnderWay {
			f.mu.Unlock()
			return f.here(want)
		}
		a = &asked{done: make(chan struct{})}
		f.asked[want] = a
		// The question serves all callers that wait, so it does not end with the first of them.
		go f.gather(context.WithoutCancel(ctx), want, a)
	}
	f.mu.Unlock()
	select {
	case <-a.done:
		return a.snapshot, a.nodes, a.err
	case <-ctx.Done():
		return nil, insight.Nodes{}, ctx.Err()
	}
}

// underWay counts the questions without an answer yet. f.mu is held.
func (f *Fleet) underWay() (n int) {
	for _, a := range f.asked {
		if a.at.IsZero() {
			n++
		}
	}
	return n
}

// here answers with the data of this node alone.
func (f *Fleet) here(want snapshot.Want) (*snapshot.Snapshot, insight.Nodes, error) {
	s := f.own(want)
	s.Node = f.Self()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.showVerdicts(s)
	return s, insight.Nodes{Asked: f.o.Nodes.Known(), Answered: 1, Apart: snapshot.Apart([]*snapshot.Snapshot{s}, nil),
			Remark: fmt.Sprintf("only this node was asked: %d other questions wait for an answer of all", mostUnderWay)},
		nil
}

func (f *Fleet) own(want snapshot.Want) *snapshot.Snapshot {
	s := f.o.Insight.Snapshot(want)
	s.Node = f.o.Name
	return s
}

// showVerdicts replaces the verdicts in s by those from the data of all nodes. f.mu is held.
func (f *Fleet) showVerdicts(s *snapshot.Snapshot) {
	for i := range s.Rules {
		r := &s.Rules[i]
		if v, ok := f.verdicts[ruleID{r.Domain, r.Name, r.Definition}]; ok {
			r.Verdicts = v.Verdicts
		}
	}
}

// forget drops answers that are too old to be used again. f.mu is held.
func (f *Fleet) forget() {
	for want, a := range f.asked {
		if !a.at.IsZero() && (time.Since(a.at) >= keptFor || len(f.asked) >= mostKept) {
			delete(f.asked, want)
		}
	}
}

// errMerge is returned to callers if merging has failed.
var errMerge = errors.New("what the nodes gathered could not be merged; the log says why")

// gather asks all nodes. It runs in its own goroutine, and recovers: a bad answer of another node
// must not end the program.
func (f *Fleet) gather(ctx context.Context, want snapshot.Want, a *asked) {
	defer func() {
		f.mu.Lock()
		a.at = time.Now()
		f.mu.Unlock()
		close(a.done)
	}()
	defer f.recovered(func() { a.err = errMerge })
	merged, n := f.merge(ctx, want)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.showVerdicts(merged)
	a.snapshot, a.nodes = merged, n
}

// recovered must be deferred by code that reads snapshots of other nodes. It stops a panic, and
// calls failed.
func (f *Fleet) recovered(failed func()) {
	if p := recover(); p != nil {
		f.o.Logger.Error("what the nodes gathered could not be merged, which is a defect of weir", "panic", p,
			"stack", string(debug.Stack()))
		failed()
	}
}

// merge merges the data of all nodes. It leaves out answers that cannot be read, or cover another
// time.
func (f *Fleet) merge(ctx context.Context, want snapshot.Want) (*snapshot.Snapshot, insight.Nodes) {
	var list []*snapshot.Snapshot
	begin := func() {
		if list == nil { // the question may have waited for its turn for seconds
			list = append(list, f.own(want))
		}
	}
	ahead := map[string]time.Duration{} // the clocks that are too far off, by node
	var differ []insight.RuleDiffers
	n := f.others(ctx, kindSnapshot, want, func(a nodes.Answer) {
		begin()
		own, s := list[0], new(snapshot.Snapshot)
		err := s.UnmarshalBinary(a.Data)
		var other []insight.RuleDiffers
		if err == nil {
			s.Node = a.Node
			other, err = own.Fit(s)
		}
		if err == nil {
			list, differ = append(list, s), append(differ, other...)
			return
		}
		f.unreadable.Add(1)
		text := "what another node gathered is left out, since it cannot be read; nodes understand each other where they run the same version"
		if skew, ok := errors.AsType[*snapshot.SkewError](err); ok {
			text = "what another node gathered is left out, since the clocks of both are too far apart; mend the clocks, by NTP for one"
			ahead[a.Node] = skew.Ahead
		}
		if f.unread.Due(unreadEvery) > 0 {
			f.o.Logger.Warn(text, "node", human.ParseNodeName(a.Node).Label(), "error", err)
		}
	})
	begin()
	for _, s := range list {
		s.Node = f.shown.of(s.Node)
	}
	for i := range differ {
		differ[i].Node = f.shown.of(differ[i].Node)
	}
	var skewed []string
	for node, by := range ahead {
		skewed = append(skewed, f.skewOf(list[0], f.shown.of(node), by))
	}
	// Answers come in any order.
	slices.SortFunc(list[1:], func(a, b *snapshot.Snapshot) int { return strings.Compare(a.Node, b.Node) })
	slices.SortStableFunc(differ, func(a, b insight.RuleDiffers) int { return strings.Compare(a.Node, b.Node) })
	n.Answered = len(list) // one of another version cannot be read
	n.Asked = max(n.Asked, n.Answered)
	if want.Rule != "" {
		n.Answered -= len(differ) // each is of another node
	}
	n.Apart = snapshot.Apart(list, differ)
	slices.Sort(skewed) // one is named; the next one is once this is mended
	for _, left := range [...]struct {
		count uint64
		text  string
	}{{uint64(len(skewed)), first(skewed)}, {nodesOf(differ), leftOut(differ)}} {
		if left.count > 0 {
			text := human.Count(left.count, "node") + " left out, since " + left.text
			n.Remark = strings.TrimPrefix(n.Remark+"; "+text, "; ")
		}
	}
	return snapshot.Merge(list...), n
}

func first(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[0]
}

// nodesOf counts the nodes that define rules otherwise than this one, in order of node.
func nodesOf(differ []insight.RuleDiffers) (n uint64) {
	for i := range differ {
		if i == 0 || differ[i].Node != differ[i-1].Node {
			n++
		}
	}
	return n
}

// leftOut names the first rule of which figures are left out, and says how many others there are.
func leftOut(differ []insight.RuleDiffers) string {
	if len(differ) == 0 {
		return ""
	}
	text := differ[0].String()
	if more := len(differ) - 1; more > 0 {
		text += fmt.Sprintf(", and %d more", more)
	}
	return text
}

// skewOf says whose clock is off, if the clock of another node is ahead of this node's by so much.
func (f *Fleet) skewOf(own *snapshot.Snapshot, node string, ahead time.Duration) string {
	who, than := node, "this node's"
	// The clock of Redis tells which of the two is off.
	if by := time.Unix(own.Time, 0).Sub(f.o.Nodes.Now()); max(by, -by) > snapshot.MostSkew {
		who, than, ahead = "this node", "that of Redis", by
	}
	way := "ahead of"
	if ahead < 0 {
		way, ahead = "behind", -ahead
	}
	return fmt.Sprintf("the clock of %s is %s %s %s", who, human.Span(ahead.Round(time.Second)), way, than)
}

// unreadEvery is how often the log reports that snapshots of other nodes cannot be read.
const unreadEvery = 10 * time.Minute

// surelyFits is the length of an answer that surely fits when compressed.
const surelyFits = nodes.MaxAnswer

// shorter are the steps in which an answer that would not fit becomes shorter: what is left of the
// samples of each rule, and of its lists of top keys.
var shorter = [...]struct{ keys, top int }{{128, 24}, {64, 12}, {24, 12}, {0, 12}, {0, 0}}

// answerSnapshot answers another node's question for a snapshot. If there are so many rules that
// the answer would not fit, each rule keeps smaller samples and fewer top keys, then none.
func (f *Fleet) answerSnapshot(_ context.Context, args []byte) ([]byte, error) {
	var want snapshot.Want
	if err := json.Unmarshal(args, &want); err != nil {
		return nil, err
	}
	s := f.o.Insight.Snapshot(want)
	b, err := s.AppendBinary(nil)
	for _, most := range shorter {
		if err != nil || len(b) <= 2*surelyFits {
			break
		}
		for i := range s.Rules {
			r := &s.Rules[i]
			if want.Clients {
				r.All.Shrink(most.keys)
				r.Refused.Shrink(most.keys)
			}
			r.WouldTop = r.WouldTop[:min(len(r.WouldTop), most.top)]
			for kind := range r.Live {
				r.Live[kind] = r.Live[kind][:min(len(r.Live[kind]), most.top)]
				r.Long[kind] = r.Long[kind][:min(len(r.Long[kind]), most.top)]
			}
		}
		b, err = s.AppendBinary(b[:0])
	}
	return b, err
}
