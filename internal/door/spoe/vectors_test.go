package spoe

import (
	"bytes"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// sent is what HAProxy put on the wire with the files of examples/haproxy, for these two requests:
//
//	GET /api/x?a=b with Host: 127.0.0.1:18700 and X-Api-Key: k1
//	PURGE / with Host: Shop.Example:81
type sent struct{ health, hello, get, purge, disconnect string }

const (
	healthCheck = "0000004e0100000001000012737570706f727465642d76657273696f6e730803322e300e6d61782d6672616d652d73697a6503fcf0060c6361706162696c697469657308000b6865616c7468636865636b11"
	getFrame    = "010d636865636b2d7265717565737406026970067f000001066d6574686f640803474554047061746808062f6170692f780571756572790803613d6204686f7374080f3132372e302e302e313a3138373030106865616465722e782d6170692d6b657908026b31"
	purgeFrame  = "010d636865636b2d7265717565737406026970067f000001066d6574686f6408055055524745047061746808012f0571756572790004686f7374080f53686f702e4578616d706c653a3831106865616465722e782d6170692d6b657900"
)

var recorded = map[string]sent{
	"2.6.12": {
		health:     healthCheck,
		hello:      "000000810100000001000012737570706f727465642d76657273696f6e730803322e300e6d61782d6672616d652d73697a6503fcf0060c6361706162696c69746965730810706970656c696e696e672c6173796e6309656e67696e652d6964082434623332333662652d613831342d343537392d626238382d373664656461646632363630",
		get:        "0000006d030000000100" + getFrame,
		purge:      "00000063030000000102" + purgeFrame,
		disconnect: "00000025020000000100000b7374617475732d636f64650300076d65737361676508066e6f726d616c",
	},
	"3.2.0": { // closes without a DISCONNECT
		health: healthCheck,
		hello:  "0000007b0100000001000012737570706f727465642d76657273696f6e730803322e300e6d61782d6672616d652d73697a6503fcf0060c6361706162696c6974696573080a706970656c696e696e6709656e67696e652d6964082435333965303863382d386161662d343332382d386433632d613835393063383331663631",
		get:    "0000006d030000000101" + getFrame,
		purge:  "00000063030000000103" + purgeFrame,
	},
}

// TestRecorded replays what real HAProxies sent.
func TestRecorded(t *testing.T) {
	const rules = `
limits:
  - {name: get, when: {method: GET, path: /api/x, host: 127.0.0.1, query.a: b, ip: 127.0.0.0/8}, per: [header.x-api-key], allow: 7/day}
  - {name: purge, when: {method: PURGE, path: /, host: shop.example}, per: [ip], allow: 9/day}
`
	raw := func(s string) []byte {
		b, err := hex.DecodeString(s)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for version, s := range recorded {
		t.Run(version, func(t *testing.T) {
			both(t, func(t *testing.T, o Options) {
				addr := serve(t, New(limiterFor(t, o, rules), o))
				check := dial(t, addr)
				check.send(raw(s.health))
				if r := check.next(); r.kind != 101 || r.keys()["version"] != "2.0" {
					t.Fatalf("%+v", r)
				}
				check.gone()

				p := dial(t, addr)
				p.send(raw(s.hello))
				if r := p.next(); r.kind != 101 || r.keys()["capabilities"] != "pipelining" ||
					r.keys()["max-frame-size"] != int64(16380) {
					t.Fatalf("%+v: %v", r, r.keys())
				}
				for frame, limit := range map[string]int64{s.get: 7, s.purge: 9} {
					b := raw(frame)
					p.send(b)
					r := p.next()
					if !bytes.Equal(number(r.stream), b[9:10]) || !bytes.Equal(number(r.id), b[10:11]) ||
						r.vars(t)["limit"] != limit {
						t.Errorf("%+v: %v, want limit %d", r, r.vars(t), limit)
					}
				}
				if s.disconnect != "" {
					p.send(raw(s.disconnect))
					p.ends(statusNormal)
				}
			})
		})
	}
}

// TestDocumented: docs/guides/haproxy.md describes each variable.
func TestDocumented(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "guides", "haproxy.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "## What Weir sets")
	table, _, _ = strings.Cut(table, "\n## ")
	for _, name := range Variables {
		if !strings.Contains(table, "`"+name+"`") {
			t.Errorf("docs/guides/haproxy.md does not tell of %s", name)
		}
	}
}
