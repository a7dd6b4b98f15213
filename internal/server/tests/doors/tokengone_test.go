//go:build unix

package doors

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	rlqspb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// authedConn is a connection of the Redis protocol with a password.
type authedConn struct {
	t *testing.T
	net.Conn
	in *bufio.Reader
}

func dialAuthed(t *testing.T, addr, token string) *authedConn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(patience.End(t))
	c := &authedConn{t, conn, bufio.NewReader(conn)}
	if got, err := c.ask("AUTH " + token); got != "+OK" {
		t.Fatal(got, err)
	}
	return c
}

// ask sends a command, and returns the first line of its answer.
func (c *authedConn) ask(command string) (string, error) {
	if _, err := io.WriteString(c, command+"\r\n"); err != nil {
		return "", err
	}
	line, err := c.in.ReadString('\n')
	return strings.TrimSpace(line), err
}

// TestTokenGone: a connection of the Redis protocol and the streams of gRPC that were opened with a
// token end once it is taken out of the file, or its role no longer opens the door. Other tokens go
// on working.
func TestTokenGone(t *testing.T) {
	t.Parallel()
	rules := t.TempDir()
	servertest.WriteRules(t, filepath.Join(rules, "rules.yaml"), servertest.DailyRules)
	tokens := filepath.Join(t.TempDir(), "tokens")
	write := func(lines ...string) {
		t.Helper()
		if err := os.WriteFile(tokens, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("stays name=stays role=operator", "goes name=goes role=operator", "falls name=falls role=operator")
	p := servertest.Begin(t, exec.Command(servertest.BuiltProgram(t), "serve", "--rules="+rules,
		"--auth-tokens-file="+tokens, "--auth-doors=grpc,resp",
		"--listen-http=off", "--listen-grpc=127.0.0.1:0", "--listen-resp=127.0.0.1:0", "--listen-admin=127.0.0.1:0"))
	conns, quotas, others := map[string]*authedConn{}, map[string]grpc.ClientStream{}, map[string]reflection{}
	for _, token := range []string{"stays", "goes", "falls"} {
		conns[token] = dialAuthed(t, p.Addr("resp"), token)
		cc, err := grpc.NewClient("passthrough:"+p.Addr("grpc"),
			grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cc.Close() })
		ctx := metadata.AppendToOutgoingContext(patience.Context(t), "authorization", "Bearer "+token)
		quota, err := rlqspb.NewRateLimitQuotaServiceClient(cc).StreamRateLimitQuotas(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := quota.Send(&rlqspb.RateLimitQuotaUsageReports{Domain: "nowhere",
			BucketQuotaUsages: []*rlqspb.RateLimitQuotaUsageReports_BucketQuotaUsage{
				{BucketId: &rlqspb.BucketId{Bucket: map[string]string{"a": "b"}}, NumRequestsDenied: 1},
			}}); err != nil {
			t.Fatal(err)
		}
		if _, err := quota.Recv(); err != nil {
			t.Fatal(err)
		}
		quotas[token] = quota
		other, err := reflectionpb.NewServerReflectionClient(cc).ServerReflectionInfo(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if others[token] = other; !reflects(other) {
			t.Fatal("the server tells of no services")
		}
	}
	write("stays name=stays role=operator", "falls name=falls role=viewer")
	p.Signal(syscall.SIGHUP)
	for _, token := range []string{"goes", "falls"} {
		if line, err := conns[token].in.ReadString('\n'); err != io.EOF || line != "" {
			t.Errorf("%s: the connection of the Redis protocol said %q, %v", token, line, err)
		}
		for kind, stream := range map[string]grpc.ClientStream{"quota": quotas[token], "reflection": others[token]} {
			var m rlqspb.RateLimitQuotaResponse
			var err error
			for err == nil {
				err = stream.RecvMsg(&m)
			}
			if status.Code(err) != codes.Unauthenticated {
				t.Errorf("%s: the stream of %s ended with %v", token, kind, err)
			}
		}
	}
	if got, err := conns["stays"].ask("PING"); got != "+PONG" {
		t.Errorf("the connection of another token: %q, %v", got, err)
	}
	if !reflects(others["stays"]) {
		t.Error("the stream of another token has ended")
	}
	if _, metrics := servertest.Ask(t, http.DefaultClient, "GET", "http://"+p.Addr("admin")+"/metrics", ""); !strings.Contains(metrics, fmt.Sprintf("weir_resp_dropped_connections_total{reason=%q} 2\n", "auth")) {
		t.Error("the connections that ended are not counted")
	}
}

// reflection is a stream of gRPC's reflection.
type reflection = grpc.BidiStreamingClient[reflectionpb.ServerReflectionRequest, reflectionpb.ServerReflectionResponse]

// reflects reports whether a stream is served.
func reflects(s reflection) bool {
	err := s.Send(
		&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}})
	if err == nil {
		_, err = s.Recv()
	}
	return err == nil
}
