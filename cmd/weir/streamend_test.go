package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/certtest"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/servertest"
	"github.com/weir-rl/weir/internal/testkit/testproc"
)

// streaming is a built server whose streams are read, over TCP, TLS or a unix socket.
type streaming struct {
	*servertest.Process
	dir    string
	client *http.Client // of the admin port
	admin  string       // its URL for client
	server []string     // flags of commands that ask the server
}

// startStreaming starts a server. Its admin port listens at a free port, with TLS, or at a unix
// socket.
func startStreaming(t *testing.T, over string, args ...string) *streaming {
	t.Helper()
	s := &streaming{dir: testproc.SocketDir(t)}
	servertest.WriteRules(t, filepath.Join(s.dir, "rules.yaml"),
		"domain: shop\nlimits: [{ name: login, per: [ip|user], allow: 1/day, algorithm: sliding_log }]\n")
	args = append([]string{"serve", "--rules=rules.yaml", "--listen-http=127.0.0.1:0", "--listen-grpc=off",
		"--listen-resp=off"}, args...)
	socket := filepath.Join(s.dir, "admin.sock")
	switch over {
	case "unix":
		args = append(args, "--listen-admin=unix:admin.sock")
		s.client = servertest.ClientOf(t, false, nil, func() (net.Conn, error) { return net.Dial("unix", socket) })
		s.admin, s.server = "http://weir.localhost", []string{"--server=unix:" + socket}
	case "tls":
		ca := certtest.New(t, "ca")
		names := []string{filepath.Join(s.dir, "cert.pem"), filepath.Join(s.dir, "key.pem"),
			filepath.Join(s.dir, "ca.pem")}
		cert, key := ca.Issue("weir", 0, "127.0.0.1")
		certtest.Write(t, names, cert, key, ca.PEM)
		args = append(args, "--listen-admin=127.0.0.1:0", "--tls-cert=cert.pem", "--tls-key=key.pem",
			"--tls-doors=admin")
		s.client, s.server = servertest.ClientOf(t, true, ca.Client(""), nil), []string{"--ca=" + names[2]}
	default:
		args = append(args, "--listen-admin=127.0.0.1:0")
		s.client = servertest.ClientOf(t, false, nil, nil)
	}
	cmd := exec.Command(servertest.BuiltProgram(t), args...)
	cmd.Dir = s.dir
	s.Process = servertest.Begin(t, cmd)
	switch addr := s.Addr("admin"); over {
	case "unix":
	case "tls":
		s.admin = "https://" + addr
		s.server = append(s.server, "--server="+s.admin)
	default:
		s.admin = "http://" + addr
		s.server = []string{"--server=" + s.admin}
	}
	return s
}

// refuse makes a decision of which the streams tell.
func (s *streaming) refuse(query string) {
	s.T.Helper()
	servertest.Get(s.T, "http://"+s.Addr("http")+"/api/v1/limit?"+query)
}

// reader reads a stream to its end.
type reader struct {
	text  *servertest.Output
	ended chan error // how it ended; nil is the end of a whole answer
}

// read opens a stream and reads it.
func (s *streaming) read(query string) *reader {
	s.T.Helper()
	r, err := http.NewRequestWithContext(patience.Context(s.T), "GET", s.admin+"/api/v1/stream?"+query, nil)
	if err != nil {
		s.T.Fatal(err)
	}
	answer, err := s.client.Do(r)
	if err != nil {
		s.T.Fatal(err)
	}
	s.T.Cleanup(func() { _ = answer.Body.Close() })
	if answer.StatusCode != 200 {
		s.T.Fatal(answer.Status)
	}
	x := &reader{text: servertest.NewOutput(), ended: make(chan error, 1)}
	go func() {
		_, err := io.Copy(x.text, answer.Body)
		x.ended <- err
	}()
	return x
}

// endsWell checks that a stream has ended as a whole answer does, behind a whole event.
func (x *reader) endsWell(t *testing.T, what string) {
	t.Helper()
	if err := patience.Receive(t, "the end of "+what, x.ended); err != nil {
		t.Errorf("%s was cut off: %v", what, err)
	}
	if text := x.text.String(); !strings.HasSuffix(text, "\n\n") {
		t.Errorf("%s ends within an event: %q", what, text[max(0, len(text)-200):])
	}
}

// tail starts weir tail, and waits until it has shown a decision.
func (s *streaming) tail() *servertest.Process {
	s.T.Helper()
	p := servertest.Begin(s.T, exec.Command(servertest.BuiltProgram(s.T), append([]string{"tail"}, s.server...)...))
	servertest.Eventually(s.T, "weir tail shows a decision", func() bool {
		s.refuse("ip=192.0.2.1")
		return strings.Contains(p.Stdout.String(), "shop/login")
	})
	return p
}

