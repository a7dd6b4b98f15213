package preview

import (
	"encoding/gob"
	"encoding/json"
	"fmt"
	"io"
	"sync"

	"github.com/weir-rl/weir/internal/observe/insight"
)

// The protocol between a server and the process that replays for it.
//
// The process begins with the version of the protocol. The server writes the task and, once the
// rules are loaded and their tests were run, the plan and each of its chunks. It uses encoding/gob,
// because texts and chunks are arbitrary bytes. The process writes lines of JSON. Its input stays
// open as long as the server wants the result.

// wireVersion changes with the messages and with their effect: if the program on the disk was
// replaced, the new one must not replay for the old one.
const wireVersion = 4

// said is a line from the process. It has one of the fields.
type said struct {
	Version  int                      `json:"version,omitempty"`  // the first line
	Progress *insight.PreviewProgress `json:"progress,omitempty"` // any number
	Window   *int64                   `json:"window,omitempty"`   // µs, for which a plan is wanted; one
	Result   *insight.PreviewResult   `json:"result,omitempty"`   // the last line, if not
	Error    string                   `json:"error,omitempty"`
}

// mostSaid bounds the output of the process, in bytes: it has room for one line for each of 100,000
// rules.
const mostSaid = 128 << 20

// lines writes lines. Safe for concurrent use.
type lines struct {
	mu  sync.Mutex
	out *json.Encoder
}

func newLines(w io.Writer) *lines {
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	return &lines{out: out}
}

func (l *lines) say(s said) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out.Encode(s)
}

// sentPlan is a plan without its chunks, which follow one by one, so that neither side holds all of
// them twice.
type sentPlan struct {
	Level           int
	From, Count, To int64
	Requests        uint64
	Short           bool
	Gaps            [][2]int64
	Changes         int
	Names           map[string]sentNames // by domain
	Chunks          []int                // how many there are of each list
}

type sentNames struct {
	All  bool
	List []string
}

type sentChunk struct {
	Data           []byte
	From, To       int64
	Requests, Size int
}

func sendPlan(e *gob.Encoder, p *plan) error {
	s := sentPlan{Level: p.level, From: p.from, Count: p.count, To: p.to, Requests: p.requests, Short: p.short,
		Changes: p.changes}
	for _, g := range p.gaps {
		s.Gaps = append(s.Gaps, [2]int64{g.from, g.to})
	}
	if p.names != nil {
		s.Names = map[string]sentNames{}
		for domain, of := range p.names.domains {
			names := sentNames{All: of.all}
			for _, n := range of.list {
				names.List = append(names.List, n.name)
			}
			s.Names[domain] = names
		}
	}
	for _, list := range p.chunks {
		s.Chunks = append(s.Chunks, len(list))
	}
	if err := e.Encode(s); err != nil {
		return err
	}
	for _, list := range p.chunks {
		for _, c := range list {
			if err := e.Encode(sentChunk{c.data, c.from, c.to, c.requests, c.size}); err != nil {
				return err
			}
		}
	}
	return nil
}

func receivePlan(d *gob.Decoder) (*plan, error) {
	var s sentPlan
	if err := d.Decode(&s); err != nil {
		return nil, err
	}
	if s.Level < 0 || s.Level >= strata {
		return nil, fmt.Errorf("the plan has clients of the level %d", s.Level)
	}
	p := &plan{level: s.Level, from: s.From, count: s.Count, to: s.To, requests: s.Requests, short: s.Short,
		changes: s.Changes}
	for _, g := range s.Gaps {
		p.gaps = append(p.gaps, gap{g[0], g[1]})
	}
	if s.Names != nil {
		p.names = &names{domains: map[string]*domainNames{}}
		for domain, of := range s.Names {
			n := &domainNames{all: of.All}
			for _, name := range of.List {
				n.list = append(n.list, attributeName{name: name})
			}
			p.names.domains[domain] = n
		}
	}
	for _, n := range s.Chunks {
		var list []chunk
		for range n {
			var c sentChunk
			if err := d.Decode(&c); err != nil {
				return nil, err
			}
			list = append(list, chunk{data: c.Data, from: c.From, to: c.To, requests: c.Requests, size: c.Size})
		}
		p.chunks = append(p.chunks, list)
	}
	return p, nil
}
