package preview

import (
	"context"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
)

// Command is the command of this program that calls Replay.
const Command = "preview-process"

// process starts processes that replay requests.
type process struct {
	args []string
	log  *slog.Logger
	told sync.Once // why there is none
}

// errNotBegun says that there is no process, so that the task is still to be done.
var errNotBegun = errors.New("no process replays the requests")

// run has a process do t. If none can, it logs why, and returns errNotBegun.
func (c *process) run(ctx context.Context, inForce *rule.Set, t *task, gather gatherer, tell teller,
) (*insight.PreviewResult, error) {
	sources, ok := file.Sources(inForce)
	if !ok {
		c.here(errors.New("the rules in force are not from files"))
		return nil, errNotBegun
	}
	t.InForce = sources
	// Whatever the process does, it is killed at the end.
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(running, executable(), c.args...)
	cmd.Args[0] = "weir"
	cmd.Env = environment(os.Environ())
	var errs head
	cmd.Stderr = &errs
	in, out, err := start(cmd)
	if err != nil {
		c.here(err)
		return nil, errNotBegun
	}
	// The part before main takes milliseconds. The process repeats this for the threads that it has
	// by then, and reports if it cannot.
	_ = lower(cmd.Process.Pid)
	res, err := talk(in, &io.LimitedReader{R: out, N: mostSaid}, t, gather, tell)
	in.Close()
	cancel()
	_ = cmd.Wait() // it was killed, or ended as its state says
	if len(errs.text) > 0 {
		c.log.Warn("the process that replays requests for a preview wrote",
			"text", strings.TrimSpace(string(errs.text)))
	}
	switch {
	case err == nil:
		return res, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.Is(err, errEnded) || errors.Is(err, io.EOF) && !cmd.ProcessState.Exited():
		// The process closed its ends of the pipes itself, so its state does not come from the kill
		// above.
		return nil, fmt.Errorf("the process that replays the requests ended before it was done: %v", cmd.ProcessState)
	case errors.Is(err, errNotBegun):
		c.here(err)
		return nil, errNotBegun
	}
	return nil, err
}

// here logs once why requests are replayed in this process.
func (c *process) here(why error) {
	c.told.Do(func() {
		c.log.Warn(
			"previews replay requests in this process, not in one of their own: while one runs, decisions take longer", "reason", why)
	})
}

// start starts a process.
func start(cmd *exec.Cmd) (in io.WriteCloser, out io.Reader, err error) {
	if in, err = cmd.StdinPipe(); err != nil {
		return nil, nil, err
	}
	if out, err = cmd.StdoutPipe(); err != nil {
		return nil, nil, err
	}
	return in, out, cmd.Start() // it closes both if it fails
}

// errEnded says that the process ended before it sent a result.
var errEnded = errors.New("the process says no more")

// talk gives a process its task, and returns the result. It returns errNotBegun if the process does
// not replay.
func talk(in io.Writer, out *io.LimitedReader, t *task, gather gatherer, tell teller) (*insight.PreviewResult, error) {
	d, e := json.NewDecoder(out), gob.NewEncoder(in)
	var first said
	if err := d.Decode(&first); err != nil {
		return nil, fmt.Errorf("%w: what was started is another program: %w", errNotBegun, err)
	}
	if first.Version != wireVersion {
		return nil, fmt.Errorf("%w: what was started is another version of this program", errNotBegun)
	}
	if err := e.Encode(t); err != nil {
		return nil, unsent("task", err)
	}
	for {
		var s said
		if err := d.Decode(&s); err != nil {
			return nil, unheard(out, err)
		}
		switch {
		case s.Progress != nil:
			tell(*s.Progress, true)
		case s.Window != nil:
			g, err := gather(*s.Window)
			if err != nil {
				return nil, err
			}
			if err := send(e, g); err != nil {
				return nil, unsent("records", err)
			}
		case s.Result != nil:
			return s.Result, nil
		case s.Error == insight.ErrNotRecorded.Error():
			return nil, insight.ErrNotRecorded
		case s.Error != "":
			return nil, errors.New(s.Error)
		default:
			return nil, errors.New("the process that replays the requests wrote a line that says nothing")
		}
	}
}

// unsent returns the error of a failed write to the process.
func unsent(what string, err error) error {
	if errors.Is(err, syscall.EPIPE) {
		return errEnded
	}
	return fmt.Errorf("the process that replays the requests could not be sent the %s: %w", what, err)
}

// unheard returns the error of a failed read of the process's output.
func unheard(out *io.LimitedReader, err error) error {
	switch {
	case out.N <= 0:
		return fmt.Errorf("the process that replays the requests wrote more than the %d MiB that are read of it",
			mostSaid>>20)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errEnded
	}
	return fmt.Errorf("what the process that replays the requests wrote cannot be read: %w", err)
}

// executable returns the path of this program. On Linux it is the running file, even if the file
// was deleted, or another one has its name.
func executable() string {
	const self = "/proc/self/exe"
	if runtime.GOOS == "linux" {
		if _, err := os.Stat(self); err == nil {
			return self
		}
	}
	path, err := os.Executable()
	if err != nil {
		return self // starting it says that it is not there
	}
	return path
}

// environment returns the part of an environment that the process needs: time zones, which rules
// name, and settings of the Go runtime. Weir's settings, which may hold secrets, are left out.
// GOMAXPROCS=1 keeps the process to one processor. GOMEMLIMIT makes it collect garbage more often
// the nearer it is to the 600 MB that docs/operating/insight.md names. Without that bound it took
// 865 MB with both engines full (engineBytes), and replayed no more in the same time.
func environment(all []string) []string {
	kept := slices.DeleteFunc(slices.Clone(all), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return !slices.Contains([]string{"TZ", "ZONEINFO", "GODEBUG"}, name)
	})
	return append(kept, "GOMAXPROCS=1", "GOMEMLIMIT=560MiB")
}

// head keeps the beginning of the text that is written to it.
type head struct{ text []byte }

const mostHead = 8 << 10

func (h *head) Write(b []byte) (int, error) {
	h.text = append(h.text, b[:min(len(b), mostHead-len(h.text))]...)
	return len(b), nil
}
