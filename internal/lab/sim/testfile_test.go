package sim

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
)

const loginRules = `
domain: shop
limits:
  - { name: login, when: { path: /login }, per: [ip], allow: 5/min, algorithm: sliding_log }
  - { name: queue, when: { path: /queue }, per: [ip], allow: { rate: 1/s, burst: 1 }, algorithm: leaky_bucket }
  - { name: slots, when: { path: /slots }, per: [ip], allow: 2 concurrent, timeout: 5s }
`

// goOn lets a test go on.
func goOn() error { return nil }

// A test ends as soon as it is told to, wherever it is, and says how far it came.
func TestRunTestEnds(t *testing.T) {
	f, err := ParseTests("x_test.yaml", []byte(`tests:
  - name: long
    steps:
      - send: { method: GET, path: /, times: 100 }
      - { release: 64 }
`))
	if err != nil {
		t.Fatal(err)
	}
	set, _, err := file.Load([]file.Source{{Name: "x.yaml",
		Data: []byte("limits: [{ name: x, algorithm: concurrency, allow: 200 }]")}}, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	end := errors.New("enough")
	for n, want := range []string{
		"line 4: enough", "line 4, after 31 of 100 requests: enough", "line 4, after 63 of 100 requests: enough",
		"line 4, after 95 of 100 requests: enough", "line 5: enough", "line 5, after 31 of 64 slots: enough",
		"line 5, after 63 of 64 slots: enough", "",
	} {
		pauses := 0
		r, err := RunTest(set, "default", f.Tests[0], func() error {
			if pauses++; pauses > n {
				return end
			}
			return nil
		})
		if want == "" {
			if err != nil || r.Failed {
				t.Errorf("%+v, %v", r, err)
			}
		} else if !errors.Is(err, end) || err.Error() != want || pauses != n+1 {
			t.Errorf("after %d pauses: %v, want %s", pauses, err, want)
		}
	}
}

// A test that holds ever more slots ends before it takes all memory.
func TestRunTestHoldsFewSlots(t *testing.T) {
	f, err := ParseTests("x_test.yaml",
		[]byte("tests: [{ name: many, steps: [{ send: { method: GET, times: 1000005 } }] }]"))
	if err != nil {
		t.Fatal(err)
	}
	set, _, err := file.Load([]file.Source{{Name: "x.yaml",
		Data: []byte("limits: [{ name: x, algorithm: concurrency, allow: 1000000000 }]")}}, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := RunTest(set, "default", f.Tests[0], goOn); err == nil ||
		!strings.Contains(err.Error(), "after 1000001 of 1000005 requests: a test can hold 1000000 slots") {
		t.Error(err)
	}
}

func runTests(t *testing.T, text string) []*TestResult {
	t.Helper()
	f, err := ParseTests("x_test.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	var results []*TestResult
	for _, test := range f.Tests {
		r, err := RunTest(load(t, loginRules), "shop", test, goOn)
		if err != nil {
			t.Fatal(err)
		}
		results = append(results, r)
	}
	return results
}

// Each expectation holds for the right value, and fails for the one next to it, saying what came.
func TestExpectations(t *testing.T) {
	const fill = "      - send: { path: /login, ip: a, times: 5 }\n      - wait: 10s\n      - send: { path: /login, ip: a }\n        expect: "
	const queue = "      - send: { path: /queue, ip: a }\n      - send: { path: /queue, ip: a }\n        expect: "
	for _, tt := range []struct{ steps, right, wrong, got string }{
		{fill, "{ allowed: false }", "allowed", "denied by login, retry_after 50s"},
		{fill, "{ denied_by: login }", "{ denied_by: queue }", "denied by login"},
		{fill, "{ denied_by: [login] }", "{ denied_by: [] }", "denied by login"},
		{fill, "{ denied_by: [login] }", "{ denied_by: [login, login] }", "denied by login"},
		{fill, "{ remaining: 0 }", "{ remaining: 1 }", "remaining 0"},
		{fill, "{ retry_after: 50s }", "{ retry_after: 50000001us }", "retry_after 50s"},
		{fill, "{ retry_after: 50s }", "{ retry_after: never }", "retry_after 50s"},
		{fill, "{ reset_after: 50s }", "{ reset_after: 49s }", "reset_after 50s"},
		{queue, "{ allowed: true, delay: 1s }", "{ delay: 0s }", "delay 1s"},
		{"      - send: { path: /none }\n        expect: ", "{ allowed: true, retry_after: 0s }", "{ remaining: 0 }", "remaining none (no limit was met)"},
	} {
		head := "tests:\n  - name: x\n    steps:\n" + tt.steps
		if r := runTests(t, head+tt.right); r[0].Failed {
			t.Errorf("expect: %s failed: %+v", tt.right, r[0].Steps)
		}
		r := runTests(t, head+tt.wrong)
		last := r[0].Steps[len(r[0].Steps)-1]
		if !r[0].Failed || last.Failed != 1 || !strings.Contains(last.Got, tt.got) || last.Expected == "" {
			t.Errorf("expect: %s: failed %v at request %d, expected %q, got %q; want a failure with %q", tt.wrong,
				r[0].Failed, last.Failed, last.Expected, last.Got, tt.got)
		}
	}
}

// The test file sees the effect of on_limit, and the remaining number of single limits, as doors
// would report them.
func TestOutcomes(t *testing.T) {
	set := load(t, `
limits:
  - { name: held, when: { path: /held }, per: [ip], allow: 1/10s, algorithm: sliding_log, on_limit: { wait: 10s } }
  - { name: brief, when: { path: /brief }, per: [ip], allow: 1/10s, algorithm: sliding_log, on_limit: { wait: 9s } }
  - { name: mixed, when: { path: /mixed }, per: [ip], allow: 1/10s, algorithm: sliding_log, on_limit: { wait: 10s } }
  - { name: plain, when: { path: /mixed }, per: [ip], allow: 1/10s, algorithm: sliding_log }
  - { name: turns, when: { path: /turns }, per: [ip], allow: { rate: 1/s, burst: 5 }, algorithm: leaky_bucket, on_limit: { wait: 2s } }
  - { name: slots, when: { path: /slots }, per: [ip], allow: 1, algorithm: concurrency, on_limit: { wait: 1s } }
  - { name: later, when: { path: /later }, per: [ip], allow: 1/10s, algorithm: sliding_log, on_limit: { defer: mails } }
  - { name: "two", when: { path: /two }, per: [ip], allow: [5/min, 3/h], algorithm: sliding_log }
  - { name: seen, when: { path: /two }, per: [ip], allow: 9/min, algorithm: sliding_log, on_limit: shadow }
`)
	for _, c := range []struct {
		path   string
		times  int // sent before
		hits   string
		expect string
		got    string // of the opposite
	}{
		{"/held", 0, "1", "{ wait: false, defer: [], remaining: { held: 0 } }", ""},
		{"/held", 1, "1", "{ allowed: false, wait: true, defer: [] }", ""},
		{"/held", 1, "0", "{ wait: false }", ""},
		{"/brief", 1, "1", "{ denied_by: brief, wait: false }", ""},
		{"/mixed", 1, "1", "{ denied_by: [mixed, plain], wait: false }", ""},
		{"/turns", 1, "1", "{ allowed: true, delay: 1s, wait: true }", ""},
		{"/turns", 3, "1", "{ allowed: true, delay: 3s, wait: false }", ""},
		{"/turns", 6, "1", "{ allowed: false, wait: false }", ""},
		{"/slots", 1, "1", "{ allowed: false, wait: true }", ""},
		{"/later", 1, "1", "{ allowed: false, wait: false, defer: mails }", ""},
		{"/later", 0, "1", "{ defer: [] }", ""},
		{"/later", 1, "1", "{ defer: [] }", "deferred to mails"},
		{"/later", 1, "1", "{ defer: letters }", "deferred to mails"},
		{"/held", 1, "1", "{ wait: false }", "wait true"},
		{"/two", 1, "1", "{ remaining: { two: 1, \"two:60s\": 3, \"two:3600s\": 1, seen: 7 } }", ""},
		{"/two", 1, "1", "{ remaining: { two: 2 } }", "remaining of two 1"},
		{"/two", 1, "1", "{ remaining: { two: 1, held: 0 } }", "remaining of held none (it was not met), remaining of two 1"},
	} {
		text := "tests:\n  - steps:\n"
		for range c.times {
			text += "      - send: { path: " + c.path + ", ip: a }\n"
		}
		text += "      - send: { path: " + c.path + ", ip: a, hits: " + c.hits + " }\n        expect: " + c.expect +
			"\n"
		f, err := ParseTests("x_test.yaml", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		r, err := RunTest(set, "default", f.Tests[0], goOn)
		if err != nil {
			t.Fatal(err)
		}
		if last := r.Steps[len(r.Steps)-1]; r.Failed != (c.got != "") || !strings.Contains(last.Got, c.got) {
			t.Errorf("%s after %d, expect: %s: failed %t, got %q", c.path, c.times, c.expect, r.Failed, last.Got)
		}
	}
}

// With times, the result names the number of the failing request; the rest are sent all the same,
// and later steps run.
func TestRunGoesOnAfterAFailure(t *testing.T) {
	r := runTests(t, `
tests:
  - name: x
    steps:
      - send: { path: /login, ip: a, times: 7 }
        expect: allowed
      - wait: 1m
      - send: { path: /login, ip: a, hits: 5 }
        expect: allowed
  - name: an empty store again
    start: 2026-01-01T00:00:00.000001Z
    steps:
      - send: { path: /login, ip: a, times: 5 }
        expect: allowed
`)
	if s := r[0].Steps; !r[0].Failed || len(s) != 3 || s[0].Failed != 6 || s[2].Failed != 0 || s[1].What != "wait 1m" {
		t.Errorf("steps %+v", s)
	}
	if r[1].Failed || r[1].Test.Start != 1_767_225_600_000_001 {
		t.Errorf("second test: %+v, start %d", r[1].Steps, r[1].Test.Start)
	}
}

func TestRelease(t *testing.T) {
	r := runTests(t, `
tests:
  - name: right
    steps:
      - send: { path: /slots, ip: a, times: 2 }
        expect: allowed
      - release: 1
      - send: { path: /slots, ip: a }
        expect: allowed
  - name: too many
    steps:
      - send: { path: /slots, ip: a }
      - release: 2
  - name: too late
    steps:
      - send: { path: /slots, ip: a }
      - wait: 5s
      - release: 1
`)
	if r[0].Failed {
		t.Errorf("%+v", r[0].Steps)
	}
	if s := r[1].Steps[1]; s.Failed != 2 || s.Got != "only 1 are held" {
		t.Errorf("%+v", s)
	}
	if s := r[2].Steps[2]; s.Failed != 1 || s.Got != "it had timed out" {
		t.Errorf("%+v", s)
	}
}

// A signal that is set holds at once and exactly; one that no limit follows fails the test.
func TestSetSignal(t *testing.T) {
	set := load(t, `
domain: shop
limits:
  - { name: api, when: { path: /api }, allow: 4/min, algorithm: sliding_log, throttle: { elastic: { signal: cpu, curve: { 50%: 200%, 80%: 100%, 90%: 0% } } } }
`)
	f, err := ParseTests("x_test.yaml", []byte(`
tests:
  - name: follows the curve
    steps:
      - set: { signal: cpu, to: 65% }
      - send: { path: /api, times: 6 }
        expect: allowed
      - send: { path: /api }
        expect: { denied_by: api }
      - set: { signal: cpu, to: 50 }
      - send: { path: /api, times: 2 }
        expect: allowed
      - set: { signal: cpu, to: 100% }
      - send: { path: /api }
        expect: { denied_by: api, retry_after: never }
  - name: begins at 100 percent
    steps:
      - send: { path: /api, times: 4 }
        expect: allowed
      - send: { path: /api }
        expect: { denied_by: api }
  - name: another signal
    steps:
      - set: { signal: cpus, to: 1% }
`))
	if err != nil {
		t.Fatal(err)
	}
	for i, test := range f.Tests {
		r, err := RunTest(set, "shop", test, goOn)
		if err != nil {
			t.Fatal(err)
		}
		if r.Failed != (i == 2) {
			t.Errorf("%s: %+v", test.Name, r.Steps)
		}
		if s := r.Steps[0]; i == 2 && (s.Expected != "an elastic limit that follows cpus" ||
			s.Got != "limits follow cpu" || s.What != "set { signal: cpus, to: 1% }") {
			t.Errorf("%+v", s)
		}
	}
}

func TestParseTestErrors(t *testing.T) {
	head := "tests:\n  - name: x\n    steps:\n"
	for _, tt := range []struct {
		name, text string
		want       []string // each a part of the error
	}{
		{"empty", "", []string{`x_test.yaml: the file is empty`}},
		{"no tests", "domain: a", []string{`1:`, `expected a list "tests"`}},
		{"unknown key", "domian: a\ntests: []", []string{`x_test.yaml:1:1: a test file has no key "domian"`, `did you mean "domain"?`, "  domian: a\n  ^"}},
		{"unknown key of a step", head + "      - sned: {}", []string{`4:9: a step has no key "sned"`, `did you mean "send"?`}},
		{"unknown key of expect", head + "      - send: {}\n        expect: { retry_afer: 1s }", []string{`5:19: expect has no key "retry_afer"`, `did you mean "retry_after"?`}},
		{"all at once", head + "      - send: { times: 0 }\n        expect: alowed\n      - wait: soon\n", []string{"4:", `times: expected an integer from 1`, "5:", `did you mean "allowed"?`, "6:", "expected a duration"}},
		{"two in one step", head + "      - wait: 1s\n        release: 1", []string{"exactly one of send, wait, release and set, not 2"}},
		{"expect alone", head + "      - expect: allowed", []string{"exactly one of send, wait, release and set, not 0"}},
		{"expect after wait", head + "      - wait: 1s\n        expect: allowed", []string{"expect belongs to a send"}},
		{"set a bad name", head + "      - set: { signal: CPU, to: 80% }", []string{`4:24: signal: expected 1 to 100 lower-case letters`}},
		{"set too high", head + "      - set: { signal: cpu, to: 101% }", []string{`4:33: to: expected a whole percentage from 0% to 100%, not "101%"`}},
		{"set to nothing", head + "      - set: { signal: cpu }", []string{"set needs signal and to"}},
		{"set another key", head + "      - set: { signal: cpu, too: 5% }", []string{`set has no key "too"`, `did you mean "to"?`}},
		{"expect after set", head + "      - set: { signal: cpu, to: 0 }\n        expect: allowed", []string{"expect belongs to a send"}},
		{"nanoseconds", head + "      - wait: 1ns", []string{"1ns is no whole number of microseconds"}},
		{"negative wait", head + "      - wait: -1s", []string{"below 0"}},
		{"bad start", "start: yesterday\n" + head + "      - wait: 1s", []string{`1:8: start: expected a time such as`}},
		{"start too fine", "start: 2026-01-01T00:00:00.0000001Z\n" + head + "      - wait: 1s", []string{"microseconds"}},
		{"value is a list", head + "      - send: { path: [a] }", []string{"path: expected a word or a number, not a list"}},
		{"steps no list", "tests:\n  - steps: 5", []string{"steps: expected a list, not a single value"}},
		{"no steps", "tests:\n  - name: a", []string{`test "a" has no steps`}},
		{"hits too large", head + "      - send: { hits: 2147483648 }", []string{"hits: expected an integer from -2147483647 to 2147483647"}},
		{"release none", head + "      - release: 0", []string{"release: expected an integer from 1"}},
		{"not YAML", "tests: [", []string{"not valid YAML"}},
		{"two documents", "tests: []\n---\ntests: []", []string{"one document"}},
		{"allowed of another kind", head + "      - send: {}\n        expect: { allowed: yes }", []string{"allowed: expected true or false"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := ParseTests("x_test.yaml", []byte(tt.text))
			var problems rule.Problems
			if !errors.As(err, &problems) {
				t.Fatalf("error %v, want rule.Problems", err)
			}
			for _, w := range tt.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("no %q in\n%v", w, err)
				}
			}
		})
	}
}

func TestSendKeepsValuesAsWritten(t *testing.T) {
	f, err := ParseTests("x",
		[]byte(
			"tests: [{ steps: [{ send: { user: 007, plan: true, n: 1.50, q: \"a b\", times: 2, hits: -3, max_delay: 5ms } }] }]"))
	if err != nil {
		t.Fatal(err)
	}
	if got := f.Tests[0].Steps[0].Send.String(); got != "send { user: 007, plan: true, n: 1.50, q: a b, hits: -3, max_delay: 5ms, times: 2 }" {
		t.Error(got)
	}
}

func TestSpan(t *testing.T) {
	for us, want := range map[int64]string{0: "0s", 1: "1us", 1500: "1.5ms", 60e6: "1m", 90e6: "1m30s", 3600e6: "1h",
		5400e6: "1h30m", 3601e6: "1h0m1s", 36e9: "10h", 600e6: "10m", -1: "never"} {
		if got := span(us); got != want {
			t.Errorf("span(%d) = %s, want %s", us, got, want)
		}
	}
}

func FuzzParseTests(f *testing.F) {
	f.Add(
		[]byte(
			"domain: shop\nstart: 2026-01-01T00:00:00Z\ntests:\n  - name: x\n    steps:\n      - send: { path: /, times: 5 }\n        expect: { denied_by: [a], retry_after: never }\n      - wait: 1m\n      - release: 2\n      - set: { signal: cpu, to: 80% }\n"))
	f.Add([]byte("tests: [{ steps: [{ send: &a { x: 1 } }, { send: *a }] }]"))
	f.Add([]byte("? a\n: b"))
	f.Add([]byte("tests: !!map\n- <<: 1"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 2000 {
			return
		}
		file, err := ParseTests("x", data)
		if (err == nil) != (file != nil) {
			t.Errorf("file %v, error %v", file, err)
		}
	})
}

// Every golden case under examples/golden holds.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("..", "..", "..", "examples", "golden", "*", "*_test.yaml"))
	if err != nil || len(files) < 9 {
		t.Fatalf("found %d golden files (%v)", len(files), err)
	}
	for _, path := range files {
		t.Run(filepath.Base(filepath.Dir(path)), func(t *testing.T) {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			tests, err := ParseTests(path, data)
			if err != nil {
				t.Fatal(err)
			}
			rules, err := os.ReadFile(filepath.Join(filepath.Dir(path), "rules.yaml"))
			if err != nil {
				t.Fatal(err)
			}
			set := load(t, string(rules))
			if warnings := file.Lint(set, file.LintOptions{}); len(warnings) > 0 &&
				!strings.Contains(path, "concurrency") {
				t.Logf("lint: %v", warnings)
			}
			for _, test := range tests.Tests {
				r, err := RunTest(set, tests.Domain, test, goOn)
				if err != nil {
					t.Fatal(err)
				}
				for _, s := range r.Steps {
					if s.Failed > 0 {
						t.Errorf("%s:%d: %s, request %d: expected %s, got %s", path, s.Step.Line, s.What, s.Failed,
							s.Expected, s.Got)
					}
				}
			}
		})
	}
}
