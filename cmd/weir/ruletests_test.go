package main

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// Tests of rules that go on for long end at --timeout and when they are interrupted, and it is said
// which of them it was.
func TestRuleTestsEnd(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.Mkdir("rules", 0o700); err != nil {
		t.Fatal(err)
	}
	servertest.WriteRules(t, "rules/shop.yaml", "limits: [{ name: x, per: [ip], allow: 5/min }]\n")
	send := "      - send: { ip: 192.0.2.1, times: 10000000 }\n"
	servertest.WriteRules(t, "rules/shop_test.yaml", "tests:\n  - name: long\n    steps:\n"+strings.Repeat(send, 3))
	const at = "weir: rules/shop_test.yaml: long: line "
	if status, out := weirOutput(t, "test", "--timeout", "20ms", "rules"); status != exitFailure ||
		!strings.Contains(out, at) || !strings.Contains(out, "not done within 20ms") ||
		!strings.Contains(out, "--timeout") {
		t.Errorf("exit status %d\n%s", status, out)
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel) // of seconds that the test takes
	var out bytes.Buffer
	if status := Run(ctx, []string{"test", "--timeout", "0", "rules"}, nil, strings.NewReader(""), &out, &out); status != exitFailure || !strings.Contains(out.String(), at) || !strings.HasSuffix(out.String(), ": interrupted\n") {
		t.Errorf("exit status %d\n%s", status, &out)
	}
	if status, out := weirOutput(t, "test", "--timeout", "-1s", "rules"); status != exitUsage ||
		!strings.Contains(out, "--timeout must not be negative") {
		t.Errorf("exit status %d\n%s", status, out)
	}
}