// TestStreamsEnd: when the server is told to end, whoever reads a stream gets a whole answer at
// once, and does not hold it up; weir tail says what happened, tries on, and ends well.
func TestStreamsEnd(t *testing.T) {
	t.Parallel()
	for _, over := range []string{"tcp", "tls", "unix"} {
		t.Run(over, func(t *testing.T) {
			t.Parallel()
			// An hour, for which no test would wait.
			s := startStreaming(t, over, "--drain=1h", "--limits-stall=1h")
			readers := map[string]*reader{"views=overview,keys": nil, "views=decisions": nil,
				"views=decisions&nodes=all": nil}
			for query := range readers {
				readers[query] = s.read(query)
			}
			tails := map[syscall.Signal]*servertest.Process{syscall.SIGTERM: s.tail(), syscall.SIGINT: s.tail()}
			for query, x := range readers {
				servertest.Eventually(t, query+" has an event", func() bool {
					s.refuse("ip=192.0.2.1")
					return strings.Contains(x.text.String(), "\ndata: ")
				})
			}
			s.Signal(syscall.SIGTERM)
			if status := s.Wait(); status != 0 || strings.Contains(s.Stderr.String(), "cut off") {
				t.Errorf("exit status %d\n%s", status, s.Stderr)
			}
			for query, x := range readers {
				x.endsWell(t, query)
			}
			for signal, p := range tails {
				p.Stderr.Await(t, regexp.QuoteMeta("weir: "+strings.TrimPrefix(s.server[len(s.server)-1], "--server=")+
					" is away, trying on: it has ended the stream\n"))
				p.Signal(signal)
				if status := p.Wait(); status != 0 {
					t.Errorf("weir tail, told to end by %s: status %d\n%s", signal, status, p.Stderr)
				}
			}
		})
	}
}

// TestStreamThatNobodyReads: a client that takes nothing of its stream holds the server up until
// the time of drain is over, and no longer; others get the end of theirs meanwhile.
func TestStreamThatNobodyReads(t *testing.T) {
	t.Parallel()
	effort.Long(t, "waits until the time of drain is over")
	s := startStreaming(t, "unix", "--drain=10s", "--limits-stall=1h")
	conn, err := net.Dial("unix", filepath.Join(s.dir, "admin.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET /api/v1/stream?views=keys,decisions&n=100 HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	x, tail := s.read("views=decisions"), s.tail()
	// A stack of the server tells that the stream waits for its client.
	waits := regexp.MustCompile(`(?s)goroutine \d+ (\S+ )*\[IO wait[^\n]*\n.*\.waitWrite\(.*\.\(\*streamed\)\.event\(`)
	var long strings.Builder // what decisions and keys are told with
	for i := range 8 {
		fmt.Fprintf(&long, "&a%d=%s", i, strings.Repeat("x", 120))
	}
	servertest.Eventually(t, "the stream waits for its client", func() bool {
		for i := range 100 {
			s.refuse(fmt.Sprintf("user=%d%s%s", i, strings.Repeat("u", 120), long.String()))
		}
		_, stacks := servertest.Ask(t, s.client, "GET", s.admin+"/debug/pprof/goroutine?debug=2", "")
		for stack := range strings.SplitSeq(stacks, "\n\n") {
			if waits.MatchString(stack) {
				return true
			}
		}
		return false
	})
	s.Signal(syscall.SIGTERM)
	x.endsWell(t, "the stream of another")
	tail.Stderr.Await(t, "is away, trying on: it has ended the stream\n")
	if status := s.Wait(); status != 0 ||
		!regexp.MustCompile(`requests were cut off" door=admin`).MatchString(s.Stderr.String()) {
		t.Errorf("exit status %d\n%s", status, s.Stderr)
	}
	rest, err := io.ReadAll(conn)
	if len(rest) == 0 || strings.HasSuffix(string(rest), "0\r\n\r\n") {
		t.Errorf("who read nothing got the end of a whole answer: %d bytes, %v", len(rest), err)
	}
}

// TestStreamsBesideSlowRequests: streams end well also where another door needs all the time of
// drain, and more.
func TestStreamsBesideSlowRequests(t *testing.T) {
	t.Parallel()
	effort.Long(t, "waits until the time of drain is over")
	arrived := make(chan struct{})
	upstream := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-r.Context().Done()
	}))
	defer upstream.Close()
	s := startStreaming(t, "tcp", "--drain=10s", "--listen-proxy=127.0.0.1:0", "--proxy-upstream="+upstream.URL)
	x, tail := s.read("views=decisions,overview"), s.tail()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, "GET", "http://"+s.Addr("proxy")+"/slow", nil)
	if err != nil {
		t.Fatal(err)
	}
	slow := make(chan string, 1)
	go func() {
		answer, err := http.DefaultClient.Do(r)
		if err == nil {
			answer.Body.Close()
			slow <- answer.Status
			return
		}
		slow <- fmt.Sprint(err)
	}()
	patience.Receive(t, "the slow request", arrived)
	s.Signal(syscall.SIGTERM)
	x.endsWell(t, "a stream")
	tail.Stderr.Await(t, "is away, trying on: it has ended the stream\n")
	status := s.Wait()
	if text := s.Stderr.String(); status != 0 || !strings.Contains(text, `requests were cut off" door=proxy`) ||
		strings.Contains(text, `cut off" door=admin`) {
		t.Errorf("exit status %d\n%s", status, text)
	}
	if answer := patience.Receive(t, "the slow answer", slow); !strings.Contains(answer, "EOF") {
		t.Errorf("the slow request got %s", answer)
	}
}
