package accesslog

import (
	"fmt"
	"io"
	"os"
	"slices"
	"sync/atomic"
)

// Log reads one or more logs as one stream in order of time. Ties go by the order of the files,
// then by position. Files are open only while they are due, so that a year of rotated logs costs no
// more memory than a day. Not safe for concurrent use, except Progress. Make one with Open.
type Log struct {
	options Options
	stdin   io.Reader
	waiting []*part   // by first time
	active  []*part   // by index
	last    *part     // the part of the latest entry: it must be advanced first
	done    Stats     // of the files that have been read
	reading []Reading // by index
	read    atomic.Int64
	total   int64 // bytes of all files; 0 if unknown
	probing atomic.Int64
}

// Stats are the counts of reading.
type Stats struct {
	Entries int64 // lines that did parse
	Skipped int64 // lines that did not; empty ones are not counted
	Late    int64 // lines that were further out of order than allowed
	// Unused and Guessed count lines whose list was not believed, because no proxy is trusted.
	// Unused are lines whose X-Forwarded-For names others than the client, which is the peer.
	// Guessed are lines in which a list stands for the client: its left-most address was taken.
	Unused, Guessed int64
	// Faults are the first lines of each log that did not parse, up to maxFaults in all.
	Faults []Fault
	// Missing are the entries of Options.Fields, as given, whose column or key no line of any log
	// had.
	Missing []string
}

type part struct {
	path  string
	index int
	first int64
	file  *file
	ordered
	entry Entry
}

// Open opens logs; "-" is stdin. It reads the first lines of each.
func Open(paths []string, stdin io.Reader, o Options) (*Log, error) {
	if o.Reorder < 0 {
		o.Reorder = 0
	}
	specs, _, err := parseFields(o.Fields)
	if err != nil {
		return nil, err
	}
	l := &Log{options: o, stdin: stdin, reading: make([]Reading, len(paths))}
	l.done.Missing = missing(specs)
	seen := false
	known := true
	for i, path := range paths {
		p := &part{path: path, index: i}
		if path == "-" {
			if seen {
				l.Close()
				return nil, fmt.Errorf(`"-" is given twice: standard input can be read once`)
			}
			seen = true
			known = false
			if err := l.start(p); err != nil {
				l.Close()
				return nil, err
			}
			continue
		}
		info, err := os.Stat(path)
		if err != nil {
			l.Close()
			return nil, err
		}
		l.total += info.Size()
		if !info.Mode().IsRegular() {
			known = false // a pipe cannot be opened twice
			if err := l.start(p); err != nil {
				l.Close()
				return nil, err
			}
			continue
		}
		if len(paths) > 1 {
			// Find out when it begins.
			if err := l.probe(p); err != nil {
				l.Close()
				return nil, err
			}
		}
		l.waiting = append(l.waiting, p)
	}
	if !known {
		l.total = 0
	}
	for i := 1; i < len(l.waiting); i++ { // few, and mostly in order or in reverse
		for k := i; k > 0 && l.waiting[k].first < l.waiting[k-1].first; k-- {
			l.waiting[k], l.waiting[k-1] = l.waiting[k-1], l.waiting[k]
		}
	}
	// Errors of the format should show before anything is replayed.
	if len(l.active) == 0 && len(l.waiting) > 0 {
		if err := l.startNext(); err != nil {
			l.Close()
			return nil, err
		}
	}
	return l, nil
}

// probe reads the first entry of a file, and closes it again.
func (l *Log) probe(p *part) error {
	f, err := open(p.path, l.options.Kept, nil, &l.probing)
	if err != nil {
		return err
	}
	defer f.close()
	r, err := NewReader(f, l.options)
	if err != nil {
		return fmt.Errorf("%s: %w", f.name, err)
	}
	var e Entry
	if err := r.Next(&e); err != nil && err != io.EOF {
		return fmt.Errorf("%s: %w", f.name, err)
	}
	p.first = e.Time
	l.keep(p.index, f.name, r)
	return nil
}

// keep notes how a log is read.
func (l *Log) keep(index int, name string, r *Reader) {
	l.reading[index] = r.Reading()
	l.reading[index].Log = name
}

