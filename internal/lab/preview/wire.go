package preview

import (
	"encoding/gob"
	"encoding/json"
	"errors"
	"io"
	"sync"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/record"
)

// The protocol between a server and the process that replays for it.
//
// The process begins with the version of the protocol. The server writes the task and, once the
// rules are loaded and their tests were run, the records. It uses encoding/gob, because texts and
// chunks are arbitrary bytes. The process writes lines of JSON. Its input stays
// open as long as the server wants the result.

// wireVersion changes with the messages and with their effect: if the program on the disk was
// replaced, the new one must not replay for the old one.
const wireVersion = 7

// said is a line from the process. It has one of the fields.
type said struct {
	Version  int                      `json:"version,omitempty"`  // the first line
	Progress *insight.PreviewProgress `json:"progress,omitempty"` // any number
	Window   *int64                   `json:"window,omitempty"`   // µs, for which records are wanted; one
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

// send sends records: each chunk by itself, so that no side holds all of them twice.
func send(e *gob.Encoder, g *record.Gathered) error {
	if err := e.Encode(sent{g.Nodes, len(g.Records)}); err != nil {
		return err
	}
	for _, r := range g.Records {
		head := *r
		head.Chunks = nil
		if err := errors.Join(e.Encode(head), e.Encode(len(r.Chunks))); err != nil {
			return err
		}
		for i := range r.Chunks {
			if err := e.Encode(&r.Chunks[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// sent is what comes before the records.
type sent struct {
	Nodes   insight.Nodes
	Records int
}

// receive is the inverse of send.
func receive(d *gob.Decoder) (*record.Gathered, error) {
	var head sent
	if err := d.Decode(&head); err != nil {
		return nil, err
	}
	g := &record.Gathered{Nodes: head.Nodes}
	for range head.Records {
		r, chunks := new(record.Record), 0
		if err := errors.Join(d.Decode(r), d.Decode(&chunks)); err != nil {
			return nil, err
		}
		for range chunks {
			var c record.Chunk
			if err := d.Decode(&c); err != nil {
				return nil, err
			}
			r.Chunks = append(r.Chunks, c)
		}
		g.Records = append(g.Records, r)
	}
	return g, nil
}
