// Package fleet shows all nodes that share a store as one: decisions by id and lists of them, the
// state of each node, and what insight gathered of rules and keys.
//
// Begin with Fleet (fleet.go), which asks the other nodes through package nodes, and answers their
// questions. snapshots.go merges what they gathered, and shown.go says how nodes are called. Duties
// (duties.go) run in the background: the nodes agree on the seed by which keys are sampled. One
// node, the leader, decides which refused keys all nodes follow, and judges the rules by the data
// of all.
package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/admin/nodes"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/insight/gather"
	"github.com/weir-rl/weir/internal/observe/insight/snapshot"
	"github.com/weir-rl/weir/internal/observe/recent"
	"github.com/weir-rl/weir/internal/util/human"
	"github.com/weir-rl/weir/internal/util/sparselog"
)

// Options configure New. Name and State are required. A nil field is a part that this node lacks.
type Options struct {
	// Name is the name of this node, as human.NodeName.String returns it. No other node has it.
	Name string
	// Nodes asks the others; nil if this node is alone.
	Nodes *nodes.Nodes
	// Recent holds the recent decisions of this node, Insight its gathered data, and State returns
	// its state.
	Recent  *recent.Buffer
	Insight *gather.Collector
	State   func() insight.NodeState
	// Regions reads this node's counts for its region and the others, which the caller may change;
	// nil if there is only one region. Leader is not empty if it is this node.
	Regions func() *insight.RegionsReading
	// Bans lists the bans in force on this node; each says how many requests it refused here.
	Bans func() []weir.Ban
	// Banned is for View.Banned.
	Banned func(domain, rule, key string) bool
	// Outages returns the outages that this node met; nil if nothing it uses can be away.
	Outages func() []insight.Outage
	// Seeded is called with the seed by which all nodes sample.
	Seeded func(seed uint64)
	// Board holds values for all nodes; nil if this node is alone.
	Board Board
	// Leads reports whether this node does what one node does for all.
	Leads  func(ctx context.Context) bool
	Logger *slog.Logger
}

// Board keeps small values that all nodes read. Implementations are safe for concurrent use.
type Board interface {
	// Get returns a value; nil if there is none.
	Get(ctx context.Context, key string) ([]byte, error)
	// Set sets a value for a time. With once it does not replace a value.
	Set(ctx context.Context, key string, value []byte, ttl time.Duration, once bool) error
}

// Fleet implements admin.Nodes and insight.Reader. Safe for concurrent use. Make one with New
// before Options.Nodes listens.
type Fleet struct {
	*snapshot.View // the Reader
	o              Options
	began          time.Time
	bans           askedBans
	roll           roll

	unread     sparselog.Line
	unreadable atomic.Uint64 // answers
	full       sync.Once     // logs that the board does not hold all verdicts

	searching chan struct{} // holds one while this node is searched

	outages struct {
		sync.Mutex // held while other nodes are asked, so that those who ask meanwhile share the answer
		at         time.Time
		list       []insight.Outage
		nodes      insight.Nodes
	}

	mu       sync.Mutex
	asked    map[snapshot.Want]*asked // questions under way, or of a moment ago
	searches map[wanted]*search       // as well
	verdicts map[ruleID]ruleVerdicts
	board    []byte    // the verdicts that were on the board last
	taken    time.Time // since when

	shown shownNames
}

type ruleID struct {
	domain, rule string
	definition   uint64
}

// The kinds of questions.
const (
	kindState     = "state/1"
	kindDecision  = "decision/1"
	kindDecisions = "decisions/2"
	kindSnapshot  = "insight/1"
	kindRefused   = "refused/1"
	kindAsked     = "asked/1"
	kindRegions   = "regions/1"
	kindFind      = "find/1"
	kindBans      = "bans/1"
	kindOutages   = "outages/1"
)

// New returns the Fleet of this node, and makes it answer the questions of others.
func New(o Options) *Fleet {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	f := &Fleet{o: o, began: time.Now(), asked: map[snapshot.Want]*asked{}, searches: map[wanted]*search{},
		searching: make(chan struct{}, 1)}
	f.View = &snapshot.View{Ask: f.snapshot, Banned: o.Banned}
	if n := o.Nodes; n != nil {
		n.Handle(kindState, func(context.Context, []byte) ([]byte, error) { return json.Marshal(f.self()) })
		n.Handle(kindBans, f.answerBans)
		if o.Recent != nil {
			n.Handle(kindDecision, f.answerDecision)
			n.Handle(kindDecisions, f.answerDecisions)
		}
		if o.Insight != nil {
			n.Handle(kindSnapshot, f.answerSnapshot)
			n.Handle(kindRefused, f.answerRefused)
			n.Handle(kindAsked, f.answerAsked)
		}
		n.Handle(kindFind, f.answerFind)
		if o.Outages != nil {
			n.HandlePolled(kindOutages, func(context.Context, []byte) ([]byte, error) { return json.Marshal(o.Outages()) })
		}
		if o.Regions != nil {
			n.Handle(kindRegions, func(context.Context, []byte) ([]byte, error) { return json.Marshal(f.ownRegions()) })
		}
	}
	return f
}

