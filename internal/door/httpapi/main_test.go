//go:build unix

package httpapi

import (
	"testing"

	"github.com/weir-rl/weir/internal/testkit/doortest"
)

func TestMain(m *testing.M) {
	doortest.CPUMain(doortest.Holding{Tests: m, Description: openAPI})
}
