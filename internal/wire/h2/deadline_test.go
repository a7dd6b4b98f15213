package h2

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/patience"
)

// A deadline of reading a body holds for who waits for it, and may be moved when it has passed, by
// whoever: what comes later can be read.
func TestReadDeadlineMoves(t *testing.T) {
	proceed := make(chan bool)
	base := httpServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		check := func(err error) {
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("a deadline has passed: %v", err)
			}
		}
		b := make([]byte, 10)
		for _, by := range []time.Time{time.Unix(1, 0), time.Now().Add(time.Millisecond)} {
			_ = control.SetReadDeadline(by)
			_, err := r.Body.Read(b)
			check(err)
		}
		_ = control.SetReadDeadline(time.Now().Add(time.Hour))
		waits := make(chan error, 1)
		go func() {
			_, err := r.Body.Read(b)
			waits <- err
		}()
		_ = control.SetReadDeadline(time.Now().Add(time.Millisecond)) // before it waits, or while it does
		check(patience.Receive(t, "a deadline that was moved", waits))
		_ = control.SetReadDeadline(time.Now().Add(time.Hour))
		proceed <- true
		all, err := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s, %v", all, err)
	}), nil, configure)
	body, send := io.Pipe()
	r, err := http.NewRequest("POST", base, body)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		<-proceed
		_, _ = io.WriteString(send, "late")
		_ = send.Close()
	}()
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if got, err := io.ReadAll(resp.Body); string(got) != "late, <nil>" {
		t.Errorf("%q, %v", got, err)
	}
}