// Unreadable returns how many answers of other nodes this one did not understand, because they run
// another version.
func (f *Fleet) Unreadable() uint64 { return f.unreadable.Load() }

// read reads an answer of another node; ok is false if this node does not understand it.
func (f *Fleet) read(a nodes.Answer, into any) (ok bool) {
	if json.Unmarshal(a.Data, into) != nil {
		f.unreadable.Add(1)
		return false
	}
	return true
}

// Self returns the name of this node, as it is shown.
func (f *Fleet) Self() string { return f.shown.of(f.o.Name) }

// self is the state of this node, with its whole name.
func (f *Fleet) self() insight.NodeState {
	s := f.o.State()
	s.Node, s.Address = f.o.Name, human.ParseNodeName(f.o.Name).Address
	return s
}

// alone is the tally if no other node is asked.
var alone = insight.Nodes{Asked: 1, Answered: 1}

func tallyOf(t nodes.Tally) insight.Nodes {
	return insight.Nodes{Asked: max(t.Asked, 1), Answered: max(t.Answered, 1), Remark: t.Remark}
}

// others asks all nodes except this one, which has answered already.
func (f *Fleet) others(ctx context.Context, kind string, args any, take func(nodes.Answer)) insight.Nodes {
	if f.o.Nodes == nil {
		return alone
	}
	var text []byte
	if args != nil {
		var err error
		if text, err = json.Marshal(args); err != nil {
			return insight.Nodes{Asked: 1, Answered: 1, Remark: err.Error()}
		}
	}
	heard := []string{f.o.Name}
	t, err := f.o.Nodes.AskOthers(ctx, kind, text, func(a nodes.Answer) {
		heard = append(heard, a.Node)
		take(a)
	})
	f.shown.note(heard, time.Now())
	if err != nil && t.Remark == "" {
		t.Remark = "only this node was asked: " + err.Error()
	}
	return tallyOf(t)
}

// List returns the state of all nodes, sorted by name.
func (f *Fleet) List(ctx context.Context) ([]insight.NodeState, insight.Nodes) {
	own := f.self()
	own.Self = true
	list := []insight.NodeState{own}
	n := f.others(ctx, kindState, nil, func(a nodes.Answer) {
		var s insight.NodeState
		if f.read(a, &s) {
			s.Node, s.Address, s.Self = a.Node, human.ParseNodeName(a.Node).Address, false
			list = append(list, s)
		}
	})
	for i := range list {
		list[i].Node = f.shown.of(list[i].Node)
	}
	slices.SortFunc(list, func(a, b insight.NodeState) int { return strings.Compare(a.Node, b.Node) })
	return list, n
}

// ownRegions returns this node's counts. Options.Regions must be set.
func (f *Fleet) ownRegions() *insight.RegionsReading {
	r := f.o.Regions()
	if r.Leader != "" {
		r.Leader = f.o.Name
	}
	return r
}

// Regions implements admin.Nodes.
func (f *Fleet) Regions(ctx context.Context) (*insight.RegionsReading, insight.Nodes) {
	if f.o.Regions == nil {
		return new(insight.RegionsReading), alone
	}
	all := f.ownRegions()
	n := f.others(ctx, kindRegions, nil, func(a nodes.Answer) {
		var r insight.RegionsReading
		if f.read(a, &r) {
			all.Add(&r)
		}
	})
	all.Leader = f.shown.of(all.Leader)
	return all, n
}

// Outages implements admin.Nodes.
func (f *Fleet) Outages(ctx context.Context) ([]insight.Outage, insight.Nodes) {
	if f.o.Outages == nil {
		return []insight.Outage{}, alone
	}
	x := &f.outages
	x.Lock()
	defer x.Unlock()
	if x.list == nil || time.Since(x.at) >= keptFor {
		lists := [][]insight.Outage{f.o.Outages()}
		x.nodes = f.others(context.WithoutCancel(ctx), kindOutages, nil, func(a nodes.Answer) {
			var list []insight.Outage
			if f.read(a, &list) {
				lists = append(lists, list)
			}
		})
		for _, list := range lists {
			for i := range list {
				for j := range list[i].Nodes {
					n := &list[i].Nodes[j]
					n.Node = f.shown.of(n.Node)
				}
			}
		}
		x.list, x.at = insight.MergeOutages(lists...), time.Now()
	}
	return slices.Clone(x.list), x.nodes
}

// foundDecision is an answer of kindDecision.
type foundDecision struct {
	Entry *recent.Entry `json:"entry"`
	Why   string        `json:"why,omitempty"`
}

func (f *Fleet) find(id weir.DecisionID) foundDecision {
	if f.o.Recent == nil {
		return foundDecision{}
	}
	if e, ok := f.o.Recent.Find(id); ok {
		e.Node = f.o.Name
		return foundDecision{Entry: &e}
	}
	return foundDecision{Why: f.o.Recent.WhyMissing(time.Now())}
}

