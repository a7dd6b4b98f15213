package proxy

import (
	"context"
	"net/http"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/door/proxy/deferred"
	"github.com/weir-rl/weir/internal/testkit/patience"
)

// A deferred request that finds no place at the upstream waits on, and has lost no attempt.
func TestDeferredFindsNoPlace(t *testing.T) {
	queue, err := deferred.OpenFile(filepath.Join(t.TempDir(), "queue"), deferred.Bounds{})
	if err != nil {
		t.Fatal(err)
	}
	defer queue.Close()
	up, url := newWorking(t, "http")
	h, _ := newGuarded(t, url, func(o *Options) {
		o.MaxUpstream = 1
		o.Defer = &Deferral{Queue: queue, Worker: deferred.Options{Attempts: 1, Timeout: 50 * time.Millisecond}}
	})
	h.placeWait = 10 * time.Millisecond
	addr := serveGuarded(t, newServer(h), h)
	held, _ := visitors{t, client(t, false), addr}.visit("", "/")
	patience.Receive(t, "the upstream is asked", up.begun)
	job := &deferred.Job{
		ID: deferred.NewID(), Queue: "later", Line: "one", Queued: time.Now(), Attributes: map[string]string{"path": "/later"},
		Method: http.MethodGet, URI: "/later", Host: "x", Proto: "http",
	}
	if err := queue.Put(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var working sync.WaitGroup
	working.Go(func() { h.Work(ctx) })
	defer working.Wait()
	defer stop()
	patience.Until(t, "the job is asked for", func() bool { s := h.Deferred(); return s.Postponed+s.Sent > 0 })
	if s := h.Deferred(); s.Sent != 0 || s.Failed != 0 {
		t.Errorf("while there is no place: %+v", s)
	}
	up.release <- true
	if status := patience.Receive(t, "an answer", held); status != 200 {
		t.Errorf("the one that had the place: %d", status)
	}
	go func() { up.release <- true }()
	patience.Receive(t, "the job is sent", up.begun)
	var ticket deferred.Ticket
	patience.Until(t, "the job ends", func() bool {
		ticket, err = queue.Ticket(t.Context(), job.ID)
		return err == nil && (ticket.State == deferred.Done || ticket.State == deferred.Failed)
	})
	if ticket.State != deferred.Done || ticket.Attempts != 1 {
		t.Errorf("%+v", ticket)
	}
	patience.Until(t, "its place is free", func() bool { return h.Upstream().Used == 0 })
}
