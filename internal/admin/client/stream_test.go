package client

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
)

// Streams are read as the HTML standard says, whatever a server leaves out.
func TestReadEvents(t *testing.T) {
	const stream = ": hello\nretry: 1000\n\nid: a-1\nevent: decisions\ndata: {\"x\":1}\n\n: still here\n\nid: a-2\n\ndata:one\ndata: two\n\nevent: nothing\n\nevent:e\r\ndata\r\n\r\nevent: torn\ndata: 1\n"
	var got []string
	alive := 0
	err := readEvents(strings.NewReader(stream), func() { alive++ }, func(e Event) error {
		got = append(got, fmt.Sprintf("%s|%s|%s", e.ID, e.Name, e.Data))
		return nil
	})
	if want := []string{`a-1|decisions|{"x":1}`, "||one\ntwo", "|e|"}; !slices.Equal(got, want) ||
		!errors.Is(err, ErrEnded) || alive < 15 {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	err = readEvents(strings.NewReader(stream), func() {}, func(Event) error { return io.ErrClosedPipe })
	if !errors.Is(err, ErrStopped) || !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("a reader that stops: %v", err)
	}
}
