package file

import (
	"testing"

	"github.com/weir-rl/weir/internal/door"
	"github.com/weir-rl/weir/internal/util/httpfield"
)

func TestLacking(t *testing.T) {
	s, _, err := Load([]Source{{Name: "a.yaml", Data: []byte(`
domain: a
limits:
  - {name: global, allow: 1/s}
  - {name: address, per: [ip], allow: 1/s}
  - {name: user, per: [user], allow: 1/s}
  - {name: user-or-ip, per: ["user|ip"], allow: 1/s}
  - {name: user-or-team, per: ["user|team"], allow: 1/s}
  - {name: gold, when: {plan: gold}, per: [ip], allow: 1/s}
  - {name: not-gold, when: {plan: "!gold"}, per: [ip], allow: 1/s}
  - {name: header, when: {header.x: "1", query.q: "2"}, allow: 1/s}
descriptors:
  - key: remote_address
    rate_limit: {unit: day, requests_per_unit: 1}
    descriptors:
      - {key: generic_key, value: x, rate_limit: {unit: day, requests_per_unit: 1}}
`)}, {Name: "b.yaml", Data: []byte("domain: b\nlimits: [{name: b, per: [user], allow: 1/s}]")}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	const want = "user (no user), user-or-team (no user|team), gold (no plan), remote_address.generic_key_x (no generic_key)"
	if got := door.DescribeLacks(s.Lacking("a", httpfield.RequestAttribute)); got != want {
		t.Errorf("lacking: %s\nwant %s", got, want)
	}
	if got := s.Lacking("a", func(string) bool { return true }); got != nil {
		t.Errorf("a door with everything lacks %v", got)
	}
	if got := s.Lacking("nowhere", httpfield.RequestAttribute); got != nil {
		t.Errorf("an unknown domain: %v", got)
	}
}
