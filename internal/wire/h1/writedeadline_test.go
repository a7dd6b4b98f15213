package h1

import (
	"errors"
	"net/http"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// TestWriteDeadline: a handler, or another goroutine while it runs, bounds the sending of an answer
// as in net/http. What has not passed is over with the request.
func TestWriteDeadline(t *testing.T) {
	errs := make(chan error, 10)
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		switch r.URL.Path {
		case "/later":
			if err := control.SetWriteDeadline(time.Now().Add(time.Minute)); err != nil {
				t.Error(err)
			}
		case "/cut":
			go func() {
				time.Sleep(5 * time.Second)
				_ = control.SetWriteDeadline(time.Unix(1, 0))
			}()
			time.Sleep(10 * time.Second)
			_, err := w.Write(make([]byte, 100<<10))
			if err == nil {
				err = control.Flush()
			}
			errs <- err
		}
	})
	both(t, h, func(_ *testing.T, l *pipes, _ server) string {
		begin := time.Now()
		one := l.dial()
		one.send(get("/later"))
		synctest.Wait()
		time.Sleep(10 * time.Second)
		one.send(get("/now"))
		synctest.Wait()
		one.send(get("/cut"))
		time.Sleep(20 * time.Second)
		synctest.Wait()
		select {
		case err := <-errs:
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("the write: %v", err)
			}
		default:
			t.Error("the write goes on")
		}
		return story(begin, one)
	})
}

// TestWriteDeadlineOver: a deadline that a handler has set does not hold for the next request of
// the connection.
func TestWriteDeadlineOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, l := New(newHTTPServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/first" {
				_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Second))
			}
		}))), newPipes()
		served := make(chan struct{})
		go func() { _ = s.Serve(l); close(served) }()
		begin := time.Now()
		one := l.dial()
		one.send(get("/first"))
		synctest.Wait()
		time.Sleep(3 * time.Second)
		one.send(get("/second", "Connection: close"))
		if got, want := story(begin, one), "3s: "; len(got) < len(want) || got[:len(want)] != want {
			t.Errorf("%s", got)
		}
		if got, _ := one.all(); len(got) < 50 ||
			got[len(got)-len("Connection: close\r\n\r\n"):] != "Connection: close\r\n\r\n" {
			t.Errorf("%q", got)
		}
		_ = s.Shutdown(t.Context())
		<-served
	})
}
