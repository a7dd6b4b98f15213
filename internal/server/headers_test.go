package server

import (
	"fmt"
	"strings"
	"testing"
)

// Families that do not go together are found before a door opens, with advice.
func TestHeadersTogether(t *testing.T) {
	for value, want := range map[string]string{
		"x-delta,x-epoch": "--headers: x-delta and x-epoch write X-RateLimit-Limit and X-RateLimit-Reset in different ways; keep one of them",
		"draft03,draft11": "--headers: draft03 and draft11 write RateLimit-Policy or RateLimit in different ways; keep one of them",
		"off,draft11":     "--headers: off stands alone, but the list is draft11, off; remove off or the others",
	} {
		_, err := configOf(t, "", nil, []string{"--headers=" + value})
		if fmt.Sprint(err) != want {
			t.Errorf("%s: %v", value, err)
		}
	}
	if _, err := configOf(t, "", nil, []string{"--cors-origins=shop.example"}); err == nil ||
		!strings.HasPrefix(err.Error(), `--cors-origins: "shop.example" is no origin; write`) {
		t.Error(err)
	}
}
