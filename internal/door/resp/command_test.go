package resp

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http/httptest"
	"os/exec"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/door/auth"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/store/memory"
)

// TestConnectionCommands: what clients say beside the commands that decide, in both protocols.
func TestConnectionCommands(t *testing.T) {
	d := openDoor(t, "", Options{Version: "v9"})
	c := d.dial(t)
	for _, s := range []struct{ command, want string }{
		{"PING", "PONG"},
		{"ping hello", "hello"},
		{"PING a b", "-ERR wrong number of arguments for 'ping' command"},
		{"ECHO \xff\x00", "\xff\x00"},
		{"ECHO", "-ERR wrong number of arguments for 'echo' command"},
		{"SELECT 0", "OK"},
		{"SELECT 1", "-ERR DB index is out of range: there is only 0"},
		{"SELECT x", "-ERR value is not an integer or out of range"},
		{"CLIENT ID", "1"},
		{"CLIENT GETNAME", "nil"},
		{"CLIENT SETNAME shop", "OK"},
		{"CLIENT GETNAME", "shop"},
		{"CLIENT SETNAME a\nb", "-ERR Client names cannot contain spaces, newlines or special characters, and are of at most 64 bytes"},
		{"CLIENT SETINFO LIB-NAME redis-py", "OK"},
		{"CLIENT SETINFO lib-ver 5.0", "OK"},
		{"CLIENT SETINFO x y", "-ERR Unrecognized option 'x'"},
		{"CLIENT NO-EVICT on", "OK"},
		{"CLIENT TRACKING ON OPTIN", "OK"},
		{"CLIENT KILL 1", "-ERR unknown subcommand 'KILL' of CLIENT; there are ID, INFO, LIST, GETNAME, SETNAME, SETINFO, NO-EVICT, NO-TOUCH, TRACKING, CACHING"},
		{"CLIENT SETNAME", "-ERR wrong number of arguments for 'client|setname' command"},
		{"CLUSTER SLOTS", "-ERR This instance has cluster support disabled"},
		{"CONFIG GET save appendonly", "[appendonly no save ]"},
		{"CONFIG GET time*", "[timeout 600]"},
		{"CONFIG SET save x", "-ERR only CONFIG GET is there: Weir is configured by weir.yaml, its environment and its flags"},
		{"COMMAND COUNT", "15"},
		{"COMMAND INFO cl.throttle nothing", "[[cl.throttle -5 [write fast] 1 1 1 [] [] [] []] nil]"},
		{"COMMAND GETKEYS CL.THROTTLE k 1 1 1", "[k]"},
		{"COMMAND GETKEYS PING", "-ERR The command has no key arguments"},
		{"COMMAND DOCS throttle", "[throttle [summary THROTTLE key max_burst count period [quantity]: decides as throttlecrab does group module]]"},
		{"COMMAND X", "-ERR unknown subcommand 'X' of COMMAND; there are COUNT, LIST, INFO, DOCS and GETKEYS"},
		{"AUTH secret", "-ERR AUTH <password> called without any password configured: auth.tokens_file names none"},
		{"GET x", "-ERR unknown command 'GET'; COMMAND LIST tells which there are"},
		{"GE\r\nT", "-ERR unknown command 'GE  T'; COMMAND LIST tells which there are"},
		{"HELLO", "[server weir version 7.2.0 proto 2 id 1 mode standalone role master modules []]"},
		{"HELLO 4", "-NOPROTO unsupported protocol version"},
		{"HELLO x", "-ERR Protocol version is not an integer or out of range"},
		{"HELLO 3 SETNAME", "-ERR Syntax error in HELLO option 'SETNAME'"},
		{"HELLO 3 SETNAME till", "{server weir version 7.2.0 proto 3 id 1 mode standalone role master modules []}"},
		{"CLIENT GETNAME", "till"},
		{"CONFIG GET save", "{save }"},
		{"COMMAND INFO nothing", "[nil]"},
		{"CL.THROTTLE k 1 1 1", "[0 2 1 -1 1]"},
		{"RESET", "RESET"},
		{"CLIENT GETNAME", "nil"},
		{"CONFIG GET nothing", "[]"},
	} {
		args := strings.Split(s.command, " ")
		if got := c.do(args...); got != s.want {
			t.Errorf("%q: %q, want %q", s.command, got, s.want)
		}
	}
	for _, s := range []struct{ command, want string }{
		{"INFO", `(?s)# Server\r\nredis_version:7\.2\.0\r\n.*weir_version:v9\r\n.*connected_clients:1\r\n.*loading:0\r\n.*role:master`},
		{"INFO stats", `^# Stats\r\ntotal_connections_received:1\r\ntotal_commands_processed:\d\d\r\n$`},
		{"COMMAND", `^\[\[cl\.throttle .*\[select 2 \[fast loading stale\] 0 0 0 \[\] \[\] \[\] \[\]\]\]$`},
		{"COMMAND LIST", `^\[cl\.throttle throttle weir\.limit weir\.release auth .* select\]$`},
		{"CLIENT INFO", `^id=1 addr=127\.0\.0\.1:\d+ laddr=` + regexp.QuoteMeta(d.address) + ` name= db=0 lib-name= resp=2\n$`},
	} {
		if got := c.do(strings.Fields(s.command)...); !regexp.MustCompile(s.want).MatchString(got) {
			t.Errorf("%s: %q, want %s", s.command, got, s.want)
		}
	}
	if got := c.do("QUIT"); got != "OK" {
		t.Errorf("QUIT: %s", got)
	}
	c.gone("")
}

