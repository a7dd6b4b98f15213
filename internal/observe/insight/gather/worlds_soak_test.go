//go:build soak && !race

package gather

import (
	"os"
	"strconv"
	"testing"
)

// TestVerdictsLiveInManyWorlds does the same in 100 worlds, or in as many as WEIR_SEEDS says.
func TestVerdictsLiveInManyWorlds(t *testing.T) {
	worlds := uint64(100)
	if n, err := strconv.ParseUint(os.Getenv("WEIR_SEEDS"), 10, 64); err == nil {
		worlds = n
	}
	testVerdictsLive(t, worlds)
}
