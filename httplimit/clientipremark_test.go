package httplimit

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

// TestClientIPRemark: who reads a list by the addresses of a whole private network is told what
// that means.
func TestClientIPRemark(t *testing.T) {
	for _, c := range []struct {
		trusted string
		header  string
		hops    int
		doubts  bool
	}{
		{"private", "", 0, true},
		{"10.0.0.0/8", "", 0, true},
		{"0.0.0.0/0", "", 0, true},
		{"fc00::/7", "Forwarded", 0, true},
		{"192.0.2.1 private", "X-Forwarded-For", 0, true},
		{"private", "", 2, false},
		{"private", "CF-Connecting-IP", 0, false},
		{"loopback", "", 0, false},
		{"10.1.0.0/16", "", 0, false},
		{"", "", 0, false},
	} {
		trusted, err := ParseTrusted(strings.Fields(c.trusted))
		if err != nil {
			t.Fatal(err)
		}
		ip := ClientIP{Trusted: trusted, Header: c.header, Hops: c.hops}
		if remark := ip.Remark(); (remark != "") != c.doubts {
			t.Errorf("%+v: %q", c, remark)
		}
		var log bytes.Buffer
		if _, err := NewGate(wallLimiter(t, `limits: [{name: one, allow: 1/min}]`), Options{ClientIP: ip, Logger: slog.New(slog.NewTextHandler(&log, nil))}); err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(log.String(), "such an address itself"); got != 1 && c.doubts || got != 0 && !c.doubts {
			t.Errorf("%+v: the log says %s", c, log.String())
		}
	}
}
