package testproc

import (
	"slices"
	"testing"
)

func TestEnviron(t *testing.T) {
	t.Setenv("WEIR_STORE", "redis://nowhere")
	t.Setenv("REDIS_URL", "redis://nowhere")
	t.Setenv("PGHOST", "nowhere")
	t.Setenv("OTHER_WEIR_", "stays")
	got := Environ()
	for _, gone := range []string{"WEIR_STORE=redis://nowhere", "REDIS_URL=redis://nowhere", "PGHOST=nowhere"} {
		if slices.Contains(got, gone) {
			t.Errorf("%s is there", gone)
		}
	}
	if !slices.Contains(got, "OTHER_WEIR_=stays") {
		t.Error("another variable is gone")
	}
}
