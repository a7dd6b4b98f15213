// Package stores tests whole servers: their stores, and what outlives them.
package stores

import (
	"os"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// olderIn is the folder of an older program (TestUpgrade), which TestMain removes.
var olderIn string

func TestMain(m *testing.M) {
	status := servertest.Tests(m).Run()
	_ = os.RemoveAll(olderIn)
	os.Exit(status)
}
