package redis

import (
	"slices"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/redistest"
)

// A board that is full forgets what ends first.
func TestBoardIsBounded(t *testing.T) {
	s, err := Open(Options{URL: redistest.Start(t).URL(), Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	args := []string{"", "3", "name", "a", "5000000000", "", "b", "1000000000", "", "c", "4000000000", "", "d",
		"3000000000", "", "e", "2000000000", ""}
	result, err := s.askBoard(t.Context(), functionPost, "ban", args)
	if err != nil {
		t.Fatal(err)
	}
	if gone, err := result.AsInt64(); gone != 2 || err != nil {
		t.Errorf("%d had to go, %v", gone, err)
	}
	facts, err := s.List(t.Context(), "ban")
	var ids []string
	for _, f := range facts {
		ids = append(ids, f.ID)
	}
	slices.Sort(ids)
	if err != nil || !slices.Equal(ids, []string{"a", "c", "d"}) {
		t.Errorf("left are %q, %v", ids, err)
	}
}

func TestLookBack(t *testing.T) {
	for in, want := range map[string]string{"0": "0", "100000000": "40000000", "59999999": "0", "": "0", "x": "0"} {
		if got := lookBack(in); got != want {
			t.Errorf("before %q is %q, want %q", in, got, want)
		}
	}
}
