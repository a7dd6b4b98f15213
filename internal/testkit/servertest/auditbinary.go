//go:build unix

package servertest

import (
	"encoding/json"
	"testing"
)

// SelfOf is the name of a node in the list of nodes.
func SelfOf(t *testing.T, admin string) string {
	t.Helper()
	status, _, body := Get(t, admin+"/api/v1/nodes")
	var answer struct {
		List []struct {
			Node string
			Self bool
		}
	}
	if err := json.Unmarshal([]byte(body), &answer); err != nil || status != 200 {
		t.Fatalf("%d %v: %s", status, err, body)
	}
	for _, n := range answer.List {
		if n.Self {
			return n.Node
		}
	}
	t.Fatalf("none is this node: %s", body)
	return ""
}