// TestInline: people who type are understood.
func TestInline(t *testing.T) {
	d := openDoor(t, "", Options{})
	c := d.dial(t)
	c.send("\r\nPING\n")
	if got := c.reply(); got != "PONG" {
		t.Errorf("PING: %s", got)
	}
	c.send("cl.throttle \"a key\" 1 1 60\r\n")
	if got := c.reply(); got != "[0 2 1 -1 60]" {
		t.Errorf("CL.THROTTLE: %s", got)
	}
	if got := c.do("CL.THROTTLE", "a key", "1", "1", "60"); got != "[0 2 0 -1 120]" {
		t.Errorf("the same as an array: %s", got)
	}
	// Some clients send numbers as numbers.
	c.send("*5\r\n$8\r\nTHROTTLE\r\n$1\r\nk\r\n:3\r\n:10\r\n:60\r\n")
	if got := c.reply(); got != "[1 3 2 12 0]" {
		t.Errorf("numbers: %s", got)
	}
}

// TestAuth: a password opens the door where it has to, and makes whoever has it trusted.
func TestAuth(t *testing.T) {
	var asked atomic.Int64
	judge := func(peer, password string) auth.Verdict {
		asked.Add(1)
		switch {
		case !strings.HasPrefix(peer, "127.0.0.1:"):
			t.Errorf("the peer is %q", peer)
		case password == "right":
			return auth.Right
		case password == "again":
			return auth.TooMany
		}
		return auth.Wrong
	}
	d := openDoor(t, "", Options{Auth: judge, Required: true})
	c := d.dial(t)
	for _, s := range []struct{ command, want string }{
		{"PING", "-NOAUTH Authentication required."},
		{"CL.THROTTLE k 1 1 1", "-NOAUTH Authentication required."},
		{"NOTHING", "-NOAUTH Authentication required."},
		{"HELLO 3", "-NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time"},
		{"AUTH wrong", "-WRONGPASS invalid username-password pair or user is disabled."},
		{"AUTH", "-ERR wrong number of arguments for 'auth' command"},
		{"AUTH a b c", "-ERR syntax error"},
		{"HELLO 2 AUTH default right", "[server weir version 7.2.0 proto 2 id 1 mode standalone role master modules []]"},
		{"CL.THROTTLE k 4 1 1 5", "[0 5 0 -1 5]"},
		{"CL.THROTTLE k 4 1 1 -1", "[0 5 1 -1 4]"},
		{"RESET", "RESET"},
		{"PING", "-NOAUTH Authentication required."},
		{"AUTH anybody right", "OK"},
		{"PING", "PONG"},
	} {
		if got := c.do(strings.Fields(s.command)...); got != s.want {
			t.Errorf("%s: %q, want %q", s.command, got, s.want)
		}
	}
	// Three guesses, and too many from elsewhere.
	c = d.dial(t)
	for range 3 {
		if got := c.do("AUTH", "guess"); !strings.HasPrefix(got, "-WRONGPASS ") {
			t.Error(got)
		}
	}
	c.gone("")
	c = d.dial(t)
	if got := c.do("HELLO", "3", "AUTH", "default", "again"); got != "-ERR too many wrong passwords came from this address; try again in a few seconds" {
		t.Error(got)
	}
	c.gone("")
	if n := count(d.Stats().Dropped, "auth", ""); n != 2 {
		t.Errorf("%d connections were dropped for guessing, want 2", n)
	}
	// Who has not authenticated may not say much.
	c = d.dial(t)
	c.send("*17\r\n")
	c.gone("-ERR Protocol error: too large before authentication\r\n")
	c = d.dial(t)
	c.send("*2\r\n$4\r\nAUTH\r\n$5000\r\n")
	c.gone("-ERR Protocol error: too large before authentication\r\n")
	if asked.Load() != 7 {
		t.Errorf("%d passwords were judged", asked.Load())
	}
}

