package preview

import (
	"bytes"
	"context"
	"encoding/gob"
	"encoding/json"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/weir-rl/weir/internal/observe/insight"
)

// record is what one node recorded of the clients in the strata from Level on. All nodes with one
// Seed take the same clients, so the records of all nodes together hold each client whole.
type record struct {
	Node    string
	Seed    uint64
	Level   int
	Since   [strata]int64 // as in stratum
	First   int64         // as in ring
	Fresh   bool          // the counters began empty with First
	To      int64
	Gaps    []gap
	Changes []int64 // when other rules came into force
	Chunks  []chunk
}

// record returns what r recorded from an instant on. If that is more than most bytes, it leaves out
// the clients of further strata, and at last the older chunks. most 0 is no bound.
func (r *Recorder) record(from, most int64) *record {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drainLocked()
	r.drainLocked() // what waits to be sorted
	g := r.mu.ring
	c := &record{Seed: r.seed.Load(), Level: int(r.level.Load()), First: g.first, Fresh: r.o.Fresh, To: g.latest,
		Gaps: slices.Clone(r.mu.gaps), Changes: slices.Clone(r.mu.changes[min(1, len(r.mu.changes)):])}
	for i := c.Level; i < strata; i++ {
		c.Since[i] = g.strata[i].since
	}
	c.Chunks = g.take(c.Level, from)
	for most > 0 && c.Level < strata-1 && c.bytes() > most {
		c.Since[c.Level] = 0
		c.Level++
		c.Chunks = slices.DeleteFunc(c.Chunks, func(k chunk) bool { return k.Stratum < c.Level })
	}
	for most > 0 && c.bytes() > most {
		c.Since[c.Level] = c.Chunks[0].To + 1
		c.Chunks = c.Chunks[1:]
	}
	return c
}

func (c *record) bytes() (sum int64) {
	for i := range c.Chunks {
		sum += int64(len(c.Chunks[i].Data)) + chunkOverhead
	}
	return sum
}

// Bounds of the messages between nodes.
const (
	pageBytes  = 160 << 10 // of chunks in one answer
	mostOthers = 16 << 20  // from all other nodes
	mostOther  = 4 << 20   // from one
	mostPages  = 64        // of one node: a page may be short, since chunks are not split
	mostShown  = 2         // records that a node holds ready for others to page through
	shownFor   = time.Minute
	askAgain   = 3                      // how often a page is asked for
	mostMissed = 2                      // how often a page is asked for in vain
	pagePause  = 100 * time.Millisecond // so that there is room for other questions
)

// question asks for a page of a node's record.
type question struct {
	ID   string `json:"i"` // of one preview, which gets all pages of one state of the record
	From int64  `json:"f"`
	Most int64  `json:"m"` // bytes
	Page int    `json:"p"`
}

// page is the answer: a part of the chunks, and with the first page everything else.
type page struct {
	Record record
	Pages  int
}

// shown is a record that another node pages through.
type shown struct {
	id    string
	pages []page
}

// Answer answers a question of another node's Preview.
func (r *Recorder) Answer(_ context.Context, text []byte) ([]byte, error) {
	var q question
	if err := json.Unmarshal(text, &q); err != nil {
		return nil, err
	}
	if q.Page < 0 {
		return nil, errors.New("a record has no page before the first")
	}
	r.shown.Lock()
	defer r.shown.Unlock()
	i := slices.IndexFunc(r.shown.list, func(s shown) bool { return s.id == q.ID })
	if i < 0 {
		if q.Page > 0 {
			return nil, errors.New("the record is not held any more")
		}
		r.shown.list = append(r.shown.list, shown{q.ID,
			r.record(q.From, min(max(q.Most, pageBytes), mostOther)).pages()})
		if len(r.shown.list) > mostShown {
			r.shown.list = slices.Delete(r.shown.list, 0, 1)
		}
		time.AfterFunc(shownFor, func() { r.hide(q.ID) })
		i = len(r.shown.list) - 1
	}
	var p page
	if pages := r.shown.list[i].pages; q.Page < len(pages) {
		p = pages[q.Page]
	}
	var b bytes.Buffer
	err := gob.NewEncoder(&b).Encode(p)
	return b.Bytes(), err
}

// hide forgets a record that another node had time to page through.
func (r *Recorder) hide(id string) {
	r.shown.Lock()
	defer r.shown.Unlock()
	r.shown.list = slices.DeleteFunc(r.shown.list, func(s shown) bool { return s.id == id })
}

