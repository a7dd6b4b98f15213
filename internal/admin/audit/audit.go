// Package audit keeps who changed what, when and why, so that neither a full disk nor a hasty
// operator can make a change without a trace.
//
// A Log appends records to a file, one JSON object a line. Each record carries its own hash and the
// hash of the record before it (package hashchain). Verify checks that they fit together, and with
// a hash that was noted elsewhere that nothing was changed up to there. Record writes a record to
// the disk before the change is made; if that fails, the change is forbidden. Tell keeps changes
// that nobody made by hand, such as bans by denials, without waiting. Count adds up frequent ones,
// and keeps one record a minute. Begin with Open (audit.go); record.go has the form of a record,
// and file.go opens and extends the file.
//
// One goroutine owns the file. Only Record waits for the disk, and no longer than its context
// lasts.
package audit

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir/internal/util/hashchain"
)

// Entry is one record. The caller fills in what it knows. The Log fills in Seq, Time, Node, Prev
// and Hash.
type Entry struct {
	Seq     uint64    `json:"seq"` // 1, 2, 3, …
	Time    time.Time `json:"time"`
	Who     string    `json:"who"`               // the name of a token; Weir: no person did it
	Role    string    `json:"role,omitempty"`    // of the token
	Address string    `json:"address,omitempty"` // of the client
	What    string    `json:"what"`              // ban set, key reset, rules in force, …
	Domain  string    `json:"domain,omitempty"`
	Limit   string    `json:"limit,omitempty"` // a rule, or a window of it
	Key     string    `json:"key,omitempty"`   // for people: user=ada
	Before  any       `json:"before,omitempty"`
	After   any       `json:"after,omitempty"`
	Note    string    `json:"note,omitempty"` // the reason given
	Node    string    `json:"node,omitempty"`
	Prev    string    `json:"prev"` // Hash of the record before; Start of the first one
	// Hash is the SHA-256 of the record as it is written, from its first byte up to the one before
	// `,"hash":`, in hexadecimal.
	Hash string `json:"hash,omitempty"`
}

// Weir is Entry.Who if the program acted by itself.
const Weir = "weir"

// Start is Entry.Prev of the first record of a chain.
var Start = hashchain.Start

// ErrNotKept says that a record is not on the disk. The change that it describes must not be made.
var ErrNotKept = errors.New("the audit log cannot be written")

// Bounds of a Log.
const (
	// Remembered is how many records Recent knows.
	Remembered = 1000
	// waiting bounds the records that wait for the disk.
	waiting = 1024
	// countEvery is how often counts are written.
	countEvery = time.Minute
	// mostCounts bounds the number of separate counts.
	mostCounts = 1000
)

// Options tune Open.
type Options struct {
	// Path is the file. With "" there is no file, and only the log and Recent know of changes. If
	// Path is no regular file, such as a pipe, it is written to and never read.
	Path string
	Node string // Entry.Node of all records
	// Logger gets each record as a line, with its number and hash. This is a witness in another
	// place, which shows if the end of the file was cut off. nil means nobody.
	Logger *slog.Logger
}

// Log is an audit log. Make one with Open. Safe for concurrent use; nil keeps nothing and forbids
// nothing.
type Log struct {
	o     Options
	jobs  chan *job
	hup   chan chan error
	end   chan struct{} // closed by Close
	ended chan struct{} // closed when the file is
	begun sync.Once     // the goroutine runs

	chain hashchain.Chain // of the goroutine
	file  *file           // of the goroutine; nil without Path
	err   error           // of closing

	lost atomic.Uint64 // records that could not be kept, since the last one that was

	mu struct {
		sync.Mutex
		recent []Entry // oldest first
		closed bool
	}
	counts struct {
		sync.Mutex
		of map[counted]*count
	}
}

// counted identifies a count by the fields of its entries.
type counted struct{ who, role, address, what, domain, limit, key string }

// count is how often something happened, with the state before the first time and after the last.
type count struct {
	times         uint64
	before, after any
}

