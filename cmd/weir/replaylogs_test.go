package main

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/klauspost/compress/gzip"

	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// logArguments are what it takes, beside the name of a log in testdata/logs, to read it. Those that
// are not named here are found out.
var logArguments = map[string][]string{
	"apache-words.log": {"--format", `[%{%d/%b/%Y %T}t.%{usec_frac}t %{%z}t] %v:%p %h %{pid}P %m %U%q %>s "%{User-Agent}i"`},
	"envoy-chain.log":  {"--trusted-proxies", "10.0.0.0/8"},
	"json-list.jsonl":  {"--trusted-proxies", "private"},
	"nginx-main.log":   {"--trusted-proxies", "private"},
	"nginx-words.log": {"--trusted-proxies", "10.0.0.7,10.0.0.9", "--format", `log_format main '$remote_addr - $remote_user [$time_local] $host "$request" ' ` +
		`'$status $body_bytes_sent "$http_referer" "$http_user_agent" rt=$request_time uct="$upstream_connect_time" ' 'xff="$http_x_forwarded_for" up="$upstream_addr"';`},
	"xff-and-peer.log": {"--trusted-proxies", "private"},
}

// logSkips are the lines of some logs that hold no request, and are told as such.
var logSkips = map[string]int64{"docker.json": 1, "pino.jsonl": 1, "fastify.jsonl": 7}

// replayedLog is what a replay says of one of the logs.
type replayedLog struct {
	Requests, Skipped, Clients int64
	TopDenied                  []struct {
		Value    string
		Requests int64
	} `json:"top_denied"`
	Paths []struct {
		Value    string
		Requests int64
	}
	Notes []string
}

// clients returns how many requests came from each client.
func (r *replayedLog) clients() map[string]int64 {
	m := map[string]int64{}
	for _, c := range r.TopDenied {
		m[c.Value] = c.Requests
	}
	return m
}

// onePerDay are rules that refuse each client's second request, so that all clients are listed.
func onePerDay(t *testing.T) string {
	rules := t.TempDir()
	servertest.WriteRules(t, filepath.Join(rules, "rules.yaml"),
		"limits: [{ name: per-client, per: [ip], allow: 1/day, algorithm: fixed_window }]\n")
	return rules
}

func replayLog(t *testing.T, rules string, args ...string) *replayedLog {
	t.Helper()
	status, out, errs := runWeir(append([]string{"replay", "--rules", rules, "--json"}, args...)...)
	if status != 0 {
		t.Fatalf("exit status %d: %s", status, errs)
	}
	r := &replayedLog{}
	if err := json.Unmarshal([]byte(out), r); err != nil {
		t.Fatal(err)
	}
	return r
}

// All logs in testdata/logs, each in another format, hold the same seven requests of three clients.
func TestReplayLogs(t *testing.T) {
	t.Parallel()
	rules := onePerDay(t)
	clients := map[string]int64{"192.0.2.1": 3, "192.0.2.2": 2, "2001:db8::1": 2}
	paths := map[string]int64{"/login": 4, "/api/orders": 3}
	folder := filepath.Join("testdata", "logs")
	files, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		t.Run(f.Name(), func(t *testing.T) {
			r := replayLog(t, rules, append(slices.Clone(logArguments[f.Name()]), filepath.Join(folder, f.Name()))...)
			got := map[string]int64{}
			for _, p := range r.Paths {
				got[p.Value] = p.Requests
			}
			if r.Requests != 7 || r.Skipped != logSkips[f.Name()] || r.Clients != 3 ||
				!maps.Equal(r.clients(), clients) || !maps.Equal(got, paths) {
				t.Errorf("%+v", r)
			}
		})
	}
	for name := range logArguments {
		if _, err := os.Stat(filepath.Join(folder, name)); err != nil {
			t.Error(err)
		}
	}
}

