package accesslog

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"sync/atomic"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// file is an opened log. It counts the bytes as stored, and yields them uncompressed.
type file struct {
	name   string
	closer []func() error
	io.Reader
}

func (f *file) close() {
	for i := len(f.closer) - 1; i >= 0; i-- {
		f.closer[i]()
	}
}

// counter counts the bytes that are read through it.
type counter struct {
	r io.Reader
	n *atomic.Int64
}

func (c counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// open opens a log file, or stdin as "-", and unpacks it by its first bytes. read counts the bytes
// of the file itself.
func open(path string, stdin io.Reader, read *atomic.Int64) (*file, error) {
	f := &file{name: path}
	var raw io.Reader = stdin
	if path == "-" {
		f.name = "standard input"
	} else {
		h, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		if info, err := h.Stat(); err == nil && info.IsDir() {
			h.Close()
			return nil, fmt.Errorf("%s is a folder: name the log files in it", path)
		}
		f.closer = append(f.closer, h.Close)
		raw = h
	}
	b := bufio.NewReaderSize(counter{raw, read}, 128<<10)
	magic, _ := b.Peek(4)
	f.Reader = b
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(b)
		if err != nil {
			f.close()
			return nil, fmt.Errorf("%s: %w", f.name, err)
		}
		f.closer = append(f.closer, z.Close)
		f.Reader = z
	case bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		// The window bounds the memory that a hostile file can ask for; 128 MiB is the window of
		// zstd --long.
		z, err := zstd.NewReader(b, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(128<<20))
		if err != nil {
			f.close()
			return nil, fmt.Errorf("%s: %w", f.name, err)
		}
		f.closer = append(f.closer, func() error { z.Close(); return nil })
		f.Reader = z
	}
	return f, nil
}