// TestTrust: only a trusted peer may refund, and only it may ask for very many hits.
func TestTrust(t *testing.T) {
	for _, trusted := range []bool{false, true} {
		d := openDoor(t, "limits: [{name: big, per: [key], allow: 5000/hour, algorithm: token_bucket}]",
			Options{Trusted: func(peer string) bool {
				if !strings.HasPrefix(peer, "127.0.0.1:") {
					t.Errorf("the peer is %q", peer)
				}
				return trusted
			}})
		c := d.dial(t)
		refund, many := "-"+errRefund, "-"+errManyHits
		wants := []string{"[1 5000 4000 0 720000 []]", many, many, "[0 5 0 -1 5]", refund}
		if trusted {
			wants = []string{"[1 5000 4000 0 720000 []]", "[1 5000 2999 0 1440720 []]", "[1 5000 4000 0 720000 []]",
				"[0 5 0 -1 5]", "[0 5 5 -1 0]"}
		}
		for i, command := range []string{"WEIR.LIMIT default 1000 key a", "WEIR.LIMIT default 1001 key a",
			"WEIR.LIMIT default -1001 key a", "CL.THROTTLE k 4 1 1 5", "CL.THROTTLE k 4 1 1 -9"} {
			if got := c.do(strings.Fields(command)...); got != wants[i] {
				t.Errorf("trusted %v: %s: %s, want %s", trusted, command, got, wants[i])
			}
		}
	}
}

const limitRules = `
domain: shop
limits:
  - {name: each, per: [key], allow: 2/min, algorithm: sliding_log}
  - {name: all, when: {path: /all}, allow: [{rate: 3/min, burst: 3}, 100/hour], algorithm: token_bucket}
  - {name: never, when: {path: /never}, allow: 0/min, algorithm: sliding_log}
  - {name: trial, when: {path: /trial}, allow: 0/min, algorithm: sliding_log, on_limit: shadow}
`