func (f *Fleet) answerDecision(_ context.Context, args []byte) ([]byte, error) {
	var id weir.DecisionID
	if err := json.Unmarshal(args, &id); err != nil {
		return nil, err
	}
	return json.Marshal(f.find(id))
}

// Decision asks all nodes for a decision. If none of them keeps it, e is nil, and why says what is
// known about that.
func (f *Fleet) Decision(ctx context.Context, id weir.DecisionID) (e *recent.Entry, why string, n insight.Nodes) {
	own := f.find(id)
	if own.Entry != nil {
		own.Entry.Node = f.Self()
		return own.Entry, "", alone
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	why = own.Why
	n = f.others(ctx, kindDecision, id, func(a nodes.Answer) {
		var found foundDecision
		if f.read(a, &found) && found.Entry != nil && found.Entry.ID == id {
			e, why = found.Entry, ""
			cancel(nodes.ErrEnough) // only one has it, so a node that hangs need not be awaited
		}
	})
	if e != nil {
		e.Node = f.shown.of(e.Node)
		n.Asked = n.Answered // nobody is missing
	} else if n.Asked > 1 {
		why = fmt.Sprintf("%d of %d nodes were heard; %s", n.Answered, n.Asked,
			strings.Replace(why, ", or been made by another node", "", 1))
	}
	return e, why, n
}

// decisionsQuery is the question for decisions. The names are short, because a question must be
// small.
type decisionsQuery struct {
	Query recent.Query `json:"q"`
	Node  string       `json:"n,omitempty"` // only decisions of nodes of this name; "" means all nodes
	Count bool         `json:"c,omitempty"` // count them, too
}

func (f *Fleet) answerDecisions(_ context.Context, args []byte) ([]byte, error) {
	var q decisionsQuery
	if err := json.Unmarshal(args, &q); err != nil {
		return nil, err
	}
	found := f.found(q)
	for {
		text, err := json.Marshal(found)
		// Entries of one kind compress to a fifth and less.
		if err != nil || len(text) <= 4*nodes.MaxAnswer || len(found.Decisions) == 0 {
			return text, err
		}
		found.Decisions = found.Decisions[:len(found.Decisions)/2]
	}
}

// means reports whether a question that names a node, or none, is for the node with a whole name.
func means(asked, node string) bool { return asked == "" || human.ParseNodeName(node).Is(asked) }

// found returns the decisions of this node: none if another node is asked.
func (f *Fleet) found(q decisionsQuery) (found recent.Found) {
	if f.o.Recent == nil || !means(q.Node, f.o.Name) {
		return found
	}
	if q.Count {
		found = f.o.Recent.Count(q.Query)
	} else {
		found.Decisions = f.o.Recent.List(q.Query)
	}
	for i := range found.Decisions {
		found.Decisions[i].Node = f.o.Name
	}
	return found
}

// mostDecisions bounds a list of decisions for which the caller gives no bound.
const mostDecisions = 1000

// Decisions implements admin.Nodes.
func (f *Fleet) Decisions(ctx context.Context, node string, q recent.Query) ([]recent.Entry, insight.Nodes) {
	found, n := f.decisions(ctx, decisionsQuery{Query: q, Node: node})
	return found.Decisions, n
}

// CountDecisions implements admin.Nodes.
func (f *Fleet) CountDecisions(ctx context.Context, node string, q recent.Query) (recent.Found, insight.Nodes) {
	return f.decisions(ctx, decisionsQuery{Query: q, Node: node, Count: true})
}

func (f *Fleet) decisions(ctx context.Context, q decisionsQuery) (found recent.Found, n insight.Nodes) {
	if q.Query.N <= 0 || q.Query.N > mostDecisions {
		q.Query.N = mostDecisions
	}
	found = f.found(q)
	defer func() {
		for i := range found.Decisions {
			found.Decisions[i].Node = f.shown.of(found.Decisions[i].Node)
		}
	}()
	if q.Node == f.Self() {
		return found, alone
	}
	if q.Count && found.Seconds == nil {
		found.Seconds = map[int64]int{}
	}
	heard := 0
	if means(q.Node, f.o.Name) {
		heard++
	}
	n = f.others(ctx, kindDecisions, q, func(a nodes.Answer) {
		var more recent.Found
		if !means(q.Node, a.Node) || !f.read(a, &more) {
			return
		}
		heard++
		found.Decisions = append(found.Decisions, more.Decisions...)
		if !q.Count {
			return
		}
		for second, count := range more.Seconds {
			found.Seconds[second] += count
		}
	})
	if q.Node != "" { // several nodes may have one name
		n.Asked, n.Answered = max(1, heard), heard
	}
	// A stable sort: the decisions of one node are in order already.
	slices.SortStableFunc(found.Decisions, func(a, b recent.Entry) int { return b.Time.Compare(a.Time) })
	found.Decisions = found.Decisions[:min(len(found.Decisions), q.Query.N)]
	return found, n
}
