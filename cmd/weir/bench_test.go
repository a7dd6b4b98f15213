package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/patience"
)

// runBench runs weir bench, and returns its exit status and what it wrote.
func runBench(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	status = Run(t.Context(), append([]string{"bench"}, args...), nil, strings.NewReader(""), &out, &errs)
	return status, out.String(), errs.String()
}

// Each door is asked as often as is said, and what it allows is what the rules do.
func TestBench(t *testing.T) {
	dir := t.TempDir()
	writeRules(t, dir+"/rules.yaml", "domain: shop\nlimits: [{ name: once, when: { path: /search }, per: [user], allow: 3/year, algorithm: sliding_log }]\n")
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }))
	defer upstream.Close()
	w := start(t, "serve", "--rules", dir, "--listen-proxy=127.0.0.1:0", "--proxy-upstream="+upstream.URL, "--identity=user=header:X-User")
	defer w.end()
	common := []string{"--rate=2000", "--for=200ms", "--warmup=0s", "--draw=turn", "--keys=100", "--json", fmt.Sprintf("--pid=self=%d", os.Getpid())}
	// 400 requests of 100 keys: each key is asked for four times, and the counters are the same at
	// all doors, except for the commands that bring their limit. On a machine that is too busy to
	// send all of them in time, the next door finds less used up.
	const nothing = "nothing was answered"
	late, admitted := false, int64(0)
	for i, c := range []struct {
		args             []string
		allowed, refused int64
		shared           bool // the counters
	}{
		{[]string{"http://" + w.addr("http"), "--domain=shop", "--attribute=path=/search"}, 300, 100, true},
		{[]string{"grpc://" + w.addr("grpc"), "--domain=shop", "--attribute=path=/search", "--connections=2"}, 0, 400, true},
		{[]string{"redis://" + w.addr("resp"), "--domain=shop", "--attribute=path=/search"}, 0, 400, true},
		{[]string{"redis://" + w.addr("resp"), "--door=throttle", "--throttle=1,1,100000"}, 200, 200, false},
		{[]string{"http://" + w.addr("proxy") + "/search", "--door=proxy", "--key=X-User"}, 0, 400, true},
		{[]string{"http://" + w.addr("proxy") + "/other", "--door=proxy", "--key=X-User", "--header=X-More: 1"}, 400, 0, false},
	} {
		status, out, errs := runBench(t, append(c.args, common...)...)
		if strings.Contains(errs, nothing) {
			late = true
			continue
		}
		var got struct {
			Allowed, Refused, Failed, Unsent int64
			Latency                          map[string]float64 `json:"latency_us"`
			CPU                              map[string]float64 `json:"cpu_us"`
		}
		if err := json.Unmarshal([]byte(out), &got); status != 0 || err != nil {
			t.Fatalf("%d: exit status %d: %v\n%s%s", i, status, err, out, errs)
		}
		if got.Unsent > 0 {
			t.Logf("%d: this machine is busy: %d were not sent", i, got.Unsent)
			late = true
		}
		if sent := got.Allowed + got.Refused; sent+got.Unsent != 400 {
			t.Errorf("%d: %d decided and %d not sent, of 400", i, sent, got.Unsent)
		}
		if c.shared {
			admitted += got.Allowed
		}
		if late && admitted > 300 {
			t.Errorf("%d: %d allowed, of 300", i, admitted)
		} else if !late && (got.Allowed != c.allowed || got.Refused != c.refused) {
			t.Errorf("%d: %d allowed, %d refused; want %d and %d", i, got.Allowed, got.Refused, c.allowed, c.refused)
		}
		if got.Failed > 0 || got.Latency["p50"] <= 0 || got.Latency["p50"] > got.Latency["p99"] || got.CPU["self"] <= 0 {
			t.Errorf("%d: %s", i, out)
		}
	}
	var status int
	var out string
	length := 100 * time.Millisecond
	patience.Until(t, "something is answered", func() bool {
		var errs string
		status, out, errs = runBench(t, "http://"+w.addr("http"), "--domain=shop", "--rate=0", "--for="+length.String(), "--warmup=10ms", "--callers=4")
		length *= 2
		return !strings.Contains(errs, nothing)
	})
	for _, want := range []string{" a second\n", "refused 0\n", "since it was sent", "p99.9", "#"} {
		if status != 0 || !strings.Contains(out, want) {
			t.Errorf("exit status %d, without %q:\n%s", status, want, out)
		}
	}
}

func TestBenchErrors(t *testing.T) {
	for want, args := range map[string][]string{
		"no URL such as http://127.0.0.1:8080":                 {"127.0.0.1:8080"},
		"the scheme is http, https, grpc":                      {"ftp://127.0.0.1:8080"},
		"a path is for the door proxy only":                    {"http://127.0.0.1:8080/search"},
		`there is no door "dns"; there are [http rls resp`:     {"http://127.0.0.1:8080", "--door=dns"},
		"the door rls is not asked by http://":                 {"http://127.0.0.1:8080", "--door=rls"},
		"9999 connections are not from 1 to the 64 callers":    {"http://127.0.0.1:8080", "--connections=9999"},
		"a rate of -1 is not from 0":                           {"http://127.0.0.1:8080", "--rate=-1"},
		`keys are drawn by uniform, zipf or turn, not "gauss"`: {"http://127.0.0.1:8080", "--draw=gauss"},
		"--attribute path: write NAME=VALUE":                   {"http://127.0.0.1:8080", "--attribute=path"},
		"the keys are values of user already (--key)":          {"http://127.0.0.1:8080", "--attribute=user=ada"},
		`--header "X": write NAME: VALUE`:                      {"http://127.0.0.1:8080", "--header=X"},
		"--throttle 1,2: write max_burst,count,period":         {"redis://127.0.0.1:6380", "--throttle=1,2"},
		`--pid weir=x: "x" is no process id`:                   {"http://127.0.0.1:8080", "--pid=weir=x"},
		"--warmup 2h0m0s is not from 0 to an hour":             {"http://127.0.0.1:8080", "--warmup=2h"},
		"accepts 1 arg(s), received 0":                         {},
	} {
		if status, out, errs := runBench(t, args...); status != exitUsage || out != "" || !strings.Contains(errs, want) {
			t.Errorf("%v: exit status %d, want %q:\n%s%s", args, status, want, out, errs)
		}
	}
	// Nobody listens: it does not go on for the hour that is asked for.
	if status, _, errs := runBench(t, "http://127.0.0.1:1", "--for=1h", "--warmup=0s", "--rate=0", "--callers=1"); status != 1 || !strings.Contains(errs, "fails again and again: ") {
		t.Errorf("exit status %d: %s", status, errs)
	}
}
