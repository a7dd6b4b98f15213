package series

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"github.com/weir-rl/weir/internal/observe/insight/snapshot"
	"github.com/weir-rl/weir/internal/util/pack"
)

// magic begins the file; the last byte is the version.
const magic = "weir-insight\x01"

const (
	mostFile   = 64 << 20 // bytes
	mostRecord = 8 << 20  // bytes
)

// Name identifies a series: of a rule with its definition, or of a domain (no rule).
type Name struct {
	Domain, Rule string
	Definition   uint64 // a hash
}

// Past is a series, or a part of one, as the file has it.
type Past struct {
	Name  Name
	Steps []Step // by time
}

// Step is the counts of one step of time that is not empty.
type Step struct {
	Unix   int64  // its beginning
	Length int64  // 60 or 600 s
	State  Minute // of a rule's minute
	Count  snapshot.Bucket
}

// Minute is what is known of a minute of a rule beside its counts.
type Minute struct {
	Keys     float32 // distinct ones, estimated
	TopShare uint8   // % of the admitted that the top 1 % of the keys took, or UnknownShare of snapshot
	Signal   uint8   // place in snapshot.Saturations + 1; 0: not saturated
}

// codeRecord codes a payload.
func codeRecord(c *pack.Coder, list *[]Past) {
	pack.Slice(c, list, mostRecord, func(p *Past) {
		c.Text(&p.Name.Domain)
		c.Text(&p.Name.Rule)
		c.Fixed(&p.Name.Definition)
		last := int64(0)
		pack.Slice(c, &p.Steps, mostRecord, func(s *Step) {
			since := s.Unix - last
			c.Int(&since)
			s.Unix = last + since
			last = s.Unix
			c.Int(&s.Length)
			c.Float32(&s.State.Keys)
			pack.Number(c, &s.State.TopShare)
			pack.Number(c, &s.State.Signal)
			s.Count.Code(c)
		})
	})
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// appendRecord appends a record to b.
func appendRecord(b []byte, list []Past) []byte {
	at := len(b)
	c := pack.Writer(append(b, make([]byte, 8)...))
	codeRecord(c, &list)
	b = c.Bytes()
	payload := b[at+8:]
	binary.LittleEndian.PutUint32(b[at:], uint32(len(payload)))
	binary.LittleEndian.PutUint32(b[at+4:], crc32.Checksum(payload, castagnoli))
	return b
}

// readRecords calls f for each series in the bytes of a history file. It returns how many bytes are
// good: the rest is torn, or not ours.
func readRecords(data []byte, f func(*Past)) (good int) {
	if len(data) < len(magic) || string(data[:len(magic)]) != magic {
		return 0
	}
	good = len(magic)
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
		var list []Past
		if codeRecord(c, &list); !c.ReadAll() {
			return good
		}
		for i := range list {
			f(&list[i])
		}
		good += 8 + int(n)
	}
}

// File keeps counts over time, so that a restart does not lose them. It is a sequence of records:
// the length of the payload and its CRC-32C, 4 bytes each, little-endian, then the payload. Each
// minute appends a record with its counts. Each hour writes the file anew with everything that is
// still of use. A tail that was torn by a crash is cut off. Not safe for concurrent use.
type File struct {
	path    string
	log     *slog.Logger
	file    *os.File
	size    int64
	written time.Time // anew
	failing bool      // the last write failed, and it was said so
}

// Open reads the file at a path, if there is one, calls f for each Past in it, and prepares it for
// appending. A file that is damaged from its beginning, or of another version, is set aside.
func Open(path string, log *slog.Logger, now time.Time, f func(*Past)) (*File, error) {
	h := &File{path: path, log: log, written: now}
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	good := readRecords(data, f)
	if good < len(data) {
		if good == 0 {
			aside := path + ".damaged"
			if err := os.Rename(path, aside); err != nil {
				return nil, err
			}
			text := "the history file of insight is none"
			if len(data) >= len(magic) && string(
				data[:len(magic)-1]) == magic[:len(magic)-1] {
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
		if _, err = h.file.WriteAt([]byte(magic), 0); err == nil {
			good = len(magic)
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

// Keep appends the minute that ended or, once an hour, writes the file anew with all that is known,
// which each yields in parts. It logs once that this fails, and once that it works again.
func (h *File) Keep(now time.Time, minute func() []Past, each func(yield func([]Past) error) error) {
	var err error
	since := now.Sub(h.written)
	if since >= rewriteEvery || h.size > mostFile/2 && since >= rewriteEvery/4 {
		h.written = now
		err = h.rewrite(each)
	} else if list := minute(); len(list) > 0 {
		err = h.append(list)
	}
	h.failed(err)
}

// Close writes the file anew with all that is known, which each yields in parts, and closes it.
func (h *File) Close(each func(yield func([]Past) error) error) error {
	err := h.rewrite(each)
	return errors.Join(err, h.file.Close())
}

// append writes a record at the end.
func (h *File) append(list []Past) error {
	b := appendRecord(nil, list)
	if h.size+int64(len(b)) > mostFile || len(b) > mostRecord {
		return fmt.Errorf("%s has %d bytes, and may have %d", h.path, h.size, mostFile)
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
func (h *File) rewrite(each func(yield func([]Past) error) error) error {
	temporary := h.path + ".new"
	f, err := os.OpenFile(temporary, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	next := &File{path: temporary, file: f}
	if _, err = f.WriteAt([]byte(magic), 0); err == nil {
		next.size = int64(len(magic))
		err = each(func(list []Past) error {
			b := appendRecord(nil, list)
			if next.size+int64(len(b)) > mostFile || len(b) > mostRecord {
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
func (h *File) failed(err error) {
	if (err != nil) == h.failing {
		return
	}
	if h.failing = err != nil; h.failing {
		h.log.Error("the history of insight is not written; a restart will forget what comes now", "error", err)
		return
	}
	h.log.Info("the history of insight is written again", "path", h.path)
}

// rewriteEvery is how often the file is written anew.
const rewriteEvery = time.Hour
