package upstream

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-rl/weir/internal/testkit/patience"
)

// pieces is a body that comes in pieces, and ends with err.
type pieces struct {
	rest []byte
	size int // of a piece
	err  error
	with bool // err comes with the last piece
}

// Read implements io.Reader.
func (b *pieces) Read(p []byte) (int, error) {
	if len(b.rest) == 0 {
		return 0, b.err
	}
	n := copy(p, b.rest[:min(len(b.rest), b.size)])
	if b.rest = b.rest[n:]; len(b.rest) == 0 && b.with {
		return n, b.err
	}
	return n, nil
}

func upload(body io.Reader, length int) (q *Request, err error) {
	q = NewRequest()
	q.Begin("POST", "shop.example", "/a")
	q.End(int64(length))
	return q, q.ReadBody(body)
}

var errTorn = errors.New("torn")

// However a large body comes, and whatever the server does meanwhile: what the server gets is the
// beginning of that one request, all of it only if the body was as long as it was said to be, and
// an answer that the server gives to all of it comes through.
func TestLargeBody(t *testing.T) {
	type got struct {
		body []byte
		err  error
	}
	serve := make(chan func(net.Conn), 1)
	l := server(t, func(conn net.Conn) { (<-serve)(conn) })
	rapid.Check(t, func(rt *rapid.T) {
		length := rapid.SampledFrom([]int{MaxBody + 1, MaxBody + sendBuffer, 2*MaxBody + sendBuffer, 300_000}).Draw(rt,
			"length")
		fault := rapid.SampledFrom([]string{"", "", "", "short", "long", "torn"}).Draw(rt, "fault")
		body := &pieces{size: rapid.SampledFrom([]int{1000, MaxBody, 1 << 20}).Draw(rt, "piece"), err: io.EOF,
			with: rapid.Bool().Draw(rt, "with")}
		size := length
		switch fault {
		case "short":
			size = rapid.IntRange(MaxBody, length-1).Draw(rt, "size")
		case "long":
			size++
		case "torn":
			size, body.err = rapid.IntRange(MaxBody, length).Draw(rt, "size"), errTorn
		}
		whole := bytes.Repeat([]byte("0123456789abcdef"), size/16+1)[:size]
		body.rest = whole
		// The server answers before it reads the body, or after all of it, or leaves in the middle.
		when := rapid.SampledFrom([]string{"first", "last", "last", "never"}).Draw(rt, "answer")
		most := int64(length)
		if when == "never" {
			most = rapid.Int64Range(0, int64(length)-1).Draw(rt, "taken")
		}
		seen := make(chan got, 1)
		client := clientOf(l)
		behave := func(conn net.Conn) {
			r, err := http.ReadRequest(newReader(conn))
			if err != nil {
				seen <- got{err: err}
				return
			}
			if when == "first" {
				_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
			}
			taken, err := io.ReadAll(io.LimitReader(r.Body, most))
			if err == nil && len(taken) < length {
				err = errors.New("left")
			}
			seen <- got{taken, err}
			if err == nil && when == "last" {
				_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
			}
		}
		q, err := upload(body, length)
		if err != nil {
			if fault == "" || size > MaxBody {
				rt.Fatalf("the first part: %v", err)
			}
			return
		}
		serve <- behave
		a, err := ask(patience.Context(t), client, q)
		q.Free()
		s := <-seen
		client.CloseIdle()
		if !bytes.HasPrefix(whole, s.body) {
			rt.Fatalf("the server got %d bytes that are not the body's", len(s.body))
		}
		switch {
		case (fault == "short" || fault == "torn" && size < length) && s.err == nil:
			rt.Errorf("%s: the server took a part for the whole", fault)
		case fault == "" && when == "last" && (err != nil || a.status != 200 || s.err != nil || len(s.body) != length):
			rt.Errorf("%d of %d bytes, %v; %d, %v", len(s.body), length, s.err, a.status, err)
		case when == "first" && fault == "" && (err != nil || a.status != 200):
			rt.Errorf("an early answer: %d, %v", a.status, err)
		case when == "never" && err == nil:
			rt.Error("an answer that nobody gave")
		case when == "last" && fault == "torn" && size < length && !errors.Is(err, errTorn):
			rt.Errorf("torn: %v", err)
		case when == "last" && fault == "short" && !errors.Is(err, io.ErrUnexpectedEOF):
			rt.Errorf("short: %v", err)
		}
	})
}

