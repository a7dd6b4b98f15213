package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	ratelimitpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// loader sends requests to one door of one server, over connections that stay. Its own cost does
// not matter: only the server's processor time is compared.
type loader interface {
	// load sends n requests of so many keys, and returns how many were refused.
	load(path string, keys, n int) (refused int, err error)
	close()
}

// clients is how many send at a time, patience how long a server may be silent.
const (
	clients  = 4
	patience = 30 * time.Second
)

var dialers = map[string]func(addr string) (loader, error){
	"http":    func(addr string) (loader, error) { return dialAll(addr, httpQuestion, httpAnswer) },
	"post":    func(addr string) (loader, error) { return dialAll(addr, postQuestion, httpAnswer) },
	"nginx":   func(addr string) (loader, error) { return dialAll(addr, nginxQuestion, httpAnswer) },
	"rls":     dialRLS,
	"resp":    func(addr string) (loader, error) { return dialAll(addr, respQuestion, respAnswer) },
	"proxy":   func(addr string) (loader, error) { return dialAll(addr, proxyQuestion, httpAnswer) },
	"chunked": func(addr string) (loader, error) { return dialAll(addr, chunkedQuestion, httpAnswer) },
	"h2":      dialH2,
}

func key(i int) string { return fmt.Sprintf("key-%012d", i) }

// wire is a loader that writes requests as they go over the wire, one at a time on each connection.
type wire struct {
	conns    []net.Conn
	readers  []*bufio.Reader
	question func(path, key string) string
	answer   func(r *bufio.Reader) (refused bool, err error)
}

func dialAll(addr string, question func(path, key string) string,
	answer func(*bufio.Reader) (bool, error)) (loader, error) {
	w := &wire{question: question, answer: answer}
	for range clients {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			w.close()
			return nil, err
		}
		w.conns, w.readers = append(w.conns, conn), append(w.readers, bufio.NewReader(conn))
	}
	return w, nil
}

func (w *wire) close() {
	for _, conn := range w.conns {
		_ = conn.Close()
	}
}

func (w *wire) load(path string, keys, n int) (int, error) {
	questions := make([][]byte, keys)
	for i := range questions {
		questions[i] = []byte(w.question(path, key(i)))
	}
	return each(n, func(client, i int) (bool, error) {
		conn := w.conns[client]
		if i < clients {
			if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
				return false, err
			}
		}
		if _, err := conn.Write(questions[i%keys]); err != nil {
			return false, err
		}
		return w.answer(w.readers[client])
	})
}

// each asks n times, from several goroutines.
func each(n int, ask func(client, i int) (refused bool, err error)) (int, error) {
	var refused atomic.Int64
	errs := make([]error, clients)
	var all sync.WaitGroup
	for client := range clients {
		all.Go(func() {
			for i := client; i < n; i += clients {
				no, err := ask(client, i)
				if err != nil {
					errs[client] = err
					return
				}
				if no {
					refused.Add(1)
				}
			}
		})
	}
	all.Wait()
	return int(refused.Load()), errors.Join(errs...)
}

func httpQuestion(path, key string) string {
	return "GET /api/v1/limit?path=" + path + "&user=" + key + " HTTP/1.1\r\nHost: localhost\r\n\r\n"
}