func TestLimit(t *testing.T) {
	d := openDoor(t, limitRules, Options{})
	c := d.dial(t)
	for _, s := range []struct {
		after   time.Duration
		command string
		want    string
	}{
		{0, "WEIR.LIMIT shop 1 key ada", "[1 2 1 0 60000 []]"},
		{1500001 * time.Microsecond, "WEIR.LIMIT shop 1 key ada", "[1 2 0 0 60000 []]"},
		{0, "WEIR.LIMIT shop 1 key ada", "[0 2 0 58500 60000 [each]]"},
		{0, "WEIR.LIMIT shop 0 key ada", "[1 2 0 0 60000 []]"},
		{0, "weir.limit  1 key bob", "[1 2 1 0 60000 []]"}, // the only domain
		{0, "WEIR.LIMIT shop 1 key bob path /all", "[1 2 0 0 60000 []]"},
		{0, "WEIR.LIMIT shop 3 key ada path /all", "[0 2 0 -1 60000 [each all]]"},
		{0, "WEIR.LIMIT shop 1 path /never", "[0 0 0 -1 0 [never]]"},
		{0, "WEIR.LIMIT shop 1 path /trial", "[1 -1 -1 0 0 []]"},
		{0, "WEIR.LIMIT shop 1 path /nothing", "[1 -1 -1 0 0 []]"},
		{0, "WEIR.LIMIT elsewhere 1 key ada", "[1 -1 -1 0 0 []]"},
		{0, "WEIR.LIMIT shop 1 key", "-" + errLimitUsage},
		{0, "WEIR.LIMIT shop 1", "-" + errLimitUsage},
		{0, "WEIR.LIMIT shop 1 key a key b", "-ERR an attribute is given twice: key"},
		{0, "WEIR.LIMIT shop 1  a", "-ERR an attribute has no name"},
		{0, "WEIR.LIMIT shop x key a", "-" + errHits},
		{0, "WEIR.LIMIT shop 2147483648 key a", "-" + errHits},
		{0, "WEIR.LIMIT shop 1 key \xff", "-" + errLimitUTF8},
		{0, "CL.THROTTLE \xff 1 1 1", "-" + cellUTF8},
		{0, "THROTTLE \xff 1 1 1", "-ERR invalid key"},
	} {
		d.clock.advance(s.after)
		if got := c.do(strings.Split(s.command, " ")...); got != s.want {
			t.Errorf("%s: %s, want %s", s.command, got, s.want)
		}
	}
	// Many attributes, and one of them twice.
	many := []string{"WEIR.LIMIT", "shop", "1"}
	for i := range 200 {
		many = append(many, fmt.Sprint("a", i), "x")
	}
	if got := c.do(append(many, "path", "/never")...); got != "[0 0 0 -1 0 [never]]" {
		t.Error(got)
	}
	if got := c.do(append(many, "a77", "x")...); got != "-ERR an attribute is given twice: a77" {
		t.Error(got)
	}
	st := d.Stats()
	for outcome, want := range map[string]uint64{"allowed": 7, "denied": 4, "peek": 1, "error": 8} {
		if got := count(st.Decisions, "weir.limit", outcome); got != want {
			t.Errorf("%d %s, want %d", got, outcome, want)
		}
	}
}

func TestDomains(t *testing.T) {
	const rules = "domain: a\nlimits: [{name: n, allow: 1/min, algorithm: sliding_log}]\n"
	one := openDoor(t, rules, Options{Domain: "b"})
	if got := one.dial(t).do("WEIR.LIMIT", "", "1", "k", "v"); got != "[1 -1 -1 0 0 []]" {
		t.Errorf("the door's own domain: %s", got)
	}
	none := openDoor(t, "", Options{})
	if got := none.dial(t).do("WEIR.LIMIT", "", "1", "k", "v"); got != "[1 -1 -1 0 0 []]" {
		t.Errorf("no rules: %s", got)
	}
}

