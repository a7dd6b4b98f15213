package observe_test

import (
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/observe"
)

// TestHide: what stands for a secret is the same in each process and version with the same seed, so
// that a value can be followed from page to page and from node to node, and hides what it stands
// for.
func TestHide(t *testing.T) {
	hide := func(value string, seed uint64, digits int) string {
		return string(observe.Hide([]byte("token="+value), len("token="), seed, digits))
	}
	shown, kept := hide("sesame", 7, observe.ShownDigits), hide("sesame", 7, observe.KeptDigits)
	if shown != "token=hidden:57d294f7" || !strings.HasPrefix(kept, shown) || len(kept) != len(shown)+8 {
		t.Errorf("%q, and %q where it is kept", shown, kept)
	}
	if hide("sesame", 8, observe.ShownDigits) == shown || hide("sesam", 7, observe.ShownDigits) == shown {
		t.Error("other seeds or values look alike")
	}
	buffer := make([]byte, 0, 64)
	observe.Hide(append(buffer, "sesame"...), 0, 7, observe.ShownDigits)
	if text := string(buffer[:cap(buffer)]); strings.Contains(text, "sesame") {
		t.Errorf("the buffer still holds %q", text)
	}
}
