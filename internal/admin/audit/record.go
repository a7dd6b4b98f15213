package audit

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/weir-rl/weir/internal/util/hashchain"
)

// The end of a line holds the hash, which covers everything before it.
const (
	hashOpens  = `,"hash":"`
	hashCloses = `"}`
	hashLength = len(hashOpens) + 64 + len(hashCloses)
)

// seal computes the hash of e, and returns its line.
func (e *Entry) seal() ([]byte, error) {
	e.Hash = ""
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(e); err != nil {
		return nil, err
	}
	text := bytes.TrimSuffix(bytes.TrimSuffix(b.Bytes(), []byte("\n")), []byte("}"))
	e.Hash = hashchain.Sum(text)
	return append(text, hashOpens+e.Hash+hashCloses+"\n"...), nil
}

// unseal reads a line without its line break, and checks its hash.
func unseal(line []byte) (e Entry, err error) {
	at := len(line) - hashLength
	if at < 0 || !bytes.HasPrefix(line[at:], []byte(hashOpens)) || !bytes.HasSuffix(line, []byte(hashCloses)) {
		return e, errors.New("is no record")
	}
	if err := json.Unmarshal(line, &e); err != nil {
		return e, errors.New("is no record")
	}
	if e.Hash != hashchain.Sum(line[:at]) {
		return e, errors.New("was altered: its hash does not fit its text")
	}
	return e, nil
}

// Summary is the result of Verify.
type Summary struct {
	Records     uint64
	First, Last uint64    // Entry.Seq
	From, To    time.Time // Entry.Time of the first and the last record
	// Prev is the hash before the first record: Start, or the Hash of the file before this one.
	// Hash is the hash of the last record.
	Prev, Hash string
	// Upto is the Entry.Seq of the record with the noted hash: the records up to it are as they
	// were when that was noted. It is 0 if no record has that hash.
	Upto uint64
}

// BrokenError says where a chain breaks.
type BrokenError struct {
	Line    uint64 // from 1
	Message string
}

func (e *BrokenError) Error() string { return fmt.Sprintf("line %d %s", e.Line, e.Message) }

// Verify reads the records of a file, and checks that each has the hash of its text and follows the
// one before it. after is the Hash at the end of the file before this one; "" accepts any. noted is
// the Hash of a record as it was noted elsewhere, such as in the program's log; "" is none. Without
// these two, a file that was cut at either end passes, and so does a chain that was computed anew.
//
// The error is a BrokenError at the first line where the chain breaks, or an error of reading. The
// summary covers the lines before it. An empty file has no records, and is no error.
func Verify(r io.Reader, after, noted string) (s Summary, err error) {
	lines := bufio.NewReaderSize(r, 64<<10)
	c := hashchain.Chain{Hash: after, Noted: noted}
	s.Prev, s.Hash = after, after
	for n := uint64(1); ; n++ {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF && len(line) == 0 {
			return s, nil
		}
		if err == io.EOF {
			return s, &BrokenError{n, "was torn off: it has no end"}
		}
		if err != nil {
			return s, err
		}
		e, err := unseal(bytes.TrimSuffix(line, []byte("\n")))
		if err == nil {
			err = c.Follow(e.Seq, e.Prev, e.Hash)
		}
		if err != nil {
			return s, &BrokenError{n, err.Error()}
		}
		if s.Records == 0 {
			s.Prev, s.First, s.From = e.Prev, e.Seq, e.Time
		}
		s.Records, s.Last, s.To, s.Hash, s.Upto = s.Records+1, e.Seq, e.Time, e.Hash, c.Upto
	}
}
