package memory

import (
	"testing"

	"github.com/weir-rl/weir/store/storetest"
)

func TestMatrix(t *testing.T) { storetest.Matrix(t, newTest(t, Options{})) }
