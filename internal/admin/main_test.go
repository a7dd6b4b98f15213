package admin

import (
	"os"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/doortest"
)

func TestMain(m *testing.M) {
	os.Exit(doortest.Holding{Tests: m, Description: openAPI}.Run())
}
