package preview

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/record"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
)

// mostSpent bounds all processor time of a process, because the loading of rules might not end. It
// is more than the tests and the replay may take. Tests set it.
var mostSpent = 3 * mostBusy

// Replay is the main function of a process that Preview.Run has started: it reads a task from in,
// and writes the answers to out. First it gives the process the lowest priority for good, and
// offers it to a kernel that runs out of memory; if the priority cannot be lowered, it says so on
// errs. It returns as soon as in or ctx ends, and the process must end then.
func Replay(ctx context.Context, in io.Reader, out, errs io.Writer) error {
	if err := lower(os.Getpid()); err != nil {
		fmt.Fprintln(errs, "the priority could not be lowered, so that decisions take longer while a preview runs:",
			err)
	}
	giveUpFirst()
	return serve(ctx, in, out)
}

// errLeft says that nobody waits for the result any more, which is no failure.
var errLeft = errors.New("the server has gone")

// serve is Replay at any priority.
func serve(ctx context.Context, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	say := newLines(out)
	if err := say.say(said{Version: wireVersion}); err != nil {
		return err
	}
	tasks, records := make(chan *task), make(chan *record.Gathered)
	go func() { cancel(listen(ctx, in, tasks, records)) }()
	done := make(chan error, 1)
	go func() { done <- work(ctx, say, tasks, records) }()
	watch := time.NewTicker(100 * time.Millisecond)
	defer watch.Stop()
	for {
		select {
		case err := <-done:
			if ctx.Err() != nil { // which is why; it may have been written to nobody, too
				return failure(ctx)
			}
			return err
		case <-ctx.Done():
			return failure(ctx)
		case <-watch.C:
			if spent() > mostSpent {
				return say.say(
					said{Error: fmt.Sprintf("loading and trying the rules took more than %v of the processor",
						mostSpent)})
			}
		}
	}
}

// failure returns why ctx ended; nil if only because nobody waits any more.
func failure(ctx context.Context) error {
	if err := context.Cause(ctx); !errors.Is(err, errLeft) && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// listen reads a task and records, and then waits for the end of in, which it returns.
func listen(ctx context.Context, in io.Reader, tasks chan<- *task, records chan<- *record.Gathered) error {
	d := gob.NewDecoder(in)
	t := new(task)
	err := d.Decode(t)
	if err == nil {
		select {
		case tasks <- t:
		case <-ctx.Done():
		}
		var g *record.Gathered
		if g, err = receive(d); err == nil {
			select {
			case records <- g:
			case <-ctx.Done():
			}
			_, err = in.Read(make([]byte, 1))
		}
	}
	if err == nil || errors.Is(err, io.EOF) {
		return errLeft
	}
	return err
}

// work does a task, and writes the result.
func work(ctx context.Context, say *lines, tasks <-chan *task, records <-chan *record.Gathered) error {
	var t *task
	select {
	case t = <-tasks:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if _, ok := processorTime(); ok {
		t.spent = spent
	}
	inForce := func() (*rule.Set, error) {
		set, _, err := file.Load(t.InForce, t.Options.options())
		return set, err
	}
	gather := func(window int64) (*record.Gathered, error) {
		if err := say.say(said{Window: &window}); err != nil {
			return nil, err
		}
		select {
		case g := <-records:
			return g, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	// Its errors are of an output that nobody reads; the end of the input comes with them.
	tell := newTeller(func(p insight.PreviewProgress) { _ = say.say(said{Progress: &p}) })
	res, err := t.run(ctx, inForce, gather, tell)
	if err != nil {
		return say.say(said{Error: err.Error()})
	}
	return say.say(said{Result: res})
}

// spent returns the processor time of this process; 0 if it is not known.
func spent() time.Duration {
	d, _ := processorTime()
	return d
}
