package cassandratest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/certtest"
	"github.com/weir-rl/weir/internal/testkit/testproc"
)

// instance is a server with its data, whether it runs or not.
type instance struct {
	server   *testproc.Server
	host     string
	port     int     // for clients; other servers connect to testproc.Beyond it
	quick    bool    // the start is to be quick
	member   *member // nil: it is alone
	dir      string
	java     string
	jars     string
	reserved []net.PacketConn
	started  bool // it has answered once
}

// member is a server's knowledge of its cluster.
type member struct {
	centre string
	first  bool
	seed   string // the address of the first one
	token  int64  // where its part of the ring ends
}

func newInstance(t testing.TB, options []string) *instance {
	t.Helper()
	port, reserved, err := testproc.Reserve(true)
	if err != nil {
		t.Fatal(err)
	}
	i := &instance{host: "127.0.0.1", port: port, reserved: reserved}
	i.prepare(t, options)
	return i
}

// prepare writes the server's files.
func (i *instance) prepare(t testing.TB, options []string) {
	t.Helper()
	i.java, i.jars = java(t), jars(t)
	var err error
	// The folder outlives the first test that needs the server.
	if i.dir, err = os.MkdirTemp("", "cassandratest"); err != nil {
		t.Fatal(err)
	}
	i.server = &testproc.Server{Name: "Cassandra " + i.addr(), Dir: i.dir, Command: i.command, Answers: i.answers}
	if err := checkMount(i.dir); err != nil {
		i.remove()
		t.Skip(err)
	}
	i.write(t, "logback.xml", logback)
	i.certify(t)
	i.configure(t, options)
}

// addr is where clients find it.
func (i *instance) addr() string { return net.JoinHostPort(i.host, strconv.Itoa(i.port)) }

func (i *instance) file(name string) string { return filepath.Join(i.dir, name) }

