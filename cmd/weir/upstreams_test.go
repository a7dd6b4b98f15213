package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/testproc"
	"github.com/weir-rl/weir/internal/wheel"
)

// The servers of testdata/upstreams stand behind the proxy in the tests of paths and of fields:
// each framework has a program for either. What a start function lacks skips the test.

// packageOfUpstream has what they need, and its Debian packages.
var packageOfUpstream = map[string]string{"java": "openjdk-17-jre-headless", "node": "nodejs", "puma": "puma", "rails": "ruby-railties"}

func upstreamFile(name string) string {
	return filepath.Join(originalRoot, "cmd", "weir", "testdata", "upstreams", name)
}

// startUpstream starts a server that listens on a port of the loopback, and returns its address.
func startUpstream(t *testing.T, port string, env []string, command ...string) string {
	t.Helper()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir = t.TempDir()
	cmd.Env = append(plainEnvironment(), env...)
	address := "127.0.0.1:" + port
	begin(t, cmd).listens(address)
	return address
}

// startNode starts a server on Express: PROGRAM.js EXPRESS PORT.
func startNode(t *testing.T, program, express, port string, env ...string) string {
	t.Helper()
	needs(t, "node")
	modules := upstreamParts(t, "package-lock.json", func(dir string, _ []byte) *exec.Cmd {
		copyUpstream(t, dir, "package.json", "package-lock.json")
		cmd := exec.Command("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
		cmd.Dir = dir
		return cmd
	})
	return startUpstream(t, port, append(env, "NODE_PATH="+filepath.Join(modules, "node_modules")), "node", upstreamFile(program+".js"), express, port)
}

// startPython starts a server on a framework for Python: PROGRAM.py FRAMEWORK PORT.
func startPython(t *testing.T, program, framework, port string, env ...string) string {
	t.Helper()
	needs(t, "python3")
	packages := upstreamParts(t, "requirements.txt", func(dir string, list []byte) *exec.Cmd {
		return wheel.Install(t, dir, strings.Fields(string(list))...)
	})
	return startUpstream(t, port, append(env, "PYTHONPATH="+packages), "python3", "-B", upstreamFile(program+".py"), framework, port)
}

// startRails starts a server on Rails, of Debian's packages: PROGRAM.rb PORT.
func startRails(t *testing.T, program, port string, env ...string) string {
	t.Helper()
	needs(t, "rails", "puma")
	return startUpstream(t, port, append(env, "RAILS_ENV=production"), "ruby", upstreamFile(program+".rb"), port)
}

// startSpring starts a server on Spring Boot: the class of CLASS.java.
func startSpring(t *testing.T, class, port string, env ...string) string {
	t.Helper()
	needs(t, "java")
	data, err := os.ReadFile(upstreamFile("pom.xml"))
	if err != nil {
		t.Fatal(err)
	}
	dir := testproc.Jars(t, partsName("pom.xml", data), string(data))
	jars, err := filepath.Glob(filepath.Join(dir, "*.jar"))
	if err != nil {
		t.Fatal(err)
	}
	classes := t.TempDir()
	path := strings.Join(append(jars, classes), string(filepath.ListSeparator))
	compile := exec.Command("java", "-cp", path, "org.eclipse.jdt.internal.compiler.batch.Main", "-17", "-nowarn", "-cp", path, "-d", classes, upstreamFile(class+".java"))
	compile.Env = testproc.JavaEnviron()
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("%s.java: %v\n%s", class, err, out)
	}
	return startUpstream(t, port, env, "java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m", "-cp", path, class,
		"--server.address=127.0.0.1", "--server.port="+port, "--spring.main.banner-mode=off", "--logging.level.root=error")
}

func copyUpstream(t *testing.T, dir string, names ...string) {
	t.Helper()
	for _, name := range names {
		data, err := os.ReadFile(upstreamFile(name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// upstreamParts returns the folder with the pinned packages of a list (testproc.Parts).
func upstreamParts(t *testing.T, list string, bring func(dir string, list []byte) *exec.Cmd) string {
	t.Helper()
	data, err := os.ReadFile(upstreamFile(list))
	if err != nil {
		t.Fatal(err)
	}
	return testproc.Parts(t, partsName(list, data), func(dir string) *exec.Cmd { return bring(dir, data) })
}

// partsName names what a list of packages brings: another list brings something else.
func partsName(list string, data []byte) string {
	sum := sha256.Sum256(data)
	base, _, _ := strings.Cut(list, ".")
	return fmt.Sprintf("upstreams-%s-%s", base, hex.EncodeToString(sum[:6]))
}