// pages splits a record.
func (c *record) pages() (list []page) {
	rest := c.Chunks
	for first := *c; len(list) == 0 || len(rest) > 0; first = (record{}) {
		n, sum := 0, 0
		for n < len(rest) && (n == 0 || sum+len(rest[n].Data) <= pageBytes) {
			sum += len(rest[n].Data)
			n++
		}
		first.Chunks, rest = rest[:n:n], rest[n:]
		list = append(list, page{Record: first})
	}
	for i := range list {
		list[i].Pages = len(list)
	}
	return list
}

// Ask asks all other nodes a question, and calls take for each answer until take returns true: then
// no more answers are needed.
type Ask func(ctx context.Context, question []byte, take func(node string, answer []byte) (enough bool)) insight.Nodes

// gathered are the records of all nodes that answered.
type gathered struct {
	Nodes   insight.Nodes
	Records []*record
}

// other is a node that has answered the first page.
type other struct {
	record       record
	pages, heard int
	missed       int // pages in a row that were asked for in vain
}

// gather returns the record of this node, and of the others as far as they answer, of the time that
// a query needs. window is the longest window of the rules, in µs.
func (p *Preview) gather(ctx context.Context, over time.Duration, window int64) *gathered {
	from := int64(0)
	if latest := p.recorder.latest(); over > 0 && latest > 0 {
		from = latest - over.Microseconds() - window
	}
	own := p.recorder.record(from, 0)
	all := &gathered{insight.Nodes{Asked: 1, Answered: 1}, []*record{own}}
	if p.nodes == nil {
		return all
	}
	if p.ask == nil {
		all.Nodes.Asked = max(p.nodes(), 1)
		return all
	}
	q := question{ID: strconv.FormatUint(rand.Uint64(), 36), From: from,
		Most: mostOthers / int64(max(p.nodes()-1, 1))}
	others := map[string]*other{}
	for range askAgain {
		if all.Nodes = p.page(ctx, q, own.Seed, others); len(others) > 0 || all.Nodes.Asked == 1 {
			break
		}
	}
	for range askAgain {
		for q.Page = 1; q.Page < mostPages; q.Page++ {
			if !behind(others, q.Page) {
				continue
			}
			select {
			case <-time.After(pagePause):
				p.page(ctx, q, own.Seed, others)
				for _, o := range others {
					if o.behind(q.Page) {
						o.missed++
					}
				}
			case <-ctx.Done():
			}
		}
	}
	all.Nodes.Answered = 1
	for _, name := range slices.Sorted(maps.Keys(others)) {
		if o := others[name]; o.heard == o.pages {
			all.Nodes.Answered++
			all.Records = append(all.Records, &o.record)
		}
	}
	all.Nodes.Asked = max(all.Nodes.Asked, all.Nodes.Answered)
	return all
}

// behind reports whether a page of some node is still to be asked for.
func behind(others map[string]*other, page int) bool {
	for _, o := range others {
		if o.behind(page) {
			return true
		}
	}
	return false
}

// behind reports whether the page is the node's next one, unless the node seems to have died.
func (o *other) behind(page int) bool {
	return o.heard == page && page < o.pages && o.missed < mostMissed
}

// page asks for a page.
func (p *Preview) page(ctx context.Context, q question, seed uint64, others map[string]*other) insight.Nodes {
	text, err := json.Marshal(q)
	if err != nil {
		return insight.Nodes{Asked: 1, Answered: 1, Remark: err.Error()}
	}
	return p.ask(ctx, text, func(node string, answer []byte) bool {
		var a page
		if gob.NewDecoder(bytes.NewReader(answer)).Decode(&a) != nil {
			return false // of another version
		}
		o := others[node]
		switch {
		case q.Page > 0 && o != nil && o.heard == q.Page && q.Page < o.pages:
			o.record.Chunks = append(o.record.Chunks, a.Record.Chunks...)
			o.heard++
			o.missed = 0
		case q.Page == 0 && o == nil && a.Record.Seed == seed && a.Pages > 0 && a.Pages <= mostPages:
			a.Record.Node = node
			others[node] = &other{record: a.Record, pages: a.Pages, heard: 1}
		}
		return q.Page > 0 && !behind(others, q.Page)
	})
}