// Readings returns how the logs looked at so far are read. After Open these are all logs.
func (l *Log) Readings() []Reading {
	for _, p := range l.active {
		l.keep(p.index, p.file.name, p.r)
	}
	return slices.Clone(l.reading)
}

// start opens a part and reads its first entry.
func (l *Log) start(p *part) error {
	f, err := open(p.path, l.options.Kept, l.stdin, &l.read)
	if err != nil {
		return err
	}
	r, err := NewReader(f, l.options)
	if err != nil {
		f.close()
		return fmt.Errorf("%s: %w", f.name, err)
	}
	l.keep(p.index, f.name, r)
	p.file = f
	p.ordered = ordered{r: r, window: l.options.Reorder}
	at := len(l.active)
	for at > 0 && l.active[at-1].index > p.index {
		at--
	}
	l.active = append(l.active, nil)
	copy(l.active[at+1:], l.active[at:])
	l.active[at] = p
	return l.advance(p)
}

func (l *Log) startNext() error {
	p := l.waiting[0]
	l.waiting = l.waiting[1:]
	return l.start(p)
}

// advance reads the next entry of a part, and drops the part at its end.
func (l *Log) advance(p *part) error {
	err := p.next(&p.entry)
	if err == nil {
		return nil
	}
	if err != io.EOF {
		return fmt.Errorf("%s: after %d lines: %w", p.file.name, p.r.Entries()+p.r.Skipped(), err)
	}
	l.done.add(p)
	l.drop(p)
	return nil
}

// add adds the counts of a part.
func (s *Stats) add(p *part) {
	s.Entries += p.r.Entries()
	s.Skipped += p.r.Skipped()
	s.Late += p.late
	s.Unused += p.r.clients.unused
	s.Guessed += p.r.clients.guessed
	for _, f := range p.r.Faults() {
		if len(s.Faults) < maxFaults {
			f.Log = p.file.name
			s.Faults = append(s.Faults, f)
		}
	}
	here := p.r.Missing()
	s.Missing = slices.DeleteFunc(s.Missing, func(f string) bool { return !slices.Contains(here, f) })
}

func (l *Log) drop(p *part) {
	l.keep(p.index, p.file.name, p.r)
	p.ordered.close()
	p.file.close()
	for i, a := range l.active {
		if a == p {
			l.active = append(l.active[:i], l.active[i+1:]...)
			return
		}
	}
}

// Next returns the next entry in order of time, valid until the next call. The error is io.EOF at
// the end.
func (l *Log) Next() (*Entry, error) {
	if l.last != nil {
		p := l.last
		l.last = nil
		if err := l.advance(p); err != nil {
			return nil, err
		}
	}
	for {
		var best *part
		for _, p := range l.active {
			if best == nil || p.entry.Time < best.entry.Time {
				best = p
			}
		}
		// A file's lines may begin up to Reorder before its first one.
		if len(l.waiting) > 0 && (best == nil || l.waiting[0].first-l.options.Reorder <= best.entry.Time) {
			if err := l.startNext(); err != nil {
				return nil, err
			}
			continue
		}
		if best == nil {
			return nil, io.EOF
		}
		l.last = best
		return &best.entry, nil
	}
}

// Stats returns the counts so far, including lines that have been read and not yet handed out.
func (l *Log) Stats() Stats {
	s := l.done
	s.Faults, s.Missing = slices.Clone(s.Faults), slices.Clone(s.Missing)
	for _, p := range l.active {
		s.add(p)
	}
	return s
}

// Formats returns the formats of the logs that are being read now.
func (l *Log) Formats() []Format {
	var f []Format
	for _, p := range l.active {
		f = append(f, p.r.Format())
	}
	return f
}

// Progress returns how many bytes of the files have been read, and how many there are; total is 0
// if that is unknown. It may be called while another goroutine reads.
func (l *Log) Progress() (read, total int64) { return l.read.Load(), l.total }

// Close closes all open files.
func (l *Log) Close() {
	for len(l.active) > 0 {
		l.drop(l.active[0])
	}
	l.waiting = nil
}