// Without a trusted proxy no list is believed, as at the doors, and the report says so.
func TestReplayBelievesNoList(t *testing.T) {
	t.Parallel()
	rules := onePerDay(t)
	for _, c := range []struct {
		log     string
		clients map[string]int64
		note    string
	}{
		{"nginx-main.log", map[string]int64{"10.0.0.7": 7},
			"In 7 of 7 requests X-Forwarded-For names others than the client"},
		{"xff-and-peer.log", map[string]int64{"10.0.0.7": 7},
			"In 7 of 7 requests X-Forwarded-For names others than the client"},
		// A client that has put an address before its own has chosen that.
		{"envoy-chain.log", map[string]int64{"192.0.2.1": 2, "192.0.2.2": 2, "2001:db8::1": 2},
			"In 7 of 7 requests a list of addresses stands for the client"},
		{"xff-first.log", map[string]int64{"192.0.2.1": 3, "192.0.2.2": 2, "2001:db8::1": 2},
			"In 7 of 7 requests a list of addresses stands for the client"},
	} {
		t.Run(c.log, func(t *testing.T) {
			r := replayLog(t, rules, filepath.Join("testdata", "logs", c.log))
			if !maps.Equal(r.clients(), c.clients) || len(r.Notes) != 1 || !strings.Contains(r.Notes[0], c.note) {
				t.Errorf("%+v", r)
			}
		})
	}
	// A server that has found the client in the list itself needs no help.
	if r := replayLog(t, rules, filepath.Join("testdata", "logs", "istio.log")); len(r.Notes) != 0 {
		t.Errorf("notes %q", r.Notes)
	}
	// The peer of a unix socket is no address.
	log := filepath.Join(t.TempDir(), "access.log")
	line := `unix: - - [20/Nov/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 5 "-" "-" "192.0.2.1"` + "\n"
	if err := os.WriteFile(log, []byte(line+line), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := replayLog(t, rules, "--trusted-proxies", "unix", log); r.clients()["192.0.2.1"] != 2 {
		t.Errorf("%+v", r)
	}
}

// Columns that were told by their contents are shown, so that a wrong guess is seen.
func TestReplayShowsGuessedColumns(t *testing.T) {
	t.Parallel()
	r := replayLog(t, onePerDay(t), filepath.Join("testdata", "logs", "time-first.log"))
	if len(r.Notes) != 1 || !strings.Contains(r.Notes[0], `ip="192.0.2.1"`) ||
		!strings.Contains(r.Notes[0], "--format") {
		t.Errorf("notes %q", r.Notes)
	}
}

// A replay of a log that it reads otherwise than it is meant stops, and shows how it was read.
func TestReplayMisread(t *testing.T) {
	t.Parallel()
	const combined = ` - - [20/Nov/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 5 "-" "-"` + "\n"
	var many strings.Builder
	for range 2000 { // those that come after the first ones count, too
		many.WriteString("192.0.2.1" + combined)
	}
	for range 20_000 {
		many.WriteString("web-1" + combined)
	}
	rules := onePerDay(t)
	users := t.TempDir()
	servertest.WriteRules(t, filepath.Join(users, "rules.yaml"),
		"limits: [{ name: per-tenant, per: [tenant], allow: 1/day }]\n")
	for _, c := range []struct {
		name, log string
		args      []string
		want      []string
	}{
		{"no client", "web1" + combined + "web2" + combined, nil, []string{
			`neither an address nor a name with a dot in 2 of 2 lines, such as "web1"`, "line:    web1 - - [20/Nov", "read as: common", `found:   time=2026-11-20T10:00:00Z ip="web1"`}},
		{"no client from the middle on", many.String(), nil, []string{`neither an address nor a name with a dot`, `such as "web-1"`}},
		{"the wrong words", "192.0.2.1" + combined, []string{"--format", `%v %h %u [%{%d/%b/%Y:%T %z}t] "%r"`}, []string{"no line has an attribute", "read as: %v %h"}},
		{"a path by the name of the client", "2026-11-20T10:00:00Z,/login,192.0.2.1\n", []string{"--fields", "time,ip,path"}, []string{`such as "/login"`}},
		{"the host that was asked", "www.example.com 192.0.2.1" + combined, []string{"--format", "combined"}, []string{`such as "www.example.com"`, "read as: common"}},
		{"an empty log first", "192.0.2.1" + combined, []string{"--rules", users, os.DevNull}, []string{"read (tenant)", "line:    192.0.2.1"}},
		{"unknown keys", `{"time":"2026-11-20T10:00:00Z","peer_of_ours":"192.0.2.1"}` + "\n", nil, []string{
			"no line has an attribute that the rules of ", "read (ip)", `line:    {"time":`, "read as: json", `found:   time=2026-11-20T10:00:00Z peer_of_ours="192.0.2.1"`, "--fields ip=KEY"}},
		{"rules for something else", "192.0.2.1" + combined, []string{"--rules", users}, []string{"no line has an attribute", "read (tenant)"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			log := filepath.Join(t.TempDir(), "access.log")
			if err := os.WriteFile(log, []byte(c.log), 0o600); err != nil {
				t.Fatal(err)
			}
			status, out, errs := runWeir(append([]string{"replay", "--rules", rules, log}, c.args...)...)
			if status != 1 || out != "" {
				t.Errorf("exit status %d, want 1, and no report: %s", status, out)
			}
			for _, want := range append(c.want, log, "--format") {
				if !strings.Contains(errs, want) {
					t.Errorf("no %q in:\n%s", want, errs)
				}
			}
		})
	}
	// Clients by names of somebody's own, as in a log that was made anonymous, are named by hand.
	log := filepath.Join(t.TempDir(), "anonymous.jsonl")
	if err := os.WriteFile(log, []byte(strings.Repeat(`{"time":1795168800,"who":"q7f3a"}`+"\n", 2)), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := replayLog(t, rules, "--fields", "ip=who", log); r.clients()["q7f3a"] != 2 {
		t.Errorf("%+v", r)
	}
	if err := os.WriteFile(log, []byte("web1"+combined+"web1"+combined), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := replayLog(t, rules, "--format", `%h %l %u %t "%r"`, "--fields", "ip=%h", log); r.clients()["web1"] != 2 {
		t.Errorf("%+v", r)
	}
}

// Files in a form that is not read here are named, and how to mend that.
func TestReplayUnreadable(t *testing.T) {
	t.Parallel()
	const line = `192.0.2.1 - - [20/Nov/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 5` + "\n"
	var wide []byte
	for _, u := range utf16.Encode([]rune(line)) {
		wide = append(wide, byte(u), byte(u>>8))
	}
	marked := append([]byte{0xff, 0xfe}, wide...)
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := z.Write(marked); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	archive := make([]byte, 1024)
	copy(archive[257:], "ustar")
	rules, folder := onePerDay(t), t.TempDir()
	for _, c := range []struct {
		name string
		data []byte
		want string
	}{
		{"a.xz", []byte("\xfd7zXZ\x00\x00\x04"), "is packed with xz, which is not read here: unpack it, as in: xz -dc "},
		{"a.bz2", []byte("BZh91AY&SY\x01\x02"), "is packed with bzip2, which is not read here: unpack it, as in: bzip2 -dc "},
		{"a.zip", []byte("PK\x03\x04\x14\x00"), "is packed with zip, which is not read here: unpack it, as in: unzip -p "},
		{"a.tar", archive, "is packed with tar, which is not read here: unpack it, as in: tar -xOf "},
		{"a.log", marked, "is written in UTF-16, which is not read here: convert it, as in: iconv -f UTF-16 -t UTF-8 "},
		{"b.log", wide, "is written in UTF-16LE, which is not read here: convert it, as in: iconv -f UTF-16LE -t UTF-8 "},
		{"a.log.gz", packed.Bytes(), "a.log.gz | iconv -f UTF-16 -t UTF-8 | weir replay … -"},
	} {
		path := filepath.Join(folder, c.name)
		if err := os.WriteFile(path, c.data, 0o600); err != nil {
			t.Fatal(err)
		}
		status, _, errs := runWeir("replay", "--rules", rules, path)
		if status != 2 || !strings.Contains(errs, c.want) || !strings.Contains(errs, path) {
			t.Errorf("%s: exit status %d, want 2: %s", c.name, status, errs)
		}
		// From standard input, too, also where it is kept for several readings.
		for _, mode := range [][]string{{"--rules", rules}, {"--suggest"}} {
			var out, complaint bytes.Buffer
			status := Run(t.Context(), append([]string{"replay", "-"}, mode...), nil, bytes.NewReader(c.data), &out,
				&complaint)
			if errs := complaint.String(); status != 2 || !strings.Contains(errs, "standard input is ") ||
				!strings.Contains(errs, " FILE | ") {
				t.Errorf("%s, %s: exit status %d, want 2: %s", c.name, mode[0], status, errs)
			}
		}
	}
}
