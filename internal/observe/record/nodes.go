package record

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
	Record Record
	Pages  int
}

// shown is a record that another node pages through.
type shown struct {
	id    string
	pages []page
}

// Answer answers a question of another node's Gather.
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
func (c *Record) pages() (list []page) {
	rest := c.Chunks
	for first := *c; len(list) == 0 || len(rest) > 0; first = (Record{}) {
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

// Others are the other nodes. The zero value says that there are none.
type Others struct {
	Nodes func() int // how many nodes there are, with this one; nil: it is alone
	Ask   Ask        // asks them; Recorder.Answer answers. nil: they cannot be asked
}

// Gathered are the records of all nodes that answered, this node's first.
type Gathered struct {
	Nodes   insight.Nodes
	Records []*Record
}

// other is a node that has answered the first page.
type other struct {
	record       Record
	pages, heard int
	missed       int // pages in a row that were asked for in vain
}

// Gather returns the record of this node, and of the others as far as they answer, since so long
// before the latest request; back 0 is all of it.
func (r *Recorder) Gather(ctx context.Context, o Others, back time.Duration) *Gathered {
	from := int64(0)
	if latest := r.latest(); back > 0 && latest > 0 {
		from = latest - back.Microseconds()
	}
	own := r.record(from, 0)
	all := &Gathered{insight.Nodes{Asked: 1, Answered: 1}, []*Record{own}}
	if o.Nodes == nil {
		return all
	}
	if o.Ask == nil {
		all.Nodes.Asked = max(o.Nodes(), 1)
		return all
	}
	q := question{ID: strconv.FormatUint(rand.Uint64(), 36), From: from,
		Most: mostOthers / int64(max(o.Nodes()-1, 1))}
	others := map[string]*other{}
	for range askAgain {
		if all.Nodes = o.page(ctx, q, own.Seed, others); len(others) > 0 || all.Nodes.Asked == 1 {
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
				o.page(ctx, q, own.Seed, others)
				for _, one := range others {
					if one.behind(q.Page) {
						one.missed++
					}
				}
			case <-ctx.Done():
			}
		}
	}
	all.Nodes.Answered = 1
	for _, name := range slices.Sorted(maps.Keys(others)) {
		if one := others[name]; one.heard == one.pages {
			all.Nodes.Answered++
			all.Records = append(all.Records, &one.record)
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
func (o Others) page(ctx context.Context, q question, seed uint64, others map[string]*other) insight.Nodes {
	text, err := json.Marshal(q)
	if err != nil {
		return insight.Nodes{Asked: 1, Answered: 1, Remark: err.Error()}
	}
	return o.Ask(ctx, text, func(node string, answer []byte) bool {
		var a page
		if gob.NewDecoder(bytes.NewReader(answer)).Decode(&a) != nil {
			return false // of another version
		}
		one := others[node]
		switch {
		case q.Page > 0 && one != nil && one.heard == q.Page && q.Page < one.pages:
			one.record.Chunks = append(one.record.Chunks, a.Record.Chunks...)
			one.heard++
			one.missed = 0
		case q.Page == 0 && one == nil && a.Record.Seed == seed && a.Pages > 0 && a.Pages <= mostPages:
			a.Record.Node = node
			others[node] = &other{record: a.Record, pages: a.Pages, heard: 1}
		}
		return q.Page > 0 && !behind(others, q.Page)
	})
}
