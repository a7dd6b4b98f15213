package human

import "testing"

// TestNodeNames: a node is shown by as little as tells it from the others, and is found by each
// way to say its name.
func TestNodeNames(t *testing.T) {
	all := []string{"web-1 10.0.0.1:6070 aaaaaa", "web-2 10.0.0.2:6070 bbbbbb", "web-2 10.0.0.2:7070 cccccc",
		"web-3 127.0.0.1:6070 dddddd", "web-3 127.0.0.1:6070 eeeeee", "old",
		// Of two machines, and two of one of them; a socket's path may look like anything.
		"web-4 127.0.0.1:6070@00000001 aaaaaa", "web-4 127.0.0.1:6070@00000002 bbbbbb", "web-4 127.0.0.1:7070@00000002 cccccc",
		"web-5 unix:@deadbeef@00000001 aaaaaa", "web-5 unix:@deadbeef@00000001 bbbbbb", "web-6 @00000001 aaaaaa"}
	want := []string{"web-1", "web-2 10.0.0.2:6070", "web-2 10.0.0.2:7070", all[3], all[4], "old",
		"web-4 127.0.0.1:6070@00000001", "web-4 127.0.0.1:6070@00000002", "web-4 127.0.0.1:7070", all[9], all[10], "web-6"}
	names := NewNodeNames(all)
	for i, s := range all {
		shown := names.Shown(s)
		if shown != want[i] {
			t.Errorf("%s is shown as %s, want %s", s, shown, want[i])
		}
		for j, other := range all {
			if is := ParseNodeName(other).Is(shown); is != (i == j) {
				t.Errorf("%s means %s: %v", shown, other, is)
			}
		}
		if back := ParseNodeName(s).String(); back != s {
			t.Errorf("%s is read as %s", s, back)
		}
	}
	if n := ParseNodeName(all[9]); n.Address != "unix:@deadbeef" || n.Machine != "00000001" || n.ID != "aaaaaa" {
		t.Errorf("%+v", n)
	}
	if !ParseNodeName(all[1]).Is("web-2") || !ParseNodeName(all[2]).Is("web-2") {
		t.Error("web-2 does not mean both nodes of that name")
	}
	for s, ok := range map[string]bool{"web-1": true, "köln.example": true, "": false, "two words": false, "a\tb": false,
		"a\x00b": false, "a\u202eb": false, "\xff": false, string(make([]byte, 49)): false} {
		if IsNodeName(s) != ok {
			t.Errorf("%q as a name: %v", s, !ok)
		}
	}
}
