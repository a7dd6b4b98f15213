package admin

import (
	"encoding/json"
	"testing"

	"github.com/weir-rl/weir/rule/file"
)

// GET /api/v1/rules shows what a rule does beyond its numbers.
func TestRuleKinds(t *testing.T) {
	set, _, err := file.Load([]file.Source{{Name: "x.yaml", Data: []byte(`
limits:
  - name: a
    per: [ip]
    allow: 100/min
    throttle: { soft: { over: 10%, for: 5m }, elastic: { signal: cpu, curve: { 50%: 200%, 95%: 25% } } }
    schedule: [{ days: mon-fri, between: "08:00-20:00", allow: 500/min }]
    ban: { after: 20, within: 10m, for: 15m, scope: domain }
    priority: critical
    cost_after: response.status
  - { name: b, allow: 10/min, on_limit: { wait: 2s }, priority: sheddable }
  - { name: c, allow: 10/min, on_limit: { defer: later } }
  - { name: d, allow: 10/min }
  - { name: e, allow: 1000/min, consistency: { lease: 5% } }
  - { name: f, allow: 1000/min, consistency: { lease: 20%, for: 250ms } }
  - { name: g, allow: 1000/min, consistency: { regions: { over: 0% } } }
  - { name: h, allow: 1000/min, consistency: { lease: 5%, regions: { over: 20%, tell: 1% } } }
  - { name: i, allow: 1000/min, consistency: { regions: sync } }
`)}}, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		`{"schedule":["mon-fri 08:00-20:00: 500/min"],"elastic":{"signal":"cpu","curve":{"50":200,"95":25}},"soft_for":300,"priority":"critical","ban":{"after":20,"within":600,"for":900,"domain":true},"cost_after":"response.status"}`,
		`{"wait":2,"wait_queue":1000,"priority":"sheddable"}`,
		`{"defer":"later"}`,
		`{}`,
		`{"lease":5}`,
		`{"lease":20,"lease_for":0.25}`,
		`{"regions":{"over_percent":0,"tell_percent":2}}`,
		`{"lease":5,"regions":{"over_percent":20,"tell_percent":1}}`,
		`{"regions":{"over_percent":0,"sync":true,"tell_percent":2}}`,
	}
	for i, r := range set.Rules() {
		got, err := json.Marshal(describe(r).ruleKinds)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != want[i] {
			t.Errorf("%s: %s, want %s", r.Name, got, want[i])
		}
	}
}
