package gather

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/weir-rl/weir/internal/observe/insight/snapshot"
	"github.com/weir-rl/weir/internal/util/pack"
)

// The history file keeps the counts over time, so that a restart does not lose them. It is a
// sequence of records: the length of the payload and its CRC-32C, 4 bytes each, little-endian, then
// the payload. Each minute appends a record with its counts. Each hour rewrites the file with
// everything that is still of use. A tail that was torn by a crash is cut off.

// historyMagic begins the file; the last byte is the version.
const historyMagic = "weir-insight\x01"

const (
	mostHistory = 64 << 20 // bytes of the file
	mostRecord  = 8 << 20
	mostPast    = 10_000 // rules and domains that are read
)

// pastName identifies a series: of a rule with its definition, or of a domain (no rule).
type pastName struct {
	domain, rule string
	definition   uint64
}

// pastSeries is the series of one of them.
type pastSeries struct {
	name  pastName
	steps []pastStep
}

// pastStep is the counts of one step of time.
type pastStep struct {
	unix, step int64
	state      minuteState // of a rule's minute
	count      snapshot.Bucket
}

// codeRecord codes a payload.
func codeRecord(c *pack.Coder, list *[]pastSeries) {
	pack.Slice(c, list, mostRecord, func(p *pastSeries) {
		c.Text(&p.name.domain)
		c.Text(&p.name.rule)
		c.Fixed(&p.name.definition)
		last := int64(0)
		pack.Slice(c, &p.steps, mostRecord, func(s *pastStep) {
			since := s.unix - last
			c.Int(&since)
			s.unix = last + since
			last = s.unix
			c.Int(&s.step)
			c.Float32(&s.state.keys)
			pack.Number(c, &s.state.topShare)
			pack.Number(c, &s.state.signal)
			s.count.Code(c)
		})
	})
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// appendRecord appends a record to b.
func appendRecord(b []byte, list []pastSeries) []byte {
	at := len(b)
	c := pack.Writer(append(b, make([]byte, 8)...))
	codeRecord(c, &list)
	b = c.Bytes()
	payload := b[at+8:]
	binary.LittleEndian.PutUint32(b[at:], uint32(len(payload)))
	binary.LittleEndian.PutUint32(b[at+4:], crc32.Checksum(payload, castagnoli))
	return b
}

// readHistory calls f for each series in the bytes of a history file. It returns how many bytes are
// good: the rest is torn, or not ours.
func readHistory(data []byte, f func(*pastSeries)) (good int) {
	if len(data) < len(historyMagic) || string(data[:len(historyMagic)]) != historyMagic {
		return 0
	}
	good = len(historyMagic)
	for {
		rest := data[good:]
		if len(rest) < 8 {
			return good
		}
		n := binary.LittleEndian.Uint32(rest)
		if n > mostRecord || int(n) > len(rest)-8 {
			return good
		}
		payload := rest[8 : 8+n]
		if crc32.Checksum(payload, castagnoli) != binary.LittleEndian.Uint32(rest[4:]) {
			return good
		}
		c := pack.Reader(payload)
		var list []pastSeries
		if codeRecord(c, &list); !c.ReadAll() {
			return good
		}
		for i := range list {
			f(&list[i])
		}
		good += 8 + int(n)
	}
}

// historyFile is the file at work. One goroutine uses it: Run.
type historyFile struct {
	path    string
	log     *slog.Logger
	file    *os.File
	size    int64
	written time.Time // anew
	failing bool      // the last write failed, and it was said so
}

// openHistory reads the file, if there is one, and prepares it for appending.
func openHistory(path string, log *slog.Logger, now time.Time, f func(*pastSeries)) (*historyFile, error) {
	h := &historyFile{path: path, log: log, written: now}
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	good := readHistory(data, f)
	if good < len(data) {
		if good == 0 {
			aside := path + ".damaged"
			if err := os.Rename(path, aside); err != nil {
				return nil, err
			}
			text := "the history file of insight is none"
			if len(data) >= len(historyMagic) && string(
				data[:len(historyMagic)-1]) == historyMagic[:len(historyMagic)-1] {
				text = "the history file of insight was written by another version, which this one does not read"
			}
			log.Warn(text+"; it was set aside, and a new one begins", "path", path, "aside", aside)
		} else {
			log.Warn("the history file of insight ended in the middle of a record; that was cut off", "path", path,
				"bytes", len(data)-good)
		}
	}
	h.file, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if good == 0 {
		if _, err = h.file.WriteAt([]byte(historyMagic), 0); err == nil {
			good = len(historyMagic)
		}
	}
	if err == nil {
		err = h.file.Truncate(int64(good))
	}
	if err != nil {
		return nil, errors.Join(err, h.file.Close())
	}
	h.size = int64(good)
	return h, nil
}

// append writes a record at the end.
func (h *historyFile) append(list []pastSeries) error {
	b := appendRecord(nil, list)
	if h.size+int64(len(b)) > mostHistory || len(b) > mostRecord {
		return fmt.Errorf("%s has %d bytes, and may have %d", h.path, h.size, mostHistory)
	}
	n, err := h.file.WriteAt(b, h.size)
	if err != nil {
		// The next record, or the next reading of the file, cuts off the part that was written.
		return fmt.Errorf("after %d bytes: %w", n, err)
	}
	h.size += int64(len(b))
	return h.file.Sync()
}

// rewrite puts a new file in the place of the old one.
func (h *historyFile) rewrite(each func(yield func([]pastSeries) error) error) error {
	temporary := h.path + ".new"
	f, err := os.OpenFile(temporary, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	next := &historyFile{path: temporary, file: f}
	if _, err = f.WriteAt([]byte(historyMagic), 0); err == nil {
		next.size = int64(len(historyMagic))
		err = each(func(list []pastSeries) error {
			b := appendRecord(nil, list)
			if next.size+int64(len(b)) > mostHistory || len(b) > mostRecord {
				return nil // the rules that come first are kept
			}
			_, err := f.WriteAt(b, next.size)
			next.size += int64(len(b))
			return err
		})
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(temporary))
	}
	// Both are closed first: Windows renames no open file, nor over one.
	_ = h.file.Close()
	if err = os.Rename(temporary, h.path); err == nil {
		h.size = next.size
	} else {
		err = errors.Join(err, os.Remove(temporary))
	}
	reopened, open := os.OpenFile(h.path, os.O_RDWR|os.O_CREATE, 0o600)
	if open == nil {
		h.file = reopened
	}
	return errors.Join(err, open)
}

// failed logs once that the file cannot be written, and once that it can be again.
func (h *historyFile) failed(err error) {
	if (err != nil) == h.failing {
		return
	}
	if h.failing = err != nil; h.failing {
		h.log.Error("the history of insight is not written; a restart will forget what comes now", "error", err)
		return
	}
	h.log.Info("the history of insight is written again", "path", h.path)
}

// rewriteEvery is how often the file is rewritten.
const rewriteEvery = time.Hour

// remember writes the counts of the minute that ended.
func (c *Collector) remember() {
	h := c.history
	if h == nil {
		return
	}
	now := c.now()
	var err error
	if now.Sub(h.written) >= rewriteEvery || h.size > mostHistory/2 && now.Sub(h.written) >= rewriteEvery/4 {
		h.written = now
		err = h.rewrite(c.eachPast)
	} else if list := c.pastMinute(now.Unix()/60*60 - 60); len(list) > 0 {
		err = h.append(list)
	}
	h.failed(err)
}

// pastMinute returns the counts of the minute that began at an instant.
func (c *Collector) pastMinute(unix int64) (list []pastSeries) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range c.domains {
		list = appendPast(list, pastName{domain: d.name}, d.series, nil, unix, unix)
	}
	for _, r := range c.counted {
		if r.series != nil {
			list = appendPast(list, pastName{r.domain, r.name, r.definition}, r.series, r.minutes, unix, unix)
		}
	}
	return list
}

