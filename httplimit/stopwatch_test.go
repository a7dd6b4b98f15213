package httplimit

import (
	"fmt"
	"net/http/httptest"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir"
)

// secondWatch times every second decision, and notes what it hears.
type secondWatch struct {
	begun int64
	heard []string
}

func (s *secondWatch) Begin() int64 {
	s.begun++
	return s.begun % 2 * s.begun
}

func (s *secondWatch) End(start int64, r *weir.Request, d *weir.Decision) {
	verdict := "nothing"
	if r != nil {
		verdict = fmt.Sprint(r.Door, " ", d.Allowed)
	}
	s.heard = append(s.heard, fmt.Sprint(start, " ", verdict))
}

// The stopwatch hears of each decision that is in its sample, admitted or refused, but not of
// requests that were held: they took as long as they had to wait.
func TestStopwatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, nil, `limits:
- {name: q, when: {path: /held}, algorithm: token_bucket, allow: {rate: 1/s, burst: 1}, on_limit: {wait: 2s}}
- {name: closed, when: {path: /closed}, allow: 0/min}
`)
		watch := &secondWatch{}
		g, err := NewGate(l, Options{Stopwatch: watch})
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		for _, path := range []string{"/open", "/open", "/closed", "/held", "/held", "/open"} {
			if p := g.Enter(httptest.NewRecorder(), httptest.NewRequest("GET", path, nil)); p != nil {
				p.Leave()
			}
		}
		if time.Since(start) != time.Second {
			t.Errorf("the second one was held for %v", time.Since(start))
		}
		if want := []string{"1 middleware true", "3 middleware false"}; !slices.Equal(watch.heard, want) ||
			watch.begun != 6 {
			t.Errorf("began %d times, heard %q", watch.begun, watch.heard)
		}
	})
}