// TestPipeline: answers come in order, over any number of commands, and one that sends all before
// it reads gets them all.
func TestPipeline(t *testing.T) {
	d := openDoor(t, "", Options{})
	c := d.dial(t)
	n := effort.Of(20_000, 100_000)
	var b strings.Builder
	for i := range n {
		if i%10 == 9 {
			b.WriteString("PING " + fmt.Sprint(i) + "\r\n")
			continue
		}
		b.WriteString(command("CL.THROTTLE", "key", fmt.Sprint(n), "1", "60"))
	}
	c.send(b.String())
	decided := 0
	for i := range n {
		want := fmt.Sprint(i)
		if i%10 != 9 {
			decided++
			want = fmt.Sprintf("[0 %d %d -1 %d]", n+1, n+1-decided, 60*decided)
		}
		if got := c.reply(); got != want {
			t.Fatalf("answer %d: %s, want %s", i, got, want)
		}
	}
	if got := c.do("PING"); got != "PONG" {
		t.Error(got)
	}
}

// TestLongKeys: of a long key all counts, and it does not meet another one.
func TestLongKeys(t *testing.T) {
	d := openDoor(t, "", Options{})
	c := d.dial(t)
	long := strings.Repeat("k", maxKey)
	for _, s := range []struct{ key, want string }{{long, "[0 1 0 -1 60]"}, {long + "a", "[0 1 0 -1 60]"},
		{long + "b", "[0 1 0 -1 60]"}, {long + "a", "[1 1 0 60 60]"}, {long, "[1 1 0 60 60]"}} {
		if got := c.do("CL.THROTTLE", s.key, "0", "1", "60"); got != s.want {
			t.Errorf("…%s: %s, want %s", s.key[len(s.key)-1:], got, s.want)
		}
	}
}

// TestTLS: a connection of TLS is a connection.
func TestTLS(t *testing.T) {
	web := httptest.NewTLSServer(nil) // for its certificate
	defer web.Close()
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	now := newClock()
	store, err := memory.New(memory.Options{Clock: now.now})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	d := openDoorAt(t, tls.NewListener(raw, &tls.Config{Certificates: web.TLS.Certificates}), store, now, "", Options{})
	roots := x509.NewCertPool()
	roots.AddCert(web.Certificate())
	nc, err := tls.Dial("tcp", d.address, &tls.Config{RootCAs: roots})
	if err != nil {
		t.Fatal(err)
	}
	c := newClient(t, nc)
	if got := c.do("CL.THROTTLE", "k", "1", "1", "60"); got != "[0 2 1 -1 60]" {
		t.Error(got)
	}
	c.send("*x\r\n")
	c.gone("-ERR Protocol error: invalid multibulk length\r\n")
}

// TestBenchmark: redis-benchmark finds nothing wrong with the door, with and without pipelines, in
// both protocols.
func TestBenchmark(t *testing.T) {
	tool, err := exec.LookPath("redis-benchmark")
	if err != nil {
		t.Skip("redis-benchmark is not installed; on Debian: apt-get install redis-tools")
	}
	d := openDoor(t, "limits: [{name: n, per: [key], allow: 1000000/min, algorithm: token_bucket}]", Options{})
	_, port, _ := strings.Cut(d.address, ":")
	n := effort.Of(1000, 4000)
	for _, args := range []string{"-P 16 CL.THROTTLE __rand_int__ 10 100 60", "-P 1 -3 THROTTLE __rand_int__ 10 100 60",
		"-P 64 -3 WEIR.LIMIT default 1 key __rand_int__", "-t ping"} {
		out, err := exec.Command(tool, append([]string{"-p", port, "-n", fmt.Sprint(n), "-c", "20", "-r", "100", "-q"},
			strings.Fields(args)...)...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "requests per second") ||
			strings.Contains(strings.ToLower(string(out)), "err") {
			t.Errorf("redis-benchmark %s: %v\n%s", args, err, out)
		}
	}
	decided := 0
	for _, of := range d.Stats().Decisions {
		if decided += int(of.N); of.Outcome == "error" && of.N > 0 {
			t.Errorf("%s: %d errors", of.Name, of.N)
		}
	}
	if decided < 3*n || decided > 3*n+500 { // it sends what fills its last pipelines
		t.Errorf("%d decisions, want %d or a few more", decided, 3*n)
	}
}
