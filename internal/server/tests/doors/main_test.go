// Package doors tests whole servers: their doors.
package doors

import (
	"os"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/servertest"
)

func TestMain(m *testing.M) { os.Exit(servertest.Tests(m).Run()) }