func (i *instance) write(t testing.TB, name, text string) {
	t.Helper()
	if err := os.WriteFile(i.file(name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

const logback = `<configuration>
  <appender name="OUT" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%date{HH:mm:ss.SSS} %level %logger{20} %msg%n</pattern></encoder>
  </appender>
  <logger name="org.apache.cassandra.service.StartupChecks" level="ERROR"/>
  <root level="WARN"><appender-ref ref="OUT"/></root>
</configuration>
`

// certify writes a certificate for the server, and its authority's certificate.
func (i *instance) certify(t testing.TB) {
	t.Helper()
	authority := certtest.New(t, "Weir test CA")
	authority.Write(i.file("ca.pem"))
	authority.IssueTo(i.file("cert.pem"), i.file("key.pem"))
	var both []byte
	for _, name := range []string{"key.pem", "cert.pem"} {
		text, err := os.ReadFile(i.file(name))
		if err != nil {
			t.Fatal(err)
		}
		both = append(both, text...)
	}
	i.write(t, "server.pem", string(both))
}

// patient are the settings of a server alone: a machine that is busy, or asleep, makes no request
// fail.
var patient = []string{
	"read_request_timeout: 10m",
	"range_request_timeout: 10m",
	"write_request_timeout: 10m",
	"cas_contention_timeout: 10m",
	"request_timeout: 10m",
	"native_transport_timeout: 10m",
}

// strict are the settings that make it ask for a password.
var strict = []string{
	"authenticator: PasswordAuthenticator",
	"authorizer: CassandraAuthorizer",
	"role_manager: CassandraRoleManager",
	// Clients that connect often need not wait for the digest of their password each time.
	"credentials_validity: 1h",
	"roles_validity: 1h",
	"permissions_validity: 1h",
}

// configure writes cassandra.yaml.
func (i *instance) configure(t testing.TB, options []string) {
	t.Helper()
	storage := i.port + testproc.Beyond
	centre, seed := "dc1", net.JoinHostPort(i.host, strconv.Itoa(storage))
	if m := i.member; m != nil {
		// The passwords would lie on one of the servers, without which nobody could log in.
		options = append(options, fmt.Sprint("initial_token: ", m.token), "auto_bootstrap: false")
		centre, seed = m.centre, m.seed
	} else {
		options = slices.Concat(options, patient, strict)
	}
	i.write(t, "cassandra.yaml", strings.Join(append([]string{
		"cluster_name: weir",
		"num_tokens: 1",
		"partitioner: org.apache.cassandra.dht.Murmur3Partitioner",
		"endpoint_snitch: GossipingPropertyFileSnitch",
		"seed_provider:",
		"  - class_name: org.apache.cassandra.locator.SimpleSeedProvider",
		"    parameters:",
		fmt.Sprintf("      - seeds: %q", seed),
		"listen_address: " + i.host,
		"rpc_address: " + i.host,
		fmt.Sprint("native_transport_port: ", i.port),
		fmt.Sprint("storage_port: ", storage),
		"client_encryption_options:",
		"  enabled: true",
		"  optional: true",
		"  ssl_context_factory:",
		"    class_name: org.apache.cassandra.security.PEMBasedSslContextFactory",
		"  keystore: " + i.file("server.pem"),
		// With periodic, which is the default, a server that is killed loses the last 100 ms.
		"commitlog_sync: batch",
		"commitlog_segment_size: 4MiB",
		"auto_snapshot: false",
		"data_file_directories: [" + i.file("data") + "]",
		"commitlog_directory: " + i.file("commitlog"),
		"saved_caches_directory: " + i.file("caches"),
		"hints_directory: " + i.file("hints"),
		"cdc_raw_directory: " + i.file("cdc"),
	}, options...), "\n")+"\n")
	i.write(t, "cassandra-rackdc.properties", "dc="+centre+"\nrack=rack1\n")
}

// opened are the packages of Java that Cassandra's own start script opens.
var opened = []string{
	"java.base/java.io", "java.base/java.lang", "java.base/java.lang.module", "java.base/java.lang.ref",
	"java.base/java.lang.reflect",
	"java.base/java.nio", "java.base/java.util", "java.base/java.util.concurrent",
	"java.base/java.util.concurrent.atomic",
	"java.base/jdk.internal.loader", "java.base/jdk.internal.math", "java.base/jdk.internal.misc",
	"java.base/jdk.internal.module",
	"java.base/jdk.internal.ref", "java.base/jdk.internal.reflect", "java.base/jdk.internal.util.jar",
	"java.base/sun.nio.ch",
	"java.management.rmi/com.sun.jmx.remote.internal.rmi", "java.rmi/sun.rmi.registry", "java.rmi/sun.rmi.server",
	"java.rmi/sun.rmi.transport.tcp", "java.sql/java.sql", "jdk.management/com.sun.management.internal",
	"jdk.unsupported/sun.misc",
}

// launch starts the server and waits until it answers.
func (i *instance) launch(t testing.TB) {
	t.Helper()
	i.begin(t)
	i.await(t)
}

// begin starts the server.
func (i *instance) begin(t testing.TB) {
	t.Helper()
	if err := os.MkdirAll(i.file("tmp"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := i.server.Begin(); err != nil {
		t.Fatal(err)
	}
}

// await waits until the server lets User in.
func (i *instance) await(t testing.TB) {
	t.Helper()
	if err := i.server.Await(t); err != nil {
		if !i.started && i.server.Ended() {
			t.Skipf("Cassandra does not start here: %v\n%s", err, i.server.Tail())
		}
		t.Fatal(err)
	}
	i.started = true
}

// answers asks the server to let User in. Nobody listens before its start is complete.
func (i *instance) answers() error {
	c, err := net.DialTimeout("tcp", i.addr(), time.Second)
	if err != nil {
		return err
	}
	_ = c.Close()
	session, err := i.session(10 * time.Second)
	if err == nil {
		session.Close()
	}
	return err
}

// ringDelay is how long at most the server looks for others that it has to find; the first one of a
// cluster finds none.
func (i *instance) ringDelay() time.Duration {
	if i.member != nil && !i.member.first {
		return 5 * time.Minute
	}
	return time.Millisecond
}

// command returns the command of a run.
func (i *instance) command() *exec.Cmd {
	args := []string{
		"-Xms128m", "-Xmx512m", "-Xss512k", "-XX:+UseSerialGC", "-XX:-UsePerfData",
		"-Djava.io.tmpdir=" + i.file("tmp"),
		"-Dlogback.configurationFile=" + i.file("logback.xml"),
		"-Dcassandra.config=file://" + i.file("cassandra.yaml"),
		"-Dcassandra-rackdc.properties=file://" + i.file("cassandra-rackdc.properties"),
		"-Dcassandra.storagedir=" + i.dir,
		fmt.Sprint("-Dcassandra.ring_delay_ms=", i.ringDelay().Milliseconds()),
		"-Dcassandra.skip_wait_for_gossip_to_settle=0",
		"-Dcassandra.superuser_setup_delay_ms=0",
		"-Djdk.attach.allowAttachSelf=true",
		"-Dio.netty.tryReflectionSetAccessible=true",
	}
	if i.quick {
		args = append(args, "-XX:TieredStopAtLevel=1")
	}
	for _, name := range opened {
		args = append(args, "--add-exports", name+"=ALL-UNNAMED", "--add-opens", name+"=ALL-UNNAMED")
	}
	args = append(args, "-cp", filepath.Join(i.jars, "*"), "org.apache.cassandra.service.CassandraDaemon")
	// Cassandra 4.1 measures its memory by an agent, without which it needs Java 11.
	if agents, _ := filepath.Glob(filepath.Join(i.jars, "jamm-0.3.*.jar")); len(agents) == 1 {
		args = append([]string{"-javaagent:" + agents[0]}, args...)
	}
	cmd := exec.Command(i.java, args...)
	cmd.Env = testproc.JavaEnviron()
	return cmd
}

// remove ends the server and deletes its data.
func (i *instance) remove() {
	i.server.Kill()
	testproc.Release(i.reserved)
	_ = os.RemoveAll(i.dir)
}
