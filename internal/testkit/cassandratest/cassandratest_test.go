package cassandratest

import (
	"os"
	"testing"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/patience"
)

func TestMain(m *testing.M) { Main(m) }

// TestInstall brings the jars of Cassandra where WEIR_INSTALL is set: for scripts/install.
func TestInstall(t *testing.T) {
	effort.Long(t, "Maven brings Cassandra")
	if entries, err := os.ReadDir(jars(t)); err != nil || len(entries) == 0 {
		t.Error(len(entries), err)
	}
}

// TestShared: the server executes conditional writes, asks for a password, speaks TLS, and is there
// for the next test. That it keeps what was written when it is killed is for package cassandra.
func TestShared(t *testing.T) {
	s := Shared(t)
	keyspace := s.Keyspace()
	s.Do("CREATE TABLE " + keyspace + ".t (k int PRIMARY KEY, v int)")
	session, err := s.session(patience.Left(t))
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	applied, err := session.Query("INSERT INTO " + keyspace +
		".t (k, v) VALUES (1, 7) IF NOT EXISTS").MapScanCAS(map[string]any{})
	if err != nil || !applied {
		t.Fatal(applied, err)
	}
	if s.CPU() <= 0 {
		t.Error("it has taken no time")
	}

	s.Pause()
	if _, err := s.session(50 * time.Millisecond); err == nil {
		t.Error("a paused server answers")
	}
	pid := s.PID()
	again := Shared(t)
	if again.PID() != pid {
		t.Errorf("the next test finds process %d", again.PID())
	}
	var v int // which a server that is still paused does not tell
	if err := session.Query("SELECT v FROM " + keyspace + ".t WHERE k = 1").Consistency(gocql.Serial).Scan(&v); err != nil || v != 7 {
		t.Errorf("%d is there (%v), want 7", v, err)
	}

	for name, change := range map[string]func(c *gocql.ClusterConfig){
		"another password": func(c *gocql.ClusterConfig) {
			c.Authenticator = gocql.PasswordAuthenticator{Username: User, Password: "x"}
		},
		"an authority that nobody trusts": func(c *gocql.ClusterConfig) {
			c.SslOpts = &gocql.SslOptions{EnableHostVerification: true}
		},
		"": func(c *gocql.ClusterConfig) {
			c.SslOpts = &gocql.SslOptions{EnableHostVerification: true, CaPath: s.CA()}
		},
	} {
		c := gocql.NewCluster("127.0.0.1")
		c.Port, c.Timeout, c.ConnectTimeout, c.DisableInitialHostLookup = s.port, patience.Left(t), patience.Left(t),
			true
		c.Authenticator = gocql.PasswordAuthenticator{Username: User, Password: Password}
		change(c)
		session, err := c.CreateSession()
		if (err == nil) != (name == "") {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			session.Close()
		}
	}
}