// job is a record on its way to the disk.
type job struct {
	e     Entry
	state atomic.Uint32
	done  chan error // nil: nobody waits
}

// The states of a job. A job whose caller has gone is skipped while it waits. If it is being
// written, a second record says that the change was not made.
const (
	queued uint32 = iota
	writing
	written
	abandoned
)

// Open opens or creates the file of o, and reads its last records. It cuts off a last line that a
// crash has torn: nobody was told that this record was kept.
func Open(o Options) (*Log, error) {
	l, err := Prepare(o)
	if err == nil {
		l.Begin(o.Node)
	}
	return l, err
}

// ErrTaken is the error of Open and Prepare if another program has the file.
var ErrTaken = errors.New("another program writes its audit log there; give each its own file")

// Prepare is Open for a program that does not know the name of its node yet. It owns the file from
// now on, and records wait for Begin.
func Prepare(o Options) (*Log, error) {
	l := newLog(o)
	if o.Path != "" {
		f, tail, err := openFile(o.Path)
		if err != nil {
			return nil, err
		}
		l.file = f
		l.follow(tail)
	}
	return l, nil
}

// Begin writes the waiting records and all later ones, with node as Entry.Node. Only the first call
// counts.
func (l *Log) Begin(node string) {
	if l == nil {
		return
	}
	l.begun.Do(func() {
		l.o.Node = node
		go l.run()
	})
}

func newLog(o Options) *Log {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	l := &Log{
		o: o, jobs: make(chan *job, waiting), hup: make(chan chan error), end: make(chan struct{}), ended: make(chan struct{}),
		chain: hashchain.Chain{Hash: Start},
	}
	l.counts.of = map[counted]*count{}
	return l
}

// follow continues the chain at the end of a file.
func (l *Log) follow(t tail) {
	l.mu.Lock()
	l.mu.recent = t.entries
	l.mu.Unlock()
	if n := len(t.entries); n > 0 {
		l.chain.Number, l.chain.Hash = t.entries[n-1].Seq, t.entries[n-1].Hash
	}
	if t.broken != "" {
		l.o.Logger.Error("the audit log was altered; records go on behind that", "path", l.o.Path, "error", t.broken)
	}
	if t.torn > 0 {
		l.queue(Entry{Who: Weir, What: "torn record cut", After: map[string]int64{"bytes": t.torn},
			Note: "the program or the machine ended while it was written"})
	}
}

// Record writes e, and returns when it is on the disk. The caller makes the change after that. An
// error is ErrNotKept, with a reason: then the change must not be made.
//
// If ctx ends before the record is written, it is left out. If ctx ends while the disk hangs, the
// record may still be written; a second record behind it then says that the change was not made.
func (l *Log) Record(ctx context.Context, e Entry) error {
	if l == nil {
		return nil
	}
	j := &job{e: e, done: make(chan error, 1)}
	select {
	case <-l.end:
		return fmt.Errorf("%w: it is closed", ErrNotKept)
	default:
	}
	select {
	case l.jobs <- j:
	case <-l.ended:
		return fmt.Errorf("%w: it is closed", ErrNotKept)
	case <-ctx.Done():
		return fmt.Errorf("%w: too many records wait for it", ErrNotKept)
	}
	select {
	case err := <-j.done:
		return err
	case <-l.ended:
		select {
		case err := <-j.done:
			return err
		default:
			return fmt.Errorf("%w: it is closed", ErrNotKept)
		}
	case <-ctx.Done():
		if !j.state.CompareAndSwap(queued, abandoned) && !j.state.CompareAndSwap(writing, abandoned) {
			return <-j.done // it was answered just now
		}
		return fmt.Errorf("%w: the disk is too slow", ErrNotKept)
	}
}

// Tell writes e soon, and never waits. It is for changes that were made already, or that may be
// made without a record. A record that cannot be written is counted, and the next one that can be
// says how many there were.
func (l *Log) Tell(e Entry) {
	if l != nil {
		l.queue(e)
	}
}

