//go:build unix

package stores

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/internal/testkit/servertest"
	"github.com/weir-rl/weir/store/redis"
)

// TestRegionsByTLS: two regions hear each other, borrow of each other and have the same bans where
// each Redis wants a certificate, and knows the other region as a user who may do no more than
// docs/operating/redis.md says.
func TestRegionsByTLS(t *testing.T) {
	t.Parallel()
	effort.Long(t, "starts two Redis with TLS")
	doc, err := os.ReadFile(filepath.Join(servertest.RepositoryRoot(t), "docs", "operating", "redis.md"))
	if err != nil {
		t.Fatal(err)
	}
	list := regexp.MustCompile(
		"units\\s+of\\s+its\\s+limits,\\s+needs\\s+`([^`]+)`\\s+on\\s+the\\s+keys\\s+`([^`]+)`,\\s+`([^`]+)`\\s+on\\s+the\\s+channel\\s+`([^`]+)`").FindSubmatch(doc)
	if list == nil {
		t.Fatal("docs/operating/redis.md does not say what a user for other regions needs")
	}
	names := []string{"eu", "us"}
	var servers []*redistest.Server
	var own, peer []string // URLs
	for range names {
		s, files := redistest.StartTLS(t, "tls-auth-clients yes")
		s.Do(append([]string{
			"ACL", "SETUSER", "weir-peer", "on", ">secret", "~" + string(list[2]), "resetchannels", "&" + string(list[4]), "-@all", string(list[3]),
		}, strings.Fields(string(list[1]))...)...)
		servers = append(servers, s)
		with := fmt.Sprintf("@%s?ca=%s&cert=%s&key=%s", s.Addr(), files.CA, files.Cert, files.Key)
		own, peer = append(own, "rediss://"+with[1:]), append(peer, "rediss://weir-peer:secret"+with)
	}
	rules := filepath.Join(t.TempDir(), "shop.yaml")
	servertest.WriteRules(t, rules, regionalRules)
	program := servertest.BuildProgram(t)
	var nodes []*servertest.Node
	for i, name := range names {
		args := append([]string{"serve", "--rules=" + rules, "--listen-http=127.0.0.1:0", "--listen-admin=127.0.0.1:0",
			"--listen-grpc=off", "--listen-resp=off"}, servertest.Patient...)
		cmd := exec.Command(program, append(args, "--region="+name, "--regions-weights=eu=1,us=1")...)
		// In the environment, since passwords are no arguments.
		cmd.Env = append(servertest.PlainEnvironment(), "WEIR_STORE="+own[i],
			"WEIR_REGIONS_STORES="+names[1-i]+"="+peer[1-i])
		p := servertest.Begin(t, cmd)
		nodes = append(nodes, servertest.NodeOf(t, p.Stderr, p.Addr))
	}
	for i, n := range nodes {
		servertest.Eventually(t, names[1-i]+" is heard", func() bool {
			for _, r := range regionsOf(t, n).Regions {
				if r.Region == names[1-i] {
					return r.State == "heard"
				}
			}
			return false
		})
	}
	eu, us := nodes[0], nodes[1]
	for _, s := range servers {
		s.Do("ACL", "LOG", "RESET") // what a peer asked before a node had loaded the functions
	}
	if n := eu.Admitted(30, "path=/search&user=ada"); n != 30 {
		t.Errorf("%d of 30 admitted", n)
	}
	servertest.Eventually(t, "us hears of them", func() bool { return regionsOf(t, us).Limits[0].Heard.Units == 30 })
	admitted := 0
	servertest.Eventually(t, "eu borrows beyond its ceiling", func() bool {
		admitted += eu.Admitted(50, "path=/complete&tenant=acme")
		return admitted > 600
	})
	if r := regionsOf(t, eu); r.Limits[1].Borrowed < 100 {
		t.Errorf("%+v", r.Limits[1])
	}
	if status, out, errs := servertest.RunBuilt(t, "ban", "set", "search", "bob", "--for=1h", "--server="+us.Admin); status != 0 {
		t.Fatalf("weir ban: %s%s", out, errs)
	}
	servertest.Eventually(t, "eu has the ban of us", func() bool { return eu.Ask("path=/search&user=bob") != 200 })
	for i, s := range servers {
		if refused, err := s.Try("ACL", "LOG"); err != nil || len(refused.([]any)) > 0 {
			t.Errorf("%s: ACL LOG: %v, %v", names[i], refused, err)
		}
	}

	// Without a certificate nobody gets in.
	bare, _, _ := strings.Cut(peer[0], "&cert")
	s, err := redis.Open(redis.Options{URL: bare, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := s.Ping(ctx); err == nil {
		t.Error("a peer without a certificate gets in")
	}
}
