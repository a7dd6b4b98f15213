package admin

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/weir-rl/weir/internal/door/answer"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/wire/accept"
)

const (
	previewPath = "/api/v1/preview"
	// maxPreview bounds the rules of a preview, in bytes.
	maxPreview = 16 << 20
	// previewTime bounds how long a preview runs.
	previewTime = time.Minute
	// previewKept is how long a result can be asked for.
	previewKept = 10 * time.Minute
	// previewAlone is how long a preview goes on after the last client that waited for it has gone,
	// so that the client can connect again.
	previewAlone = 5 * time.Second
)

// previews holds the running preview, or the last one.
type previews struct {
	mu  sync.Mutex
	now *previewing
}

// previewing is one preview.
type previewing struct {
	id     string
	cancel context.CancelFunc
	done   chan struct{} // closed at the end
	ended  time.Time     // and these are set before
	result *insight.PreviewResult
	err    error

	mu       sync.Mutex
	progress insight.PreviewProgress
	waiting  int         // requests for the result
	alone    *time.Timer // ends the preview; nil while a client waits, or before the first does
}

// wait registers a client that waits for the result, until it calls leave. The preview ends when no
// client waits any more.
func (p *previewing) wait() (leave func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting++; p.alone != nil {
		p.alone.Stop()
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.waiting--; p.waiting == 0 {
			p.alone = time.AfterFunc(previewAlone, p.cancel)
		}
	}
}

func (p *previewing) note(at insight.PreviewProgress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.progress = at
}

func (p *previewing) at() insight.PreviewProgress {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.progress
}

// running reports whether p has not ended.
func (p *previewing) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// readObject reads the body of r, which may hold the rules of a folder. Error messages show
// example. If the body is wrong, it answers, and ok is false.
func readObject(w http.ResponseWriter, r *http.Request, body any, example string) (ok bool) {
	err := decodeBody(http.MaxBytesReader(w, r.Body, maxPreview), body, example)
	if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
		answer.Problem(w, http.StatusRequestEntityTooLarge,
			fmt.Sprintf("the body is larger than %d MiB", maxPreview>>20), "")
		return false
	}
	if err != nil {
		answer.BadRequest(w, err)
		return false
	}
	return true
}

// startPreview answers POST /api/v1/preview.
func (a *Handler) startPreview(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Files map[string]string `json:"files"`
		Over  string            `json:"over"`
	}
	if !readObject(w, r, &body, `{"files": {"shop.yaml": "…"}, "over": "2h"}`) {
		return
	}
	if len(body.Files) == 0 {
		answer.Problem(w, http.StatusBadRequest, "files: is missing; it holds the text of each file by its name",
			"files")
		return
	}
	over, err := parseOver(body.Over, 0)
	if err != nil {
		answer.BadRequest(w, err)
		return
	}
	if a.goingAway(w) {
		return
	}
	p := a.begin(insight.PreviewQuery{Files: body.Files, Over: over})
	if p == nil {
		w.Header().Set("Retry-After", "5")
		answer.Problem(w, http.StatusConflict, "another preview runs; there is one at a time on a node", "")
		return
	}
	w.Header().Set("Location", previewPath+"/"+p.id)
	w.Header()["Content-Type"] = answer.JSONType
	w.WriteHeader(http.StatusAccepted)
	// An error says that the client hung up.
	_ = json.NewEncoder(w).Encode(map[string]string{"preview": previewPath + "/" + p.id})
}

// begin starts a preview; it returns nil if one runs.
func (a *Handler) begin(q insight.PreviewQuery) *previewing {
	a.previews.mu.Lock()
	defer a.previews.mu.Unlock()
	if a.previews.now != nil && a.previews.now.running() {
		return nil
	}
	ctx, cancel := context.WithTimeout(a.end, previewTime)
	var id [8]byte
	_, _ = rand.Read(id[:]) // it never fails
	p := &previewing{id: hex.EncodeToString(id[:]), cancel: cancel, done: make(chan struct{})}
	q.Progress = p.note
	a.previews.now = p
	go func() {
		defer cancel()
		result, err := a.o.Preview.Run(ctx, q)
		switch {
		case err == nil:
		case errors.Is(ctx.Err(), context.DeadlineExceeded):
			err = fmt.Errorf(
				"it was not done within %v: it only gets what nothing else wants of the processor; try it over less time, or when there is less to do", previewTime)
		case ctx.Err() != nil:
			err = errors.New("it was ended before it was done")
		}
		p.result, p.err, p.ended = result, err, time.Now()
		close(p.done)
		time.AfterFunc(previewKept, func() { a.forget(p) })
	}()
	return p
}

// forget drops the result, which may be large.
func (a *Handler) forget(p *previewing) {
	a.previews.mu.Lock()
	defer a.previews.mu.Unlock()
	if a.previews.now == p {
		a.previews.now = nil
	}
}

// progressEvery is the time between two events of progress.
const progressEvery = 200 * time.Millisecond

// followPreview answers GET /api/v1/preview/{id}: with a stream of events progress, then one event
// result or problem. Clients that prefer JSON get only the result, as soon as it is there. DELETE
// ends the preview.
func (a *Handler) followPreview(w http.ResponseWriter, r *http.Request) {
	a.previews.mu.Lock()
	p := a.previews.now
	a.previews.mu.Unlock()
	if p == nil || p.id != strings.TrimPrefix(r.URL.Path, previewPath+"/") {
		answer.Problem(w, http.StatusNotFound,
			"there is no such preview: results are kept for ten minutes, until another one begins", "")
		return
	}
	if r.Method == http.MethodDelete {
		p.cancel()
		select { // so that another one can begin as soon as this is answered
		case <-p.done:
			w.WriteHeader(http.StatusNoContent)
		case <-r.Context().Done():
		}
		return
	}
	defer p.wait()()
	if accept.Preferred(r.Header.Get("Accept"), "text/event-stream", "application/json") == 1 {
		a.awaitPreview(w, r, p)
		return
	}
	if !a.streams.enter() {
		w.Header().Set("Retry-After", "5")
		answer.Problem(w, http.StatusServiceUnavailable,
			"too many streams are open; ask with Accept: application/json", "")
		return
	}
	defer a.streams.leave()
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.Header().Set("X-Accel-Buffering", "no")
	out := http.NewResponseController(w)
	send := func(name string, v any) bool {
		_, err := fmt.Fprintf(w, "event: %s\ndata: %s\n\n", name, encode(v))
		return err == nil && out.Flush() == nil
	}
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	for send("progress", p.at()) {
		select {
		case <-p.done:
			if p.err != nil {
				send("problem", map[string]string{"detail": p.err.Error()})
			} else {
				send("result", p.result)
			}
			return
		case <-tick.C:
		case <-r.Context().Done():
			return
		}
	}
}

// awaitPreview answers with the result.
func (a *Handler) awaitPreview(w http.ResponseWriter, r *http.Request, p *previewing) {
	select {
	case <-p.done:
	case <-r.Context().Done():
		return
	}
	switch {
	case errors.Is(p.err, insight.ErrNotRecorded):
		answer.Problem(w, http.StatusConflict, p.err.Error(), "")
	case p.err != nil:
		answer.Problem(w, http.StatusServiceUnavailable, "the preview failed: "+p.err.Error(), "")
	default:
		writeJSON(w, p.result)
	}
}
