package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/weir-rl/weir/benchmarks/internal/processor"
)

// patience is how long a server may be silent.
const patience = time.Minute

// server is a weir that runs.
type server struct {
	cmd        *exec.Cmd
	log        bytes.Buffer
	http, resp string
}

// launch starts a weir in a folder, with the starter rules. Its doors need not be open yet.
func launch(program, dir string, args ...string) (*server, error) {
	s := &server{}
	var addrs [4]string
	for i := range addrs {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		addrs[i] = l.Addr().String()
		if err := l.Close(); err != nil {
			return nil, err
		}
	}
	s.http, s.resp = addrs[0], addrs[1]
	s.cmd = exec.Command(program, append([]string{
		"serve", "--listen-http", addrs[0], "--listen-resp", addrs[1],
		"--listen-grpc", addrs[2], "--listen-admin", addrs[3],
	}, args...)...)
	s.cmd.Dir, s.cmd.Stdout, s.cmd.Stderr = dir, io.Discard, &s.log
	s.cmd.Env = append(os.Environ(), "WEIR_OVERLOAD_LINE=0s") // a machine that is busy turns nothing away
	return s, s.cmd.Start()
}

// kill ends the server as a crash would.
func (s *server) kill() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

// dial connects as soon as the door is open.
func (s *server) dial(addr string) (net.Conn, error) {
	for begin := time.Now(); ; time.Sleep(200 * time.Microsecond) {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			return conn, conn.SetDeadline(time.Now().Add(patience))
		}
		if time.Since(begin) > patience {
			s.kill()
			return nil, fmt.Errorf("no door at %s: %w\n%s", addr, err, s.log.String())
		}
	}
}

// ask has one decision made over HTTP.
func (s *server) ask() error {
	conn, err := s.dial(s.http)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET /api/v1/limit?key=ada HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		return err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err == nil && !strings.Contains(line, " 200 ") {
		err = fmt.Errorf("the server answers %q", line)
	}
	return err
}

// pipeline is how many commands are sent before their answers are read.
const pipeline = 500

// charge charges the keys of some numbers, each a bucket of two once.
func (s *server) charge(from, to int) error {
	_, err := s.throttle(from, to)
	return err
}

// throttle is charge. It returns how many were refused.
func (s *server) throttle(from, to int) (refused int, err error) {
	conn, err := s.dial(s.resp)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	r := bufio.NewReader(conn)
	var b []byte
	for at := from; at < to; {
		if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
			return 0, err
		}
		b = b[:0]
		n := min(pipeline, to-at)
		for i := range n {
			b = fmt.Appendf(b, "*5\r\n$11\r\nCL.THROTTLE\r\n$16\r\nk%015d\r\n$1\r\n0\r\n$1\r\n1\r\n$5\r\n86400\r\n",
				at+i)
		}
		if _, err := conn.Write(b); err != nil {
			return 0, err
		}
		for range n {
			no, err := answer(r)
			if err != nil {
				return 0, err
			}
			if no {
				refused++
			}
		}
		at += n
	}
	return refused, nil
}

// answer reads [limited, limit, remaining, retry_after, reset_after].
func answer(r *bufio.Reader) (refused bool, err error) {
	for i := range 6 {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return false, err
		}
		if i == 0 && string(line) != "*5\r\n" {
			return false, fmt.Errorf("the server answers %q", line)
		}
		if i == 1 {
			refused = string(line) == ":1\r\n"
		}
	}
	return refused, nil
}

func (s *server) processorTime() (time.Duration, error) {
	return processor.Time(s.cmd.Process.Pid)
}

// memory is the memory of a process, in bytes.
type memory struct {
	resident, anonymous float64
	peak                float64 // the most that was resident
}

func (s *server) memory() (m memory, err error) {
	pid := s.cmd.Process.Pid
	read := func(file, name string) float64 {
		data, failed := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
		err = errors.Join(err, failed)
		for line := range strings.Lines(string(data)) {
			if words := strings.Fields(line); len(words) == 3 && words[0] == name+":" {
				n, failed := strconv.ParseFloat(words[1], 64)
				err = errors.Join(err, failed)
				return n * 1024
			}
		}
		err = errors.Join(err, fmt.Errorf("no %s in /proc/%d/%s", name, pid, file))
		return 0
	}
	m.resident, m.anonymous = read("smaps_rollup", "Rss"), read("smaps_rollup", "Anonymous")
	m.peak = read("status", "VmHWM")
	return m, err
}

// written is how many bytes the process has written, to files and connections.
func (s *server) written() (float64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", s.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if text, ok := strings.CutPrefix(line, "write_bytes: "); ok {
			return strconv.ParseFloat(strings.TrimSpace(text), 64)
		}
	}
	return 0, errors.New("no write_bytes in /proc/…/io")
}