// postQuestion asks the decision API with a body, as most programs do.
func postQuestion(path, key string) string {
	body := `{"domain": "bench", "attributes": {"user": "` + key + `", "path": "` + path + `"}, "hits": 1}`
	return fmt.Sprintf("POST /api/v1/limit HTTP/1.1\r\nHost: localhost\r\nUser-Agent: doorload\r\nAccept: */*\r\n"+
		"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

// nginxQuestion is a check of forward auth, as nginx sends it for a browser.
func nginxQuestion(path, key string) string {
	return "GET /api/v1/forward-auth/nginx HTTP/1.1\r\nHost: shop.example\r\nX-Original-Method: GET\r\nX-Original-URI: " + path +
		"\r\nX-Forwarded-For: 192.0.2.1\r\nX-User: " + key +
		"\r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64) doorload\r\n" +
		"Accept: text/html,application/xhtml+xml\r\nAccept-Language: en\r\nAccept-Encoding: gzip\r\n\r\n"
}

func proxyQuestion(path, key string) string {
	return "GET " + path + " HTTP/1.1\r\nHost: shop.example\r\nUser-Agent: doorload\r\nAccept: */*\r\nX-User: " + key +
		"\r\n\r\n"
}

// chunkedQuestion is an upload of 10 KiB through the proxy, whose length is not said before.
func chunkedQuestion(path, key string) string {
	const half = 5 << 10
	chunk := fmt.Sprintf("%x\r\n%s\r\n", half, strings.Repeat("x", half))
	return "POST " + path + " HTTP/1.1\r\nHost: shop.example\r\nUser-Agent: doorload\r\nAccept: */*\r\nX-User: " + key +
		"\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk + chunk + "0\r\n\r\n"
}

func httpAnswer(r *bufio.Reader) (bool, error) {
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		return false, err
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return false, err
	}
	return refusedBy(resp.StatusCode)
}

func respQuestion(path, key string) string {
	words := []string{"WEIR.LIMIT", "bench", "1", "path", path, "user", key}
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(words))
	for _, w := range words {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(w), w)
	}
	return b.String()
}

// respAnswer reads [allowed, limit, remaining, retry_after, reset_after, [names]].
func respAnswer(r *bufio.Reader) (bool, error) {
	line := func() (string, error) {
		s, err := r.ReadString('\n')
		return strings.TrimSpace(s), err
	}
	var lines []string
	for range 7 { // the array, five numbers, and the array of names
		s, err := line()
		if err != nil {
			return false, err
		}
		if len(s) < 2 || s[0] != '*' && s[0] != ':' {
			return false, fmt.Errorf("the server answers %q", s)
		}
		lines = append(lines, s)
	}
	names, err := strconv.Atoi(lines[6][1:])
	if err != nil {
		return false, err
	}
	for range 2 * names {
		if _, err := line(); err != nil {
			return false, err
		}
	}
	return lines[1] == ":0", nil
}

// rls is a loader over gRPC.
type rls struct {
	conns []*grpc.ClientConn
}

func dialRLS(addr string) (loader, error) {
	l := &rls{}
	for range clients {
		conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			l.close()
			return nil, err
		}
		l.conns = append(l.conns, conn)
	}
	return l, nil
}

func (l *rls) close() {
	for _, conn := range l.conns {
		_ = conn.Close()
	}
}

func (l *rls) load(path string, keys, n int) (int, error) {
	requests := make([]*rlspb.RateLimitRequest, keys)
	for i := range requests {
		requests[i] = &rlspb.RateLimitRequest{Domain: "bench", Descriptors: []*ratelimitpb.RateLimitDescriptor{{
			Entries: []*ratelimitpb.RateLimitDescriptor_Entry{{Key: "path", Value: path}, {Key: "user", Value: key(i)}},
		}}}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return each(n, func(client, i int) (bool, error) {
		answer, err := rlspb.NewRateLimitServiceClient(l.conns[client]).ShouldRateLimit(ctx, requests[i%keys])
		if err != nil {
			return false, err
		}
		return answer.OverallCode == rlspb.RateLimitResponse_OVER_LIMIT, nil
	})
}

// h2 is a loader that asks the proxy over HTTP/2, without TLS.
type h2 struct {
	base    string
	clients []*http.Client
}

func dialH2(addr string) (loader, error) {
	l := &h2{base: "http://" + addr}
	for range clients {
		var protocols http.Protocols
		protocols.SetUnencryptedHTTP2(true)
		l.clients = append(l.clients,
			&http.Client{Timeout: patience, Transport: &http.Transport{Protocols: &protocols}})
	}
	return l, nil
}

func (l *h2) close() {
	for _, c := range l.clients {
		c.CloseIdleConnections()
	}
}

func (l *h2) load(path string, keys, n int) (int, error) {
	return each(n, func(client, i int) (bool, error) {
		req, err := http.NewRequest(http.MethodGet, l.base+path, nil)
		if err != nil {
			return false, err
		}
		req.Header.Set("X-User", key(i%keys))
		resp, err := l.clients[client].Do(req)
		if err != nil {
			return false, err
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			return false, err
		}
		return refusedBy(resp.StatusCode)
	})
}
