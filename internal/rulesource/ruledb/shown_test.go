package ruledb

import (
	"slices"
	"testing"
	"time"
)

// TestShownNodes: a node that started anew is listed once, and nodes of one name are told apart.
func TestShownNodes(t *testing.T) {
	at := func(minute int) time.Time { return time.Date(2026, 11, 20, 10, minute, 0, 0, time.UTC) }
	list := []Node{
		{Name: "web-1 10.0.0.1:6070 aaaaaa", Version: 1, At: at(1)},             // before it started anew
		{Name: "web-1 10.0.0.1:6070 bbbbbb", Version: 2, At: at(9), Live: true}, //
		{Name: "web-2 10.0.0.2:6070 cccccc", Version: 2, At: at(9), Live: true}, // two on one host
		{Name: "web-2 10.0.0.2:7070 dddddd", Version: 2, At: at(9), Live: true},
		{Name: "web-3 127.0.0.1:6070 eeeeee", Version: 2, At: at(9), Live: true}, // two that nothing else tells apart
		{Name: "web-3 127.0.0.1:6070 ffffff", Version: 2, At: at(9), Live: true},
		{Name: "web-4 10.0.0.4:6070 111111", Version: 1, At: at(2)}, // gone, after it started anew
		{Name: "web-4 10.0.0.4:6070 222222", Version: 2, At: at(3)},
		// On two machines behind loopback, one of which is gone, and one that started anew there.
		{Name: "web-5 127.0.0.1:6070@00000001 aaaaaa", Version: 2, At: at(9), Live: true},
		{Name: "web-5 127.0.0.1:6070@00000002 bbbbbb", Version: 1, At: at(2)},
		{Name: "web-5 127.0.0.1:6070@00000002 cccccc", Version: 2, At: at(3)},
	}
	var got []string
	for _, n := range shown(list) {
		got = append(got, n.Name)
		if n.Version != 2 {
			t.Errorf("%+v is listed", n)
		}
	}
	want := []string{"web-1", "web-2 10.0.0.2:6070", "web-2 10.0.0.2:7070", "web-3 127.0.0.1:6070 eeeeee",
		"web-3 127.0.0.1:6070 ffffff", "web-4", "web-5 127.0.0.1:6070@00000001", "web-5 127.0.0.1:6070@00000002"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
