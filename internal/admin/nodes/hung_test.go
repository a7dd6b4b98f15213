//go:build unix

package nodes_test

import (
	"bufio"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/weir-rl/weir/internal/admin/nodes"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/redistest"
)

// A node that is stopped is missed, and heard again when it goes on; it does not answer what was
// asked long ago.
func TestHungNode(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	all := several(t, server.URL(), 2)
	var others []*exec.Cmd
	for range 2 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), nodeVariable+"="+server.URL())
		cmd.Stderr = os.Stderr
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Signal(syscall.SIGCONT)
			in.Close()
			_ = cmd.Wait()
		})
		if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		others = append(others, cmd)
	}
	listeners(t, all[0], 4)
	patience.Until(t, "all nodes are known",
		func() bool { return all[0].store.Nodes() == 4 && all[1].store.Nodes() == 4 })
	if said, tally, err := ask(t, all[0], "who", ""); err != nil || tally.String() != "4 of 4 nodes" || len(said) != 4 {
		t.Fatalf("%v, %+v, %v", said, tally, err)
	}
	// The fifth is impatient. It does not forget a node that is stopped, however long the answers
	// take.
	impatient := start(t, server.URL(), nodes.Options{Wait: nodes.DefaultWait, Alive: func() int { return 5 }}, answerAll)
	listeners(t, all[0], 5)
	patience.Until(t, "the fifth knows all", func() bool { return impatient.store.Nodes() == 5 })
	stop(t, others[1])
	patience.Until(t, "all but the one that is stopped answer in time", func() bool {
		_, tally, err := ask(t, impatient, "who", "")
		if err != nil || tally.Answered == tally.Asked && tally.Asked == 5 {
			t.Fatalf("%+v, %v", tally, err)
		}
		return tally == nodes.Tally{Asked: 5, Answered: 4}
	})
	if err := others[1].Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	patience.Until(t, "all answer again", func() bool {
		_, tally, _ := ask(t, impatient, "who", "")
		return tally == nodes.Tally{Asked: 5, Answered: 5}
	})
}

// stop returns once all threads of the process stand still: the signal alone does not wait for
// that.
func stop(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var status syscall.WaitStatus
	for {
		_, err := syscall.Wait4(cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
		if err == nil {
			break
		}
		if err != syscall.EINTR {
			t.Fatal(err)
		}
	}
	if !status.Stopped() {
		t.Fatalf("it did not stop: %v", status)
	}
}