func (l *Log) queue(e Entry) {
	select {
	case l.jobs <- &job{e: e}:
	default:
		l.lost.Add(1)
	}
}

// Failed writes that a change was not made, or not completed, after Record has written e.
func (l *Log) Failed(e Entry, err error) {
	e.What, e.Note = e.What+": failed", err.Error()
	l.Tell(e)
}

// Count counts changes that are frequent and may be made without a record. Once a minute it writes
// one record for all entries with the same Who, Role, Address, What, Domain, Limit and Key. The
// record has Before of the first entry, After of the last, and their number. Count may be called on
// the deciding path.
func (l *Log) Count(e Entry) {
	if l == nil {
		return
	}
	id := counted{e.Who, e.Role, e.Address, e.What, e.Domain, e.Limit, e.Key}
	l.counts.Lock()
	defer l.counts.Unlock()
	c := l.counts.of[id]
	if c == nil {
		if len(l.counts.of) >= mostCounts {
			id = counted{what: e.What} // all others
		}
		if c = l.counts.of[id]; c == nil {
			c = &count{before: e.Before}
			l.counts.of[id] = c
		}
	}
	c.times++
	c.after = e.After
}

// Recent returns at most n of the last records that were kept, newest first: those with a Seq above
// after and, unless before is 0, below before. Only the file has more than Remembered records.
func (l *Log) Recent(after, before uint64, n int) []Entry {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []Entry
	for i := len(l.mu.recent) - 1; i >= 0 && len(out) < n; i-- {
		if e := l.mu.recent[i]; e.Seq > after && (before == 0 || e.Seq < before) {
			out = append(out, e)
		}
	}
	return out
}

// Lost returns how many records could not be kept, and are not accounted for yet.
func (l *Log) Lost() uint64 {
	if l == nil {
		return 0
	}
	return l.lost.Load()
}

// Reopen opens the file by its path again, after it was moved away. The chain goes on in the new
// file. After an error, records go to the old file.
func (l *Log) Reopen() error {
	if l == nil || l.o.Path == "" {
		return nil
	}
	answer := make(chan error, 1)
	select {
	case l.hup <- answer:
		return <-answer
	case <-l.ended:
		return errors.New("the audit log is closed")
	}
}

// Close writes the waiting records, and closes the file.
func (l *Log) Close() error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	if !l.mu.closed {
		l.mu.closed = true
		close(l.end)
	}
	l.mu.Unlock()
	l.Begin(l.o.Node) // of a program that ends before: what waits is kept all the same
	<-l.ended
	return l.err
}

// run owns the file.
func (l *Log) run() {
	defer close(l.ended)
	tick := time.NewTicker(countEvery)
	defer tick.Stop()
	for {
		select {
		case j := <-l.jobs:
			l.work(j)
		case <-tick.C:
			l.tellCounts()
		case answer := <-l.hup:
			answer <- l.reopen()
		case <-l.end:
			for {
				select {
				case j := <-l.jobs:
					l.work(j)
					continue
				default:
				}
				break
			}
			l.tellCounts()
			if l.file != nil {
				l.err = l.file.close()
			}
			return
		}
	}
}

// work writes one record, and tells the caller that waits for it.
func (l *Log) work(j *job) {
	if !j.state.CompareAndSwap(queued, writing) {
		return
	}
	l.tellLost()
	err := l.keep(j.e)
	if j.done == nil {
		if err != nil {
			l.lost.Add(1)
		}
		return
	}
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrNotKept, err)
	}
	if j.state.CompareAndSwap(writing, written) {
		j.done <- err
		return
	}
	if err == nil { // nobody waited so long
		e := j.e
		e.What, e.Note = e.What+": failed", "not made, since the audit log was too slow"
		if l.keep(e) != nil {
			l.lost.Add(1)
		}
	}
}

