package client

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

// Event is one of the Server-Sent Events of an admin port, as the HTML standard has them.
type Event struct {
	ID, Name string
	Data     []byte
}

// streamSilence is how long a stream may be silent: a server sends a comment each 15 s.
const streamSilence = 45 * time.Second

// mostEventLine bounds a line of a stream, in bytes. A preview's result is one line.
const mostEventLine = 64 << 20

// RefusedError is the error of a server that answered, but with no stream: it makes no sense to ask
// again.
type RefusedError struct{ error }

func (e RefusedError) Unwrap() error { return e.error }

// Follow reads a stream: it calls opened when the stream has begun, and each for every event in it.
// It ends with the stream, with an error of each, or with ctx. lastID is the ID of the last event
// that was read before; "" for none.
func (c *Client) Follow(ctx context.Context, path, lastID string, opened func(), each func(Event) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(streamSilence, func() { cancel(fmt.Errorf("nothing came for %s", streamSilence)) })
	defer silence.Stop()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(c.base.String(), "/")+path, nil)
	if err != nil {
		return RefusedError{err}
	}
	r.Header.Set("Accept", "text/event-stream")
	if lastID != "" {
		r.Header.Set("Last-Event-ID", lastID)
	}
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	patient := c.http
	patient.Timeout = 0 // a stream has no end
	answer, err := patient.Do(r)
	if err != nil {
		return fmt.Errorf("%s cannot be reached: %w", c.Name(), err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK ||
		!strings.HasPrefix(answer.Header.Get("Content-Type"), "text/event-stream") {
		raw, _ := io.ReadAll(io.LimitReader(answer.Body, 1<<20)) // an error shows what came
		var problem struct{ Detail string }
		if json.Unmarshal(raw, &problem) == nil && problem.Detail != "" {
			err = errors.New(human.PrintableLines(problem.Detail))
		} else {
			err = c.Stranger(answer, raw)
		}
		if answer.StatusCode == http.StatusServiceUnavailable {
			return err // it may be better later
		}
		return RefusedError{err}
	}
	opened()
	err = readEvents(answer.Body, func() { silence.Reset(streamSilence) }, each)
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(err, ErrStopped) {
		return cause
	}
	return err
}

// How a stream ends that its reader would have read on: as a whole answer, as of a server that goes
// away, or a login that has ended; or within one, as of a server that was killed.
var (
	ErrEnded = errors.New("it has ended the stream")
	ErrCut   = errors.New("the connection was cut")
)

// ErrStopped is an error of the reader of events, not of the stream.
var ErrStopped = errors.New("stopped")

// readEvents reads events from in until it ends. alive is called at each line.
func readEvents(in io.Reader, alive func(), each func(Event) error) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, mostEventLine)
	var e Event
	for lines.Scan() {
		alive()
		line := lines.Text()
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case line == "":
			if e.Data != nil {
				if err := each(e); err != nil {
					return fmt.Errorf("%w: %w", ErrStopped, err)
				}
			}
			e = Event{}
		case field == "id":
			e.ID = value
		case field == "event":
			e.Name = value
		case field == "data":
			if e.Data != nil {
				e.Data = append(e.Data, '\n')
			}
			e.Data = append(e.Data, value...)
			if e.Data == nil {
				e.Data = []byte{}
			}
		}
	}
	switch err := lines.Err(); {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return ErrCut
	case err != nil:
		return err
	}
	return ErrEnded // streams do not end by themselves
}
