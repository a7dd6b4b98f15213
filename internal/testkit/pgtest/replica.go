package pgtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/certtest"
	"github.com/weir-rl/weir/internal/testkit/patience"
)

// Replica starts a server that follows this one by streaming replication, and takes reads only
// until Promote. Options are further lines of its postgresql.conf.
func (s *Server) Replica(options ...string) *Server {
	s.T.Helper()
	from := fmt.Sprintf("host=127.0.0.1 port=%d user=postgres sslmode=disable", s.port)
	if s.tls {
		from = fmt.Sprintf("host=%s port=%d user=postgres", s.Dir, s.port)
	}
	r := start(s.T, s.tls, append([]string{"primary_conninfo = '" + from + "'", "hot_standby = on"}, options...),
		func(r *Server) error {
			cmd := exec.Command(binary(s.T, "pg_basebackup"), "-D", r.data(), "-d", from, "-X", "stream", "-c", "fast",
				"--no-sync")
			cmd.Dir = r.Dir
			r.owner.run(cmd)
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("pg_basebackup: %w\n%s", err, out)
			}
			r.write("standby.signal", "")
			return nil
		})
	patience.Until(s.T, "the replica follows", func() bool {
		return s.Number("select count(*) from pg_stat_replication where state = 'streaming'") > 0
	})
	return r
}

// Promote makes a replica a server of its own that takes writes. It returns when it does.
func (s *Server) Promote() {
	s.T.Helper()
	if s.Text("select pg_promote(true, 86400)") != "true" { // the test's patience ends before
		s.T.Fatal("the replica was not promoted")
	}
}

// Await waits until a replica has the server's writes until now.
func (s *Server) Await(replica *Server) {
	s.T.Helper()
	at := s.Text("select pg_current_wal_lsn()")
	patience.Until(s.T, "the replica has all", func() bool {
		return replica.Text("select pg_last_wal_replay_lsn() >= $1::pg_lsn", at) == "true"
	})
}

// TLS holds the PEM files for a client of a server with TLS.
type TLS struct {
	CA        string // the signer of the server's certificate, which is for 127.0.0.1 and localhost
	Cert, Key string // a certificate that the server takes from clients
}

// StartTLS starts a server that speaks only TLS at its port, with new certificates. It asks clients
// for none.
func StartTLS(t testing.TB, options ...string) (*Server, TLS) {
	t.Helper()
	dir := t.TempDir()
	ca := certtest.New(t, "Weir test CA")
	files := TLS{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "client.pem"),
		Key: filepath.Join(dir, "client.key")}
	ca.Write(files.CA)
	ca.IssueTo(files.Cert, files.Key)
	options = append([]string{"ssl = on", "ssl_cert_file = 'server.pem'", "ssl_key_file = 'server.key'",
		"ssl_ca_file = 'ca.pem'"}, options...)
	s := start(t, true, options, func(s *Server) error {
		if err := s.owner.copy(template(t), s.data()); err != nil {
			return err
		}
		cert, key := filepath.Join(s.data(), "server.pem"), filepath.Join(s.data(), "server.key")
		ca.IssueTo(cert, key)
		signer, err := os.ReadFile(files.CA)
		if err != nil {
			return err
		}
		s.write("ca.pem", string(signer))
		s.write("pg_hba.conf",
			"local all all trust\nlocal replication all trust\nhostssl all guarded 127.0.0.1/32 scram-sha-256\nhostssl all all 127.0.0.1/32 trust\n")
		return errors.Join(s.owner.own(cert), s.owner.own(key))
	})
	return s, files
}
