package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir/overload"
)

// A chunk that comes at a few times the least rate does not dawdle, once its first part is there,
// though a chunk fills what it is read into.
func TestSlowChunkDawdlesNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		guard, err := overload.New(overload.Options{Fixed: 8})
		if err != nil {
			t.Fatal(err)
		}
		network, h, end := inBubble(t, nil, func(o *Options) { o.Overload, o.BodyRate = guard, 1<<10 })
		defer end()
		conn, _ := network.dial(t.Context(), "", "")
		defer conn.Close()
		answer := make(chan int, 1)
		go func() { answer <- statusOf(http.ReadResponse(bufio.NewReader(conn), nil)) }()
		const size, first, part = 128 << 10, 36 << 10, 2 << 10
		fmt.Fprintf(conn,
			"POST /upload HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 192.0.2.1\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s", size, strings.Repeat("x", first))
		dawdled := 0
		for sent := first; sent < size; sent += part { // 8 KiB a second
			time.Sleep(250 * time.Millisecond)
			if a := h.Abandoned(); a.Dawdling+a.Spare > 0 {
				dawdled++
			}
			_, _ = io.WriteString(conn, strings.Repeat("x", part))
		}
		_, _ = io.WriteString(conn, "\r\n0\r\n\r\n")
		if status := <-answer; status != 200 || dawdled > 0 {
			t.Errorf("%d; it dawdles in %d of %d looks", status, dawdled, (size-first)/part)
		}
	})
}

// An answer that is read at a few times the least rate dawdles at its first part at most.
func TestSlowlyReadAnswerDawdlesNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		guard, err := overload.New(overload.Options{Fixed: 8})
		if err != nil {
			t.Fatal(err)
		}
		network, h, end := inBubble(t, nil, func(o *Options) { o.Overload, o.BodyRate = guard, 1<<10 })
		defer end()
		h.reverse.FlushInterval = 0 // or a goroutine waits for the one that writes, by a lock
		const size, part = 256 << 10, 2 << 10
		h.reverse.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Header: http.Header{}, Request: r, ContentLength: size,
				Body: io.NopCloser(strings.NewReader(strings.Repeat("x", size)))}, nil
		})
		conn, _ := network.dial(t.Context(), "", "")
		defer conn.Close()
		go func() { _, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n") }()
		in := bufio.NewReaderSize(conn, 16)
		res, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		const first = 40 << 10
		dawdled, looks := 0, 0
		for got := 0; got < size; got += part { // 8 KiB a second
			time.Sleep(250 * time.Millisecond)
			if a := h.Abandoned(); got > first {
				if looks++; a.Dawdling+a.Spare > 0 {
					dawdled++
				}
			}
			if _, err := io.CopyN(io.Discard, res.Body, part); err != nil {
				t.Fatal(err)
			}
		}
		if dawdled > 0 {
			t.Errorf("it dawdles in %d of %d looks", dawdled, looks)
		}
	})
}
