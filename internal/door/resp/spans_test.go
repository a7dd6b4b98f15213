package resp

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/door"
)

// spans counts the spans that are begun, and those that are not ended.
type spans struct {
	mu    sync.Mutex
	begun int
	open  map[*weir.Trace]bool
}

func (s *spans) Follow(ctx context.Context, _, _ string) (context.Context, *weir.Trace) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := new(weir.Trace)
	s.begun++
	s.open[t] = true
	return ctx, t
}

func (s *spans) Act(ctx context.Context, _ door.Act, parent, state string) (context.Context, *weir.Trace) {
	return s.Follow(ctx, parent, state)
}

func (s *spans) Note(*weir.Trace, ...slog.Attr) {}

func (s *spans) End(t *weir.Trace, _ error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, t)
}

// TestSpansEnd: where a connection ends since the answers of a batch find no memory, the command
// that was begun behind the batch has a span that ends, too.
func TestSpansEnd(t *testing.T) {
	var rules strings.Builder // an answer that names them all is too large
	rules.WriteString("domain: shop\nlimits:\n")
	for i := range 40 {
		fmt.Fprintf(&rules, "  - {name: %s-%d, per: [key], allow: 0/hour}\n", strings.Repeat("n", 100), i)
	}
	now, followed := newClock(), &spans{open: map[*weir.Trace]bool{}}
	d := openDoorOn(t, waiting(t, now, nil, nil), now, rules.String(),
		Options{Concurrent: 2, MaxMemory: connMemory, Tracer: followed})
	c := d.dial(t)
	c.send(command("WEIR.LIMIT", "shop", "1", "key", "a") + command("WEIR.LIMIT", "shop", "1", "key", "b") +
		command("THROTTLE", "c", "1", "1", "60"))
	if got, err := io.ReadAll(c); err != nil || !strings.Contains(string(got), errMemory.Error()) {
		t.Fatalf("%v, %q", err, got)
	}
	eventually(t, "the connection is closed", func() bool { return d.Stats().Connections == 0 })
	followed.mu.Lock()
	defer followed.mu.Unlock()
	if followed.begun != 3 || len(followed.open) > 0 {
		t.Errorf("%d spans of %d are open", len(followed.open), followed.begun)
	}
}
