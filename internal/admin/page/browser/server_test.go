package browser

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/testproc"
)

// builtIn is the folder of the built program; TestMain removes it.
var builtIn string

var built = sync.OnceValues(func() (string, error) {
	var err error
	if builtIn, err = os.MkdirTemp("", "weir-built-"); err != nil {
		return "", err
	}
	program := filepath.Join(builtIn, "weir")
	cmd := exec.Command("go", "build", "-o", program, "./cmd/weir")
	cmd.Dir = filepath.Join("..", "..", "..", "..")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return program, nil
})

// rules are the rules of a small shop.
const rules = `domain: shop
limits:
  - name: login-attempts
    when: { path: /login }
    per: [ip]
    allow: 5/min
    algorithm: sliding_log
  - name: search
    when: { path: /search }
    per: [ip]
    allow: 20/min
    algorithm: sliding_log
  - name: api
    per: [user]
    allow: 1000/h
  - name: api-tighter
    per: [user]
    allow: 10/min
    algorithm: sliding_log
    on_limit: shadow
  - name: legacy-import
    when: { path: /old/* }
    per: [ip]
    allow: 100/min
`

// server is a running weir. The address of its admin port stays the same when it is started anew:
// a small relay holds it.
type server struct {
	t     *testing.T
	dir   string
	args  []string
	cmd   *exec.Cmd
	relay *relay
	http  string // of the HTTP door
	resp  string // of the door that speaks the Redis protocol
	proxy string // of the proxy, where there is one
	admin string // of the relay, with http://
	token string // sent with requests of the test
}

// serve starts the program with the shop's rules, or with files of its own, by name.
func serve(t *testing.T, files map[string]string, args ...string) *server {
	t.Helper()
	s := &server{t: t, dir: t.TempDir(), args: args, relay: newRelay(t)}
	s.admin = "http://" + s.relay.listener.Addr().String()
	if files == nil {
		files = map[string]string{"rules/shop.yaml": rules}
	}
	for name, text := range files {
		path := filepath.Join(s.dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.start()
	t.Cleanup(s.kill)
	return s
}

// write replaces a file of rules as a whole: the server never sees it half written.
func (s *server) write(name, text string) {
	s.t.Helper()
	path := filepath.Join(s.dir, "rules", name)
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		s.t.Fatal(err)
	}
}

// output is what a program writes.
type output struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.all.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.all.String()
}

func (s *server) start() {
	s.t.Helper()
	program, err := built()
	if err != nil {
		s.t.Fatal(err)
	}
	out := &output{}
	s.cmd = exec.Command(program, append([]string{"serve", "--rules", "rules"}, s.args...)...)
	s.cmd.Dir = s.dir
	s.cmd.Stderr = out
	// It shares this machine with browsers, and may well be slow: it turns nobody away for that.
	s.cmd.Env = append(testproc.Environ(), "WEIR_OVERLOAD_LINE=0s", "WEIR_LISTEN_HTTP=127.0.0.1:0", "WEIR_LISTEN_GRPC=127.0.0.1:0",
		"WEIR_LISTEN_RESP=127.0.0.1:0", "WEIR_LISTEN_ADMIN=127.0.0.1:0")
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = s.cmd.Wait(); close(ended) }()
	addr := func(door string) (found string) {
		patience.Until(s.t, "the door "+door+" opens", func() bool {
			select {
			case <-ended:
				s.t.Fatalf("weir ended:\n%s", out)
			default:
			}
			m := regexp.MustCompile(`door=` + door + ` addr=(\S+)`).FindStringSubmatch(out.String())
			if m != nil {
				found = m[1]
			}
			return m != nil
		})
		return found
	}
	s.http, s.resp = "http://"+addr("http"), addr("resp")
	if slices.Contains(s.args, "--listen-proxy") {
		s.proxy = "http://" + addr("proxy")
	}
	s.relay.to(addr("admin"))
}

// kill ends the program at once.
func (s *server) kill() {
	if s.cmd != nil {
		s.relay.to("")
		_ = s.cmd.Process.Kill()
		s.cmd = nil
	}
}