// A server that takes nothing makes the client's body wait, and not for ever. How long the client
// takes is not counted against the server.
func TestBodyWaits(t *testing.T) {
	const wait = time.Minute
	for name, pause := range map[string]time.Duration{"slow server": 0, "slow client": wait + time.Second} {
		synctest.Test(t, func(t *testing.T) {
			take := make(chan int64)
			client := &Client{HeaderTimeout: wait, Dial: func(context.Context, string, string) (net.Conn, error) {
				near, far := net.Pipe()
				go func() {
					r, err := http.ReadRequest(newReader(far))
					if err != nil {
						t.Error(err)
					}
					for n := range take {
						if n < 0 {
							_, _ = io.WriteString(far, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
							continue
						}
						if _, err := io.CopyN(io.Discard, r.Body, n); err != nil {
							t.Error(err)
						}
					}
					_, _ = io.Copy(io.Discard, far)
				}()
				return near, nil
			}}
			const length = 1 << 20
			read := 0
			source := readerFunc(func(p []byte) (int, error) {
				time.Sleep(pause)
				n := min(len(p), length-read)
				if read += n; read == length {
					return n, io.EOF
				}
				return n, nil
			})
			go func() {
				if pause == 0 { // it takes half, then nothing
					take <- length / 2
					synctest.Wait()
					if most := length/2 + readBuffer + MaxBody + sendBuffer; read > most {
						t.Errorf("%d bytes of the body were read while the server had taken %d", read, length/2)
					}
					return
				}
				take <- length // it takes all, and answers when half of the time is over
				take <- 0
				time.Sleep(wait / 2)
				take <- -1
			}()
			q, err := upload(source, length)
			if err != nil {
				t.Fatal(err)
			}
			defer q.Free()
			began := time.Now()
			a, err := ask(t.Context(), client, q)
			var late net.Error
			switch took := time.Since(began); {
			case pause > 0 && (err != nil || a.status != 200):
				t.Errorf("%s: %d, %v", name, a.status, err)
			case pause == 0 && (!errors.As(err, &late) || !late.Timeout() || took != wait):
				t.Errorf("%s: %v after %v", name, err, took)
			}
			client.CloseIdle()
			close(take)
		})
	}
}

type readerFunc func(p []byte) (int, error)

// Read implements io.Reader.
func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// The end of the context ends the sending, too, at whatever it waits.
func TestLargeBodyCancelled(t *testing.T) {
	for slow, taken := range map[string]int64{"server at first": MaxBody, "server": 2 * MaxBody, "client": MaxBody} {
		synctest.Test(t, func(t *testing.T) {
			gone := make(chan bool)
			client := &Client{HeaderTimeout: time.Hour, Dial: func(context.Context, string, string) (net.Conn, error) {
				near, far := net.Pipe()
				go func() {
					_, _ = io.CopyN(io.Discard, far, taken)
					if slow == "client" {
						_, _ = io.Copy(io.Discard, far)
					}
					time.Sleep(time.Minute)
					_, err := io.Copy(io.Discard, far)
					gone <- err == nil
				}()
				return near, nil
			}}
			ctx, cancel := context.WithCancel(t.Context())
			source, fill := io.Pipe()
			go func() {
				_, _ = io.WriteString(fill, strings.Repeat("x", MaxBody+1))
				if slow != "client" {
					_, _ = io.WriteString(fill, strings.Repeat("x", 10*MaxBody))
				}
			}()
			q, err := upload(source, 100*MaxBody)
			if err != nil {
				t.Fatal(err)
			}
			time.AfterFunc(time.Second, cancel)
			began := time.Now()
			if _, err := ask(ctx, client, q); !errors.Is(err, context.Canceled) || time.Since(began) != time.Second {
				t.Errorf("the %s is slow: %v after %v", slow, err, time.Since(began))
			}
			q.Free()
			_ = source.Close() // as the handler's server does
			<-gone
		})
	}
}
