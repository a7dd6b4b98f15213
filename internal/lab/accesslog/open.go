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

const standardInput = "standard input"

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
// of the file itself; kept is the path of Options.Kept.
func open(path, kept string, stdin io.Reader, read *atomic.Int64) (*file, error) {
	f := &file{name: path}
	if path == "-" || path == kept {
		f.name = standardInput
	}
	var raw io.Reader = stdin
	if path != "-" {
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
	magic, _ := b.Peek(headSize)
	f.Reader = b
	unpack := ""
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(b)
		if err != nil {
			f.close()
			return nil, fmt.Errorf("%s: %w", f.name, err)
		}
		f.closer = append(f.closer, z.Close)
		f.Reader, unpack = z, "gzip -dc"
	case bytes.HasPrefix(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		// The window bounds the memory that a hostile file can ask for; 128 MiB is the window of
		// zstd --long.
		z, err := zstd.NewReader(b, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(128<<20))
		if err != nil {
			f.close()
			return nil, fmt.Errorf("%s: %w", f.name, err)
		}
		f.closer = append(f.closer, func() error { z.Close(); return nil })
		f.Reader, unpack = z, "zstd -dc"
	}
	if unpack != "" { // look at what was packed
		b = bufio.NewReaderSize(f.Reader, headSize)
		magic, _ = b.Peek(headSize)
		f.Reader = b
	}
	if err := unreadable(f.name, unpack, magic); err != nil {
		f.close()
		return nil, err
	}
	return f, nil
}

// headSize is how much of a file tells what it is.
const headSize = 512

// notText names the encoding of a text that cannot be read here; "" if there is none to name.
func notText(head []byte) string {
	switch {
	case bytes.HasPrefix(head, []byte{0xff, 0xfe}), bytes.HasPrefix(head, []byte{0xfe, 0xff}):
		return "UTF-16"
	case len(head) >= 4 && head[0] != 0 && head[1] == 0 && head[2] != 0 && head[3] == 0:
		return "UTF-16LE"
	case len(head) >= 4 && head[0] == 0 && head[1] != 0 && head[2] == 0 && head[3] != 0:
		return "UTF-16BE"
	}
	return ""
}

// packed are kinds of files that are not unpacked here: their first bytes, and a command that
// unpacks them.
var packed = []struct {
	at                   int
	magic, name, command string
}{
	{0, "\xfd7zXZ\x00", "xz", "xz -dc"},
	{4, "1AY&SY", "bzip2", "bzip2 -dc"},
	{0, "PK\x03\x04", "zip", "unzip -p"},
	{0, "7z\xbc\xaf\x27\x1c", "7z", "7z x -so"},
	{0, "\x04\x22\x4d\x18", "lz4", "lz4 -dc"},
	{0, "\x1f\x9d", "compress", "uncompress -c"},
	{0, "\x5d\x00\x00", "lzma", "xz -dc --format=lzma"},
	{257, "ustar", "tar", "tar -xOf"},
}

// unreadable returns an error that says what to do with a log whose packing or encoding is not
// supported; nil if there is nothing to say. If unpack is not empty, head is the output of that
// command.
func unreadable(name, unpack string, head []byte) error {
	file := name
	if name == standardInput {
		file = "FILE"
	}
	advice := func(command string) string {
		if unpack != "" {
			if command == "tar -xOf" {
				command = "tar -xO" // reads its standard input
			}
			return fmt.Sprintf("%s %s | %s | weir replay … -", unpack, file, command)
		}
		return fmt.Sprintf("%s %s | weir replay … -", command, file)
	}
	for _, p := range packed {
		if len(head) > p.at && bytes.HasPrefix(head[p.at:], []byte(p.magic)) {
			return fmt.Errorf("%s is packed with %s, which is not read here: unpack it, as in: %s",
				name, p.name, advice(p.command))
		}
	}
	if coding := notText(head); coding != "" {
		return fmt.Errorf("%s is written in %s, which is not read here: convert it, as in: %s",
			name, coding, advice("iconv -f "+coding+" -t UTF-8"))
	}
	return nil
}