// ask sends a request with attributes to the HTTP door, and returns the status and the id of a
// refusal.
func (s *server) ask(attributes ...string) (status int, decision string) {
	s.t.Helper()
	a := map[string]string{}
	for i := 0; i < len(attributes); i += 2 {
		a[attributes[i]] = attributes[i+1]
	}
	body, err := json.Marshal(map[string]any{"domain": "shop", "attributes": a})
	if err != nil {
		s.t.Fatal(err)
	}
	return s.askRaw(body)
}

func (s *server) askRaw(body []byte) (status int, decision string) {
	s.t.Helper()
	r, err := http.Post(s.http+"/api/v1/limit", "application/json", bytes.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	defer r.Body.Close()
	var answer struct{ Decision string }
	data, err := io.ReadAll(r.Body)
	if err != nil || json.Unmarshal(data, &answer) != nil {
		s.t.Fatalf("%v: %s", err, data)
	}
	return r.StatusCode, answer.Decision
}

// traffic sends what a small shop sees in a rush: clients that behave, one that guesses passwords,
// and one that reads the whole catalogue.
func (s *server) traffic() {
	s.t.Helper()
	for i := range 24 {
		user, ip := fmt.Sprintf("user-%02d", i), fmt.Sprintf("203.0.113.%d", i+1)
		for j := range 2 + i/2 {
			s.ask("method", "GET", "path", "/products/"+fmt.Sprint(j), "user", user, "ip", ip)
		}
		for range 1 + i%9 {
			s.ask("method", "GET", "path", "/search", "user", user, "ip", ip)
		}
	}
	for range 30 {
		s.ask("method", "POST", "path", "/login", "ip", "198.51.100.7")
	}
	for range 34 {
		s.ask("method", "GET", "path", "/search", "ip", "203.0.113.40", "user", "catalogue-bot")
	}
}

// throttle sends n commands that bring their limit, 5 at once in an hour, over the Redis protocol.
func (s *server) throttle(key string, n int) {
	s.t.Helper()
	c, err := net.Dial("tcp", s.resp)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := io.WriteString(c, strings.Repeat("CL.THROTTLE "+key+" 4 5 3600\r\n", n)+"QUIT\r\n"); err != nil {
		s.t.Fatal(err)
	}
	if _, err := io.ReadAll(c); err != nil {
		s.t.Fatal(err)
	}
}

// api asks the admin API, and returns the status and the body.
func (s *server) api(method, path, body string) (int, string) {
	s.t.Helper()
	r, err := http.NewRequest(method, s.admin+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	if s.token != "" {
		r.Header.Set("Authorization", "Bearer "+s.token)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(answer.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return answer.StatusCode, string(data)
}

// relay passes connections on to an address, or refuses them. It keeps its own address while the
// program behind it is another one.
type relay struct {
	listener net.Listener
	sent     atomic.Int64 // bytes, to clients
	mu       sync.Mutex
	target   string
	open     map[net.Conn]bool
}

func newRelay(t *testing.T) *relay { t.Helper(); return newRelayAt(t, "127.0.0.1") }

// newRelayAt makes a relay at an address of this machine.
func newRelayAt(t *testing.T, address string) *relay {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{listener: l, open: map[net.Conn]bool{}}
	t.Cleanup(func() { l.Close(); r.to("") })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go r.pass(c)
		}
	}()
	return r
}

// to says where connections go from now on, "" for nowhere; those that are open are closed.
func (r *relay) to(address string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.target = address
	for c := range r.open {
		c.Close()
		delete(r.open, c)
	}
}

func (r *relay) pass(c net.Conn) {
	defer c.Close()
	r.mu.Lock()
	target := r.target
	r.open[c] = true
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		delete(r.open, c)
		r.mu.Unlock()
	}()
	if target == "" {
		return
	}
	behind, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer behind.Close()
	go func() { _, _ = io.Copy(behind, c); behind.Close() }()
	_, _ = io.Copy(io.MultiWriter(c, counter{&r.sent}), behind)
}

// counter counts the bytes that are written to it.
type counter struct{ n *atomic.Int64 }

func (c counter) Write(p []byte) (int, error) {
	c.n.Add(int64(len(p)))
	return len(p), nil
}
