package lease

import (
	"flag"
	"os"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/effort"
)

func TestMain(m *testing.M) {
	if !effort.All() { // unless -rapid.checks says otherwise
		_ = flag.Set("rapid.checks", "20")
	}
	os.Exit(m.Run())
}
