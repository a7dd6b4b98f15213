//go:build unix

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/admin/client"
	"github.com/weir-rl/weir/internal/testkit/certtest"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// TestTailNode: the decisions of one node are that node's alone, asked for at any node. Shown and
// left-out decisions are counted on that node, also where it refuses more in a second than an
// answer holds. A client that asks for a node that is not there gets a list of the nodes, and so
// does one that follows a node that goes away.
func TestTailNode(t *testing.T) {
	t.Parallel()
	program, redis, dir := servertest.BuildProgram(t), redistest.Start(t), t.TempDir()
	servertest.WriteRules(t, dir+"/rules.yaml",
		"limits: [{ name: once, per: [user], allow: 1/day, algorithm: sliding_log }]\n")
	var nodes [2]*servertest.Process
	var servers, doors, names [2]string
	for i := range nodes {
		nodes[i] = servertest.Launch(t, program, dir,
			append([]string{"serve", "--rules=rules.yaml", "--store=" + redis.URL()}, servertest.Patient...)...)
	}
	for i, p := range nodes {
		servers[i], doors[i] = "http://"+p.Addr("admin"), "http://"+p.Addr("http")
	}
	// Two on one host differ by their address, once they know each other.
	servertest.Eventually(t, "both know each other", func() bool {
		for i, server := range servers {
			names[i] = servertest.SelfOf(t, server)
		}
		for _, server := range servers {
			_, _, body := servertest.Get(t, server+"/api/v1/nodes")
			for _, name := range names {
				if !strings.Contains(body, `"node": "`+name+`"`) {
					return false
				}
			}
		}
		return names[0] != names[1]
	})
	var sent [2]int
	refuse := func(node int) {
		t.Helper()
		// Another user each time: of one that comes again and again a few are remembered.
		if status, _, body := servertest.Get(t, fmt.Sprintf("%s/api/v1/limit?hits=2&user=user-%d-%d", doors[node], node, sent[node])); status != 429 {
			t.Fatal(status, body)
		}
		sent[node]++
	}

	// The first node is asked for the second one's decisions, and for its own.
	type told struct {
		*servertest.Output
		shown, left atomic.Int64
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var following sync.WaitGroup
	defer following.Wait()
	defer cancel()
	var got [2]*told
	for node := range got {
		x := &told{Output: servertest.NewOutput()}
		got[node] = x
		c := adminClient{Options: client.Options{Address: servers[0]}}
		if err := c.open(); err != nil {
			t.Fatal(err)
		}
		each := func(e client.Event) error {
			var event struct {
				Decisions []struct{ Node string }
				LeftOut   int `json:"left_out"`
			}
			if err := json.Unmarshal(e.Data, &event); err != nil {
				return err
			}
			for _, d := range event.Decisions {
				fmt.Fprintln(x, d.Node)
			}
			x.shown.Add(int64(len(event.Decisions)))
			x.left.Add(int64(event.LeftOut))
			return nil
		}
		following.Go(func() {
			for begun := false; ctx.Err() == nil && !begun; { // a busy node may not be heard at once
				_ = c.Follow(ctx, "/api/v1/stream?views=decisions&outcome=denied&nodes=all&node="+url.QueryEscape(names[node]), "",
					func() { begun = true }, each)
			}
		})
	}
	follow := func(node string) *servertest.Process {
		return servertest.Begin(t, exec.Command(program, "tail", "--node", node, "--outcome", "denied", "--server",
			servers[0]))
	}
	printed := follow(names[1])
	var before [2]int // refused before the stream showed the first one
	servertest.Eventually(t, "the streams have begun", func() bool {
		for node, x := range got {
			if x.shown.Load() == 0 {
				before[node] = sent[node]
				refuse(node)
			}
		}
		select {
		case <-printed.Exited:
			printed = follow(names[1])
		default:
		}
		if printed.Stdout.String() == "" {
			refuse(1)
		}
		return got[0].shown.Load() > 0 && got[1].shown.Load() > 0 && printed.Stdout.String() != ""
	})
	const flood = 700
	start := time.Now()
	for range flood {
		refuse(1)
	}
	fast := time.Since(start).Seconds() < flood/50-4 // that is more than 50 a second
	servertest.Eventually(t, "all refusals of each node are shown or counted", func() bool {
		done := true
		for node, x := range got {
			all := int(x.shown.Load() + x.left.Load())
			if all > sent[node] {
				t.Fatalf("%s refused %d, and %d of them are shown, %d left out", names[node], sent[node],
					x.shown.Load(), x.left.Load())
			}
			if all < sent[node]-before[node] {
				done = false
				refuse(node) // what is left out is told with the next one
			}
		}
		return done
	})
	if left := got[1].left.Load(); left == 0 && fast {
		t.Errorf("of %d refusals none was left out", sent[1])
	}
	for node, x := range got {
		if other := names[1-node]; strings.Contains(x.String(), other) {
			t.Errorf("decisions of %s for who asked for %s", other, names[node])
		}
	}
	other := regexp.MustCompile(`(?m)^.*denied  .*  on ` + regexp.QuoteMeta(names[1]) + "\n")
	if text := other.ReplaceAllString(printed.Stdout.Lines(), ""); text != "" {
		t.Errorf("weir tail --node %s prints\n%s", names[1], text)
	}

	for _, server := range servers {
		servertest.Eventually(t, "nobody is unknown", func() bool {
			status, _, errs := runWeir("tail", "--node", "nobody", "--server", server)
			if status != 1 {
				t.Fatalf("status %d: %s", status, errs)
			}
			return strings.Contains(errs, "no node is called nobody; there are ") && strings.Contains(errs, names[0]) &&
				strings.Contains(errs, names[1])
		})
		for node, name := range names {
			servertest.Eventually(t, name+" tells of its decisions", func() bool {
				status, _, body := servertest.Get(t, server+"/api/v1/decisions?outcome=denied&node="+url.QueryEscape(name))
				if strings.Contains(body, names[1-node]) && status == 200 {
					t.Fatalf("decisions of %s: %s", name, body)
				}
				return strings.Contains(body, `"node": "`+name)
			})
		}
	}
	status, _, body := servertest.Get(t, servers[0]+"/api/v1/stream?views=decisions&nodes=this&node="+url.QueryEscape(names[1]))
	if status != 400 || !strings.Contains(body, "nodes=this asks for this node alone, which is called "+names[0]) {
		t.Errorf("%d %s", status, body)
	}

	// One that is gone is no node any more.
	said := len(printed.Stderr.String()) // it may have tried on before, after a silence
	nodes[1].Signal(syscall.SIGTERM)
	if status := printed.Wait(); status != 1 ||
		!strings.Contains(printed.Stderr.String()[said:],
			"no node is called "+names[1]+"; there is "+names[0]+" alone") ||
		strings.Contains(printed.Stderr.String()[said:], "is away") {
		t.Errorf("status %d: %s", status, printed.Stderr)
	}
}

// weir tail follows a server that demands a client's certificate, and filters by a key.
func TestTailByCertificate(t *testing.T) {
	servertest.InFolder(t, "domain: shop\nlimits: [{ name: api, per: [user], allow: 1/day }]\n")
	ca, clients := certtest.New(t, "ca"), certtest.New(t, "clients")
	cert, key := ca.Issue("weir", 0, "127.0.0.1")
	certtest.Write(t, []string{"cert.pem", "key.pem", "ca.pem"}, cert, key, ca.PEM)
	own, ownKey := clients.Issue("operator", 0)
	certtest.Write(t, []string{"own.pem", "own.key", "clients.pem"}, own, ownKey, clients.PEM)
	p := start(t, "serve", "--rules=rules.yaml", "--tls-cert=cert.pem", "--tls-key=key.pem",
		"--tls-client-ca=clients.pem", "--tls-doors=admin")
	server := []string{"--server=https://" + p.Addr("admin"), "--ca=ca.pem"}
	tail := start(t, slices.Concat([]string{"tail"}, server,
		[]string{"--cert=own.pem", "--cert-key=own.key", "--key=user=ada"})...)
	servertest.Eventually(t, "tail shows what was refused of ada", func() bool {
		for _, user := range []string{"eve", "ada"} {
			servertest.Get(t, "http://"+p.Addr("http")+"/api/v1/limit?user="+user)
		}
		return strings.Contains(tail.Stdout.String(), "user=ada")
	})
	if out := tail.Stdout.String(); strings.Contains(out, "user=eve") {
		t.Errorf("it shows another key:\n%s", out)
	}
	tail.End()
	// Where tail's --key is taken for the file, the certificate lacks its key, and that is said.
	wrong := start(t, slices.Concat([]string{"tail"}, server, []string{"--cert=own.pem", "--key=own.key"})...)
	wrong.Exits(exitUsage)
	if !strings.Contains(wrong.Stderr.String(), "--cert and --cert-key: give both, or none") {
		t.Errorf("%s", wrong.Stderr)
	}
	// Elsewhere --key is still the file.
	for _, flag := range []string{"--key=own.key", "--cert-key=own.key"} {
		start(t, slices.Concat([]string{"ban", "list"}, server, []string{"--cert=own.pem", flag})...).Exits(0)
	}
	p.End()
}
