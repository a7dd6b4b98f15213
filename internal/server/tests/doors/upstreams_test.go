package doors

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/servertest"
	"github.com/weir-rl/weir/internal/testkit/testproc"
)

const upstreams driven = "upstreams"

func upstreamFile(name string) string { return upstreams.file(name) }

// startUpstream starts a server that listens on a port of the loopback, and returns its address.
func startUpstream(t *testing.T, port string, env []string, command ...string) string {
	t.Helper()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir = t.TempDir()
	cmd.Env = append(servertest.PlainEnvironment(), env...)
	address := "127.0.0.1:" + port
	servertest.Begin(t, cmd).Listens(address)
	return address
}

// startNode starts a server on Express: PROGRAM.js EXPRESS PORT.
func startNode(t *testing.T, program, express, port string, env ...string) string {
	t.Helper()
	modules := upstreams.node(t)
	return startUpstream(t, port, append(env, "NODE_PATH="+filepath.Join(modules, "node_modules")), "node",
		upstreamFile(program+".js"), express, port)
}

// startPython starts a server on a framework for Python: PROGRAM.py FRAMEWORK PORT.
func startPython(t *testing.T, program, framework, port string, env ...string) string {
	t.Helper()
	packages := upstreams.python(t)
	return startUpstream(t, port, append(env, "PYTHONPATH="+packages), "python3", "-B", upstreamFile(program+".py"),
		framework, port)
}

// startRails starts a server on Rails, of Debian's packages: PROGRAM.rb PORT.
func startRails(t *testing.T, program, port string, env ...string) string {
	t.Helper()
	servertest.Needs(t, "rails", "puma")
	return startUpstream(t, port, append(env, "RAILS_ENV=production"), "ruby", upstreamFile(program+".rb"), port)
}

// startSpring starts a server on Spring Boot: the class of CLASS.java.
func startSpring(t *testing.T, class, port string, env ...string) string {
	t.Helper()
	classes := t.TempDir()
	path := strings.Join(append(upstreams.java(t), classes), string(filepath.ListSeparator))
	compile := exec.Command("java", "-cp", path, "org.eclipse.jdt.internal.compiler.batch.Main", "-17", "-nowarn",
		"-cp", path, "-d", classes, upstreamFile(class+".java"))
	compile.Env = testproc.JavaEnviron()
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("%s.java: %v\n%s", class, err, out)
	}
	return startUpstream(t, port, env, "java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m", "-cp", path,
		class,
		"--server.address=127.0.0.1", "--server.port="+port, "--spring.main.banner-mode=off", "--logging.level.root=error")
}
