// Package decisionlog writes decisions to a file or a stream, one line of JSON each, in the form in
// which the admin API shows them. Begin with Open.
//
// The log bounds the lines that it writes in a second and the decisions that wait to be written. It
// counts and leaves out everything beyond that: a decision never waits for the log.
package decisionlog

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/observe/recent"
	"github.com/weir-rl/weir/internal/util/sparselog"
)

// Options tune Open. One of Path and Out must be set.
type Options struct {
	// Path is the file that lines are appended to. Reopen opens it anew, for logrotate.
	Path string
	// Out is a stream in place of a file.
	Out io.Writer
	// Outcomes selects the decisions that are written.
	Outcomes recent.Outcome
	// PerSecond bounds the lines of a second; 0 means 100. As many may come at once.
	PerSecond int
	// Allowed is the share of the ordinary admitted decisions that are written too, from 0 to 1.
	Allowed float64
	// Node is the name of this node, which each line has; "" is left out.
	Node string
	// Entries encodes decisions: what it hides, the log hides too.
	Entries *recent.Buffer
	// Logger reports, at most once a minute, lines that could not be written; nil reports nothing.
	Logger *slog.Logger
}

// maxWaiting bounds the decisions that wait to be written.
const maxWaiting = 4096

// Log writes decisions. Make one with Open, and run Run beside it. Safe for concurrent use.
type Log struct {
	o        Options
	interval int64 // ns between two lines
	burst    int64 // ns that lines may be ahead of their time
	began    time.Time
	ahead    atomic.Int64 // the instant at which the bucket is full again, in ns since began

	waiting chan *[]byte
	free    sync.Pool // of *[]byte
	reopen  chan struct{}
	dropped atomic.Uint64
	remark  sparselog.Line

	out  *bufio.Writer
	held uint64   // lines in it
	file *os.File // nil of a stream
}

// Open opens the log.
func Open(o Options) (*Log, error) {
	if o.PerSecond == 0 {
		o.PerSecond = 100
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	l := &Log{
		o: o, interval: int64(time.Second) / int64(o.PerSecond), burst: int64(time.Second), began: time.Now(),
		waiting: make(chan *[]byte, maxWaiting), reopen: make(chan struct{}, 1),
	}
	l.free.New = func() any { return new([]byte) }
	if o.Path == "" {
		l.out = bufio.NewWriter(o.Out)
		return l, nil
	}
	if err := l.open(); err != nil {
		return nil, err
	}
	return l, nil
}

// open opens the file, in place of the one before.
func (l *Log) open() error {
	f, err := os.OpenFile(l.o.Path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	if l.file != nil {
		_ = l.file.Close() // what was written to it is there
	}
	l.file, l.out = f, bufio.NewWriter(f)
	return nil
}

// Hooks returns the hooks for the limiter.
func (l *Log) Hooks() weir.Hooks { return weir.Hooks{Decided: l.decided} }

// decided hands a decision to Run, if it is to be written.
func (l *Log) decided(r *weir.Request, d *weir.Decision) {
	if !l.o.Outcomes.Of(d) {
		if l.o.Allowed == 0 || recent.Special(d) || !recent.Ordinary(r, d) ||
			l.o.Allowed < 1 && rand.Float64() >= l.o.Allowed {
			return
		}
	}
	if !l.room(int64(time.Since(l.began))) {
		l.dropped.Add(1)
		return
	}
	b := l.free.Get().(*[]byte)
	*b = l.o.Entries.Append((*b)[:0], r, d)
	select {
	case l.waiting <- b:
	default:
		l.free.Put(b)
		l.dropped.Add(1)
	}
}

// room takes a token from the bucket at now, if there is one. By GCRA the state of the bucket is
// the instant at which it is full again.
func (l *Log) room(now int64) bool {
	for {
		full := l.ahead.Load()
		next := max(full, now) + l.interval
		if next-now > l.burst {
			return false
		}
		if l.ahead.CompareAndSwap(full, next) {
			return true
		}
	}
}

// Dropped returns how many decisions were left out: they exceeded the bound of a second, too many
// waited, or they could not be written.
func (l *Log) Dropped() uint64 { return l.dropped.Load() }

// Reopen makes Run open the file again, after another program has moved it away.
func (l *Log) Reopen() {
	select {
	case l.reopen <- struct{}{}:
	default: // one is on its way
	}
}

// Run writes the waiting lines until ctx ends. Then it writes the rest, and closes the file.
func (l *Log) Run(ctx context.Context) {
	for {
		select {
		case b := <-l.waiting:
			l.write(b)
		case <-l.reopen:
			l.flush()
			if l.file == nil {
				continue
			}
			if err := l.open(); err != nil {
				l.o.Logger.Error("decisions.log: the file cannot be opened anew, the one from before is written to",
					"error", err)
			}
		case <-ctx.Done():
			for {
				select {
				case b := <-l.waiting:
					l.write(b)
					continue
				default:
				}
				break
			}
			l.flush()
			if l.file != nil {
				l.failed(l.file.Close())
			}
			return
		}
	}
}

// write writes a line, and flushes the lines if no other one waits.
func (l *Log) write(b *[]byte) {
	defer l.free.Put(b)
	e, ok := recent.Decode(*b)
	if !ok {
		l.lost(1, errors.New("a decision cannot be decoded"))
		return
	}
	e.Node = l.o.Node
	line, err := json.Marshal(e)
	if err != nil {
		l.lost(1, err)
		return
	}
	l.held++
	_, err = l.out.Write(append(line, '\n'))
	l.failed(err)
	if len(l.waiting) == 0 {
		l.flush()
	}
}

func (l *Log) flush() {
	if err := l.out.Flush(); err != nil {
		l.failed(err)
	}
	l.held = 0
}

// failed counts the buffered lines as lost: at most those since the last flush. It resets the
// bufio.Writer, which would keep its first error for good.
func (l *Log) failed(err error) {
	if err == nil {
		return
	}
	if l.file != nil {
		l.out.Reset(l.file)
	} else {
		l.out.Reset(l.o.Out)
	}
	l.lost(max(l.held, 1), err)
	l.held = 0
}

// lost counts lines that could not be written, and logs that once a minute.
func (l *Log) lost(lines uint64, err error) {
	l.dropped.Add(lines)
	if n := l.remark.Due(time.Minute); n > 0 {
		l.o.Logger.Error(fmt.Sprintf("decisions.log: lines are lost (%d times): %v", n, err))
	}
}