// eachPast yields all that is known, one rule at a time.
func (c *Collector) eachPast(yield func([]pastSeries) error) error {
	c.mu.Lock()
	rules, now := slices.Clone(c.counted), c.now().Unix()
	var list []pastSeries
	for _, d := range c.domains {
		list = appendPast(list, pastName{domain: d.name}, d.series, nil, 0, now)
	}
	c.mu.Unlock()
	if err := yield(list); err != nil {
		return err
	}
	for _, r := range rules {
		c.mu.Lock()
		list = list[:0]
		if r.series != nil {
			list = appendPast(list, pastName{r.domain, r.name, r.definition}, r.series, r.minutes, 0, now)
		}
		c.mu.Unlock()
		if len(list) == 0 {
			continue
		}
		if err := yield(list); err != nil {
			return err
		}
	}
	return nil
}

// appendPast appends the counts of a series between two instants: by the minute as far back as
// minutes are known, and by ten minutes before.
func appendPast(list []pastSeries, name pastName, s *series, states []minuteState, from, to int64) []pastSeries {
	p := pastSeries{name: name}
	begin := (s.minute.last - int64(len(s.minute.buckets)) + 1) * 60
	begin = (begin + 599) / 600 * 600 // no step counts twice
	if from < begin {
		s.ten.each(from, min(begin-1, to), func(unix int64, b *snapshot.Bucket) {
			if *b != (snapshot.Bucket{}) {
				p.steps = append(p.steps, pastStep{unix: unix, step: 600, count: *b})
			}
		})
	}
	s.minute.each(max(from, begin), to, func(unix int64, b *snapshot.Bucket) {
		if *b == (snapshot.Bucket{}) {
			return
		}
		step := pastStep{unix: unix, step: 60, count: *b}
		if len(states) > 0 {
			step.state = states[unix/60%int64(len(states))]
		}
		p.steps = append(p.steps, step)
	})
	if len(p.steps) == 0 {
		return list
	}
	return append(list, p)
}

