package audit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/weir-rl/weir/internal/util/atomicfile"
)

// tailBytes is how much of the end of a file is read first, to find its last records.
const tailBytes = 256 << 10

// disk has the methods of *os.File that a file needs.
type disk interface {
	io.WriteCloser
	Sync() error
	Truncate(size int64) error
}

// file is the open file of a Log. It is not safe for concurrent use.
type file struct {
	f       disk
	info    os.FileInfo
	regular bool
	size    int64 // of whole records
	torn    bool  // bytes behind size must be cut first
}

// tail is the end of a file.
type tail struct {
	entries []Entry // the last ones, oldest first
	torn    int64   // bytes that were cut
	broken  string  // why the chain breaks within the tail; "" if it does not
}

// openFile opens or creates a file, cuts a torn last line, and reads the last records.
func openFile(path string) (*file, tail, error) {
	_, err := os.Lstat(path)
	created := errors.Is(err, os.ErrNotExist)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, tail{}, err
	}
	out, t, err := adopt(f, created)
	if err != nil {
		_ = f.Close()
		return nil, tail{}, fmt.Errorf("%s: %w", path, err)
	}
	return out, t, nil
}

func adopt(f *os.File, created bool) (*file, tail, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, tail{}, err
	}
	out := &file{f: f, info: info, regular: info.Mode().IsRegular(), size: info.Size()}
	if !out.regular {
		return out, tail{}, nil
	}
	if err := lock(f); err != nil {
		return nil, tail{}, err
	}
	if created { // its name must outlive a crash, too
		if err := atomicfile.SyncFolder(filepath.Dir(f.Name())); err != nil {
			return nil, tail{}, err
		}
	}
	t, err := readTail(f, out.size)
	if err != nil {
		return nil, tail{}, err
	}
	if t.torn > 0 {
		out.size -= t.torn
		if err := f.Truncate(out.size); err != nil {
			return nil, tail{}, err
		}
	}
	return out, t, nil
}

// readTail reads the last records of a file. It reads from the end, and doubles the length until it
// has a whole record.
func readTail(f io.ReaderAt, size int64) (t tail, err error) {
	for most := int64(tailBytes); size > 0; most *= 2 {
		data := make([]byte, min(most, size))
		if _, err := f.ReadAt(data, size-int64(len(data))); err != nil {
			return t, err
		}
		whole := int64(len(data)) == size
		end := bytes.LastIndexByte(data, '\n') + 1
		begin := 0
		if !whole {
			begin = bytes.IndexByte(data, '\n') + 1
		}
		if end <= begin && !whole {
			continue
		}
		t.torn = int64(len(data) - end)
		for line := range bytes.Lines(data[begin:end]) {
			e, err := unseal(bytes.TrimSuffix(line, []byte("\n")))
			switch n := len(t.entries); {
			case err != nil:
				t.broken, t.entries = "a record "+err.Error(), nil // the chain restarts behind it
				continue
			case n > 0 && t.entries[n-1].Hash != e.Prev:
				t.broken = fmt.Sprintf("record %d does not follow %d", e.Seq, t.entries[n-1].Seq)
			}
			t.entries = append(t.entries, e)
		}
		t.entries = t.entries[max(0, len(t.entries)-Remembered):]
		return t, nil
	}
	return t, nil
}

// append writes a line, and waits until it is on the disk. After an error the file is unchanged, or
// will be restored before the next line is written.
func (f *file) append(line []byte) error {
	if f.torn {
		if err := f.f.Truncate(f.size); err != nil {
			return err
		}
		f.torn = false
	}
	_, err := f.f.Write(line)
	if err == nil && f.regular {
		err = f.f.Sync()
	}
	if err == nil {
		f.size += int64(len(line))
		return nil
	}
	if f.regular {
		f.torn = f.f.Truncate(f.size) != nil
	}
	return err
}

// isAt reports whether f is the file at path.
func (f *file) isAt(path string) bool {
	info, err := os.Stat(path)
	return err == nil && os.SameFile(f.info, info)
}

func (f *file) close() error { return f.f.Close() }