// tellLost writes a record about the records that were lost.
func (l *Log) tellLost() {
	if n := l.lost.Load(); n > 0 {
		if l.keep(Entry{Who: Weir, What: "records lost", After: map[string]uint64{"records": n}}) == nil {
			l.lost.Add(-n)
		}
	}
}

// Times is Entry.After in the record of a count.
type Times struct {
	Times uint64 `json:"times"`
	Last  any    `json:"last,omitempty"` // Entry.After of the last one
}

// tellCounts writes the records of the counts since the last call.
func (l *Log) tellCounts() {
	l.counts.Lock()
	all := l.counts.of
	l.counts.of = map[counted]*count{}
	l.counts.Unlock()
	ids := slices.SortedFunc(maps.Keys(all), func(a, b counted) int {
		return cmp.Or(cmp.Compare(a.what, b.what), cmp.Compare(a.domain, b.domain), cmp.Compare(a.limit, b.limit),
			cmp.Compare(a.key, b.key), cmp.Compare(a.who, b.who), cmp.Compare(a.address, b.address))
	})
	for _, id := range ids {
		c := all[id]
		e := Entry{
			Who: id.who, Role: id.role, Address: id.address, What: id.what, Domain: id.domain, Limit: id.limit,
			Key:    id.key,
			Before: c.before, After: Times{c.times, c.after},
		}
		if l.keep(e) != nil {
			l.lost.Add(1)
		}
	}
}

// keep writes one record to the file and the log, and remembers it.
func (l *Log) keep(e Entry) error {
	e.Seq, e.Time, e.Node, e.Prev = l.chain.Number+1, time.Now().UTC(), l.o.Node, l.chain.Hash
	line, err := e.seal()
	if err == nil && l.file != nil {
		err = l.file.append(line)
	}
	if err != nil {
		l.o.Logger.Error("the audit log was not written", append(e.attributes(), "error", err)...)
		return err
	}
	l.chain.Number, l.chain.Hash = e.Seq, e.Hash
	l.o.Logger.Info("audit: "+e.What, e.attributes()...)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.recent = append(l.mu.recent, e); len(l.mu.recent) >= 2*Remembered {
		l.mu.recent = slices.Clone(l.mu.recent[len(l.mu.recent)-Remembered:])
	}
	return nil
}

// attributes returns the attributes of the log line for e.
func (e *Entry) attributes() []any {
	var list []any
	for _, a := range []struct{ name, value string }{
		{"who", e.Who}, {"role", e.Role}, {"peer", e.Address}, {"domain", e.Domain}, {"limit", e.Limit}, {"key", e.Key},
		{"reason", e.Note},
	} {
		if a.value != "" {
			list = append(list, a.name, a.value)
		}
	}
	for _, a := range []struct {
		name  string
		value any
	}{{"before", e.Before}, {"after", e.After}} {
		if a.value != nil {
			text, _ := json.Marshal(a.value) // it was put into JSON before
			list = append(list, a.name, string(text))
		}
	}
	return append(list, "seq", e.Seq, "hash", e.Hash)
}

// reopen opens the file by its path, and closes the old one. It does nothing if they are the same.
func (l *Log) reopen() error {
	if l.file.isAt(l.o.Path) {
		return nil
	}
	f, t, err := openFile(l.o.Path)
	if err != nil {
		l.o.Logger.Error("the audit log was not opened anew; records go to the file from before", "path", l.o.Path,
			"error", err)
		return err
	}
	before, old := l.chain, l.file
	if n := len(t.entries); n > 0 && t.entries[n-1].Hash != before.Hash {
		// Somebody has put another log there. Its chain goes on, as after a start.
		l.o.Logger.Warn("the audit log was replaced by another one", "path", l.o.Path, "hash_before", before.Hash)
		l.follow(t)
	} else if t.torn > 0 {
		l.queue(Entry{Who: Weir, What: "torn record cut", After: map[string]int64{"bytes": t.torn}})
	}
	l.file = f
	return old.close()
}
