package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"syscall"
	"time"

	"github.com/weir-rl/weir/benchmarks/internal/processor"
)

const rules = `domain: bench
limits:
  - { name: admitted, when: { path: /admitted }, per: [user|header.x-user], allow: 1000000000/min }
  - { name: refused, when: { path: /refused }, per: [user|header.x-user], allow: 0/min }
`

// server is a weir that runs, with connections to its doors.
type server struct {
	cmd     *exec.Cmd
	dir     string
	log     *doorLog
	loaders map[string]loader
}

var doorNames = map[string]string{
	"http": "http", "post": "http", "nginx": "http", "rls": "grpc", "resp": "resp", "proxy": "proxy",
	"chunked": "proxy", "h2": "proxy",
}

// startServer starts a weir before an upstream, and waits for its doors.
func startServer(program, upstream string, procs int) (s *server, err error) {
	s = &server{loaders: map[string]loader{}, log: &doorLog{addr: map[string]string{}}}
	if s.dir, err = os.MkdirTemp("", "doorload"); err != nil {
		return nil, err
	}
	if err := os.Mkdir(filepath.Join(s.dir, "rules"), 0o700); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(s.dir, "rules", "rules.yaml"), []byte(rules), 0o600); err != nil {
		return nil, err
	}
	const any = "127.0.0.1:0"
	s.cmd = exec.Command(program, "serve", "--rules", "rules", "--proxy-upstream", "http://"+upstream,
		"--listen-proxy", any,
		"--listen-http", any, "--listen-grpc", any, "--listen-resp", any, "--listen-admin", any,
		"--client-ip-trusted-proxies", "127.0.0.1")
	s.cmd.Dir, s.cmd.Stdout, s.cmd.Stderr = s.dir, s.log, s.log
	s.cmd.Env = append(os.Environ(), fmt.Sprintf("GOMAXPROCS=%d", procs))
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	for begin := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		if s.log.open(5) { // the four doors and the admin door
			return s, nil
		}
		if time.Since(begin) > 30*time.Second {
			s.stop()
			return nil, fmt.Errorf("%s does not open its doors:\n%s", program, s.log.text())
		}
	}
}

func (s *server) stop() {
	for _, l := range s.loaders {
		l.close()
	}
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	late := time.AfterFunc(5*time.Second, func() { _ = s.cmd.Process.Kill() })
	_ = s.cmd.Wait()
	late.Stop()
	_ = os.RemoveAll(s.dir)
}

// measure sends n requests to a door, and returns the processor time for each, in µs.
func (s *server) measure(door, path string, keys, n int) (float64, error) {
	l := s.loaders[door]
	if l == nil {
		var err error
		if l, err = dialers[door](s.log.address(doorNames[door])); err != nil {
			return 0, err
		}
		s.loaders[door] = l
	}
	before, err := processor.Time(s.cmd.Process.Pid)
	if err != nil {
		return 0, err
	}
	refused, err := l.load(path, keys, n)
	if err != nil {
		return 0, err
	}
	after, err := processor.Time(s.cmd.Process.Pid)
	if err != nil {
		return 0, err
	}
	if want := map[string]int{"/admitted": 0, "/refused": n}[path]; refused != want {
		return 0, fmt.Errorf("%d of %d requests to %s were refused", refused, n, path)
	}
	return float64((after - before).Nanoseconds()) / 1e3 / float64(n), nil
}

// doorLog is a server's log, in which its doors say where they are.
type doorLog struct {
	mu   sync.Mutex
	all  bytes.Buffer
	addr map[string]string
}

var opened = regexp.MustCompile(`door=(\w+) addr=(\S+)`)

// Write implements io.Writer.
func (d *doorLog) Write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all.Write(p)
	for _, m := range opened.FindAllSubmatch(d.all.Bytes(), -1) {
		d.addr[string(m[1])] = string(m[2])
	}
	return len(p), nil
}

func (d *doorLog) open(n int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.addr) >= n
}

func (d *doorLog) address(door string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.addr[door]
}

func (d *doorLog) text() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.all.String()
}

// startUpstream serves one answer, in this process: only the proxy's time is measured.
func startUpstream() (net.Listener, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_ = answer(conn)
			}()
		}
	}()
	return l, nil
}

// answer answers each request on a connection.
func answer(conn net.Conn) error {
	r := bufio.NewReader(conn)
	for {
		req, err := http.ReadRequest(r)
		if err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, req.Body); err != nil {
			return err
		}
		if _, err := conn.Write([]byte("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello")); err != nil {
			return err
		}
	}
}

var errStatus = errors.New("unexpected status")

// refusedBy reports by an HTTP status whether a request was refused.
func refusedBy(status int) (bool, error) {
	switch status {
	case http.StatusOK:
		return false, nil
	case http.StatusTooManyRequests, http.StatusForbidden: // the latter to nginx
		return true, nil
	}
	return false, fmt.Errorf("%w %d", errStatus, status)
}
