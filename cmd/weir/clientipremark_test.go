package main

import (
	"bytes"
	"strings"
	"testing"
)

// TestTrustedPrivate: who trusts a whole private network, and reads a list by its addresses, is
// told so at the start, and by --check.
func TestTrustedPrivate(t *testing.T) {
	rules := rulesFile(t, hourly)
	const remark = "client_ip.trusted_proxies: all of 10.0.0.0/8 is trusted"
	check := func(args ...string) string {
		t.Helper()
		var out, errs bytes.Buffer
		args = append([]string{"serve", "--check", "--rules=" + rules}, args...)
		if code := Run(t.Context(), args, nil, strings.NewReader(""), &out, &errs); code != 0 {
			t.Fatalf("%q: exit status %d\n%s%s", args, code, out.String(), errs.String())
		}
		return errs.String()
	}
	if text := check("--client-ip-trusted-proxies=private"); strings.Count(text, remark) != 1 {
		t.Errorf("private: %s", text)
	}
	for _, args := range [][]string{nil, {"--client-ip-trusted-proxies=private", "--client-ip-hops=1"}, {"--client-ip-trusted-proxies=10.1.0.0/16"}} {
		if text := check(args...); strings.Contains(text, "is trusted") {
			t.Errorf("%q: %s", args, text)
		}
	}
	p := start(t, "serve", "--rules="+rules, "--client-ip-trusted-proxies=private")
	p.addr("http")
	p.end()
	if text := p.stderr.String(); strings.Count(text, remark) != 1 {
		t.Errorf("at the start: %s", text)
	}
}
