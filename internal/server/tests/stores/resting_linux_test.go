//go:build !race

package stores

import (
	"bufio"
	"fmt"
	"net"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// TestRestingMemory holds what docs/operating/capacity.md says of a server that nobody has asked
// for anything. Pages of the program's own file are not counted: which of them are mapped is up to
// the kernel.
func TestRestingMemory(t *testing.T) {
	t.Parallel()
	p := servertest.Launch(t, servertest.BuildProgram(t), t.TempDir(), "serve")
	for _, door := range []string{"http", "grpc", "resp", "admin"} {
		p.Addr(door)
	}
	own := servertest.ProcStatus(t, p.Cmd.Process.Pid, "RssAnon")
	if own > 20<<20 {
		t.Errorf("%d kB are the server's own, more than 20 MB", own>>10)
	}
	t.Logf("%d kB of its own, %d kB resident", own>>10, servertest.ProcStatus(t, p.Cmd.Process.Pid, "VmRSS")>>10)
}

// TestMemoryOfKeys holds what docs/operating/capacity.md says of a million keys: by how much a
// server grows that is asked for as many over the Redis protocol, garbage and all.
func TestMemoryOfKeys(t *testing.T) {
	t.Parallel()
	const keys, batch, most = 1_000_000, 1000, 110
	p := servertest.Launch(t, servertest.BuildProgram(t), t.TempDir(), "serve")
	conn, err := net.Dial("tcp", p.Addr("resp"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	p.Addr("admin")
	before := servertest.ProcStatus(t, p.Cmd.Process.Pid, "VmRSS")
	answers := bufio.NewReader(conn)
	var b []byte
	for at := 0; at < keys; at += batch {
		b = b[:0]
		for i := range batch {
			b = fmt.Appendf(b, "CL.THROTTLE k%015d 1 1 86400\r\n", at+i)
		}
		if _, err := conn.Write(b); err != nil {
			t.Fatal(err)
		}
		for range batch {
			for line := range 6 {
				text, err := answers.ReadString('\n')
				if err != nil {
					t.Fatal(err)
				}
				if line == 1 && text != ":0\r\n" {
					t.Fatalf("a new key is answered %q", text)
				}
			}
		}
	}
	grown := float64(servertest.ProcStatus(t, p.Cmd.Process.Pid, "VmHWM")-before) / keys
	t.Logf("%.1f bytes a key", grown)
	if grown > most {
		t.Errorf("the server grew by %.1f bytes a key, above the %d that the docs allow for", grown, most)
	}
	if grown < 16 {
		t.Errorf("%.1f bytes a key are less than a key: they are not kept", grown)
	}
}
