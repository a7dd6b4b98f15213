package h2

import (
	"io"
	"net/http"
	"testing"

	"github.com/weir-rl/weir/internal/patience"
)

// TestLongBody: of a body that its handler never catches up with no more is kept than the client
// may send ahead.
func TestLongBody(t *testing.T) {
	const size = 16 << 20
	most := make(chan int, 1)
	base := httpServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, st := w.(*response).c, w.(*response).st
		kept := 0
		for range (size - 64<<10) >> 14 {
			patience.Until(t, "there is more than is read", func() bool {
				c.mu.Lock()
				defer c.mu.Unlock()
				kept = max(kept, cap(st.in))
				return st.unread() > 16<<10
			})
			if _, err := io.ReadFull(r.Body, make([]byte, 16<<10)); err != nil {
				t.Error(err)
				break
			}
		}
		_, _ = io.Copy(io.Discard, r.Body)
		most <- kept
	}), nil, Configure)
	answer, err := plainClient(t).Post(base, "", io.LimitReader(zeros{}, size))
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	if n := <-most; n > 1<<20 {
		t.Errorf("%d bytes", n)
	}
}