// Open reads the history file at a path, and keeps it up to date from then on. It must be called
// before Run, and before rules are in force. A file that is damaged from its beginning is set
// aside.
func (c *Collector) Open(path string) error {
	log := c.o.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.past = map[pastName][]pastStep{}
	oldest := c.now().Add(-snapshot.MostOver).Unix()
	h, err := openHistory(path, log, c.now(), func(p *pastSeries) {
		if _, have := c.past[p.name]; !have && len(c.past) >= mostPast {
			return
		}
		for _, s := range p.steps {
			if s.unix >= oldest && s.unix <= c.now().Unix() && (s.step == 60 || s.step == 600) {
				c.past[p.name] = append(c.past[p.name], s)
			}
		}
	})
	if err != nil {
		return fmt.Errorf("history of insight: %w", err)
	}
	c.history = h
	c.recallRule(c.commands)
	return nil
}

// recallRule follows a rule for which the history file has counts, and restores these.
func (c *Collector) recallRule(s *ruleState) {
	name := pastName{s.domain, s.name, s.definition}
	if _, known := c.past[name]; !known {
		return
	}
	if c.follow(s); s.series == nil {
		return
	}
	if begin := c.recall(name, s.series, s.minutes); begin != 0 {
		s.since = time.Unix(begin, 0)
	}
}

// recallDomain is recallRule for a domain.
func (c *Collector) recallDomain(d *domainState) {
	name := pastName{domain: d.name}
	if _, known := c.past[name]; !known {
		return
	}
	if c.followDomain(d); d.series == &noSeries {
		return
	}
	if begin := c.recall(name, d.series, nil); begin != 0 {
		d.since = begin
	}
}

// recall puts the counts of the history file into a series, and returns when they begin; 0 if there
// are none.
func (c *Collector) recall(name pastName, s *series, states []minuteState) (begin int64) {
	steps := c.past[name]
	delete(c.past, name)
	for i := range steps {
		x := &steps[i]
		if begin == 0 || x.unix < begin {
			begin = x.unix
		}
		if x.step == 60 {
			s.minute.add(x.unix, &x.count)
			if len(states) > 0 {
				states[x.unix/60%int64(len(states))] = x.state
			}
		}
		s.ten.add(x.unix, &x.count)
	}
	return begin
}

// Close writes the remaining counts, and closes the history file. Run must have ended.
func (c *Collector) Close() error {
	h := c.history
	if h == nil {
		return nil
	}
	c.history = nil
	c.gather(false)
	c.mu.Lock()
	c.count(c.now().Unix())
	c.mu.Unlock()
	err := h.rewrite(c.eachPast)
	return errors.Join(err, h.file.Close())
}
