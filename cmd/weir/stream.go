package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/weir-rl/weir/internal/util/human"
)

// serverEvent is one of the Server-Sent Events of an admin port, as the HTML standard has them.
type serverEvent struct {
	id, name string
	data     []byte
}

// streamSilence is how long a stream may be silent: a server sends a comment each 15 s.
const streamSilence = 45 * time.Second

// mostEventLine bounds a line of a stream, in bytes. A preview's result is one line.
const mostEventLine = 64 << 20

// errRefused is the error of a server that answered, but with no stream: it makes no sense to ask
// again.
type errRefused struct{ error }

func (e errRefused) Unwrap() error { return e.error }

// follow reads a stream: it calls opened when the stream has begun, and each for every event in it.
// It ends with the stream, with an error of each, or with ctx. lastID is the ID of the last event
// that was read before; "" for none.
func (c *adminClient) follow(ctx context.Context, path, lastID string, opened func(), each func(serverEvent) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(streamSilence, func() { cancel(fmt.Errorf("nothing came for %s", streamSilence)) })
	defer silence.Stop()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(c.base.String(), "/")+path, nil)
	if err != nil {
		return errRefused{err}
	}
	r.Header.Set("Accept", "text/event-stream")
	if lastID != "" {
		r.Header.Set("Last-Event-ID", lastID)
	}
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	patient := c.client
	patient.Timeout = 0 // a stream has no end
	answer, err := patient.Do(r)
	if err != nil {
		return fmt.Errorf("%s cannot be reached: %w", c.name(), err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK || !strings.HasPrefix(answer.Header.Get("Content-Type"), "text/event-stream") {
		raw, _ := io.ReadAll(io.LimitReader(answer.Body, 1<<20)) // an error shows what came
		var problem struct{ Detail string }
		if json.Unmarshal(raw, &problem) == nil && problem.Detail != "" {
			err = errors.New(human.PrintableLines(problem.Detail))
		} else {
			err = c.stranger(answer, raw)
		}
		if answer.StatusCode == http.StatusServiceUnavailable {
			return err // it may be better later
		}
		return errRefused{err}
	}
	opened()
	err = readEvents(answer.Body, func() { silence.Reset(streamSilence) }, each)
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(err, errStopped) {
		return cause
	}
	return err
}

// How a stream ends that its reader would have read on: as a whole answer, as of a server that goes
// away, or a login that has ended; or within one, as of a server that was killed.
var (
	errEnded = errors.New("it has ended the stream")
	errCut   = errors.New("the connection was cut")
)

// errStopped is an error of the reader of events, not of the stream.
var errStopped = errors.New("stopped")

// readEvents reads events from in until it ends. alive is called at each line.
func readEvents(in io.Reader, alive func(), each func(serverEvent) error) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, mostEventLine)
	var e serverEvent
	for lines.Scan() {
		alive()
		line := lines.Text()
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case line == "":
			if e.data != nil {
				if err := each(e); err != nil {
					return fmt.Errorf("%w: %w", errStopped, err)
				}
			}
			e = serverEvent{}
		case field == "id":
			e.id = value
		case field == "event":
			e.name = value
		case field == "data":
			if e.data != nil {
				e.data = append(e.data, '\n')
			}
			e.data = append(e.data, value...)
			if e.data == nil {
				e.data = []byte{}
			}
		}
	}
	switch err := lines.Err(); {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errCut
	case err != nil:
		return err
	}
	return errEnded // streams do not end by themselves
}
