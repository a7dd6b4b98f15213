//go:build unix

package stores

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/weir-rl/weir/internal/admin/audit"
	"github.com/weir-rl/weir/internal/door/auth"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// operation is one that may change something at the admin port, and what the audit log holds of it.
type operation struct {
	route string // as the port's own description names it
	role  string // the least that may do it; "" is everybody
	// target is the path where it differs from route's: {name} is replaced by the audited server's
	// value of that name. "" is the path of the route.
	target, body string
	status       int
	// record is what the audit log gets of it, as told writes it; "" is nothing.
	record string
	// gently says that the record may be missing, or come later: the operation is never refused for
	// it.
	gently bool
}

// until and later are instants to come, as JSON.
var until, later = inDays(30), inDays(60)

func inDays(n int) string { return time.Now().UTC().AddDate(0, 0, n).Format(`"` + time.RFC3339 + `"`) }

// operations has a row for each method that may change something at the admin port.
// TestAuditChanges fails for one that is not here: what does the audit log hold of it?
var operations = []operation{
	{"POST /login", "", "", `{"token": "{token}"}`, 204, `login`, true},
	{"DELETE /login", "", "", ``, 204, ``, false}, // the browser forgets its cookie, and nothing else changes
	{"POST /api/v1/bans", "operator", "", `{"limit": "login", "key": "192.0.2.1", "until": ` + until + `, "reason": "password guessing"}`, 200,
		`ban set shop/login ip=192.0.2.1 after={"set":true,"until":` + until + `} note=password guessing`, false},
	{"POST /api/v1/bans", "operator", "", `{"domain": "shop", "limit": "login", "key": "192.0.2.1", "until": ` + later + `}`, 200,
		`ban set shop/login ip=192.0.2.1 before={"reason":"password guessing","set":true,"until":` + until + `} after={"set":true,"until":` + later + `}`, false},
	{"DELETE /api/v1/bans", "operator", "", `{"limit": "login", "key": "192.0.2.1", "reason": "she called"}`, 200,
		`ban lifted shop/login ip=192.0.2.1 before={"set":true,"until":` + later + `} note=she called`, false},
	{"DELETE /api/v1/bans", "operator", "/api/v1/bans?limit=login&key=ip%3D{banned}&reason=by+query", ``, 200,
		`ban lifted shop/login ip={banned} before={"set":true,"until":` + until + `} note=by query`, false},
	{"POST /api/v1/grants", "operator", "", `{"limit": "login", "key": "192.0.2.3", "allow": "9/day", "until": ` + until + `, "reason": "load test"}`, 200,
		`grant made shop/login ip=192.0.2.3 after={"allow":"9/day","set":true,"until":` + until + `} note=load test`, false},
	{"DELETE /api/v1/grants", "operator", "", `{"limit": "login", "key": "192.0.2.3", "reason": "it is over"}`, 200,
		`grant revoked shop/login ip=192.0.2.3 before={"allow":"9/day","reason":"load test","set":true,"until":` + until + `} note=it is over`, false},
	{"DELETE /api/v1/keys", "operator", "/api/v1/keys?limit=login&key={counted}&reason=a+mistake", ``, 204,
		`key reset shop/login ip={counted} before=[{"limit":"login","used":1}] note=a mistake`, false},
	{"DELETE /api/v1/keys", "operator", "", `{"limit": "notes", "key": "{user}", "reason": "a mistake"}`, 204,
		`key reset shop/notes user={user} before=[{"limit":"notes","used":1}] note=a mistake`, false},
	{"DELETE /api/v1/keys/{domain}/{limit}/{key}", "operator", "/api/v1/keys/shop/notes/user=a%2Cb?reason=by+path", ``, 204,
		`key reset shop/notes user=a,b before=[{"limit":"notes","used":1}] note=by path`, false},
	{"POST /api/v1/deferred/{id}/retry", "operator", "/api/v1/deferred/{retried}/retry", ``, 204, `deferred request retried {retried} before="failed"`, false},
	{"DELETE /api/v1/deferred/{id}", "operator", "/api/v1/deferred/{dropped}", ``, 204, `deferred request dropped {dropped} before="failed"`, false},
	// Programs push signals, which are counted, and recorded once a minute.
	{"PUT /api/v1/signals/{name}", "operator", "/api/v1/signals/queue", `{"value": 80, "ttl": 3600}`, 204, `signal pushed queue`, true},
	// These try, and change nothing.
	{"POST /api/v1/preview", "operator", "", `{"files": {"shop.yaml": "limits: [{ name: a, allow: 1/min }]"}}`, 202, ``, false},
	{"DELETE /api/v1/preview/{id}", "operator", "/api/v1/preview/{preview}", ``, 204, ``, false},
	{"POST /debug/pprof/", "admin", "/debug/pprof/symbol", `0x1`, 200, ``, false},
}

// refusals are requests that change nothing, though their sender may do so, and leave no record.
var refusals = []operation{
	{"POST /login", "", "", `{"token": "a-guess-a-guess-a-guess"}`, 401, ``, false},
	{"POST /login", "", "", `{}`, 400, ``, false},
	{"POST /api/v1/bans", "admin", "", `{"limit": "login", "key": "192.0.2.1"}`, 400, ``, false},
	{"POST /api/v1/bans", "admin", "", `{"limit": "none", "key": "192.0.2.1", "for": "1h"}`, 404, ``, false},
	{"DELETE /api/v1/bans", "admin", "", `{"limit": "login", "key": "192.0.2.99"}`, 404, ``, false},
	{"POST /api/v1/grants", "admin", "", `{"limit": "login", "key": "192.0.2.1", "for": "1h", "allow": "much"}`, 400, ``, false},
	{"DELETE /api/v1/grants", "admin", "", `{"limit": "login", "key": "192.0.2.99"}`, 404, ``, false},
	{"DELETE /api/v1/keys", "admin", "/api/v1/keys?limit=login&key=192.0.2.99", ``, 404, ``, false},
	{"DELETE /api/v1/keys/{domain}/{limit}/{key}", "admin", "/api/v1/keys/shop/login/192.0.2.99", ``, 404, ``, false},
	{"POST /api/v1/deferred/{id}/retry", "admin", "/api/v1/deferred/00000000000000000000000000000000/retry", ``, 404, ``, false},
	{"DELETE /api/v1/deferred/{id}", "admin", "/api/v1/deferred/00000000000000000000000000000000", ``, 404, ``, false},
	{"PUT /api/v1/signals/{name}", "admin", "/api/v1/signals/queue", `{"value": 101}`, 400, ``, false},
	{"POST /api/v1/preview", "admin", "", `{"files": {}}`, 400, ``, false},
	{"DELETE /api/v1/preview/{id}", "admin", "/api/v1/preview/none", ``, 404, ``, false},
}

const auditRules = `domain: shop
limits:
  - { name: login, when: { path: /login }, per: [ip], allow: 2/day, algorithm: sliding_log, ban: { after: 3, within: 1h, for: 1h } }
  - { name: notes, when: { path: /notes }, per: [user], allow: 2/day, algorithm: sliding_log }
  - { name: elastic, when: { path: /none }, per: [user], allow: 100/day }
  - { name: orders, when: { method: POST, path: /orders }, per: [ip], allow: { rate: 5/s, burst: 1 }, on_limit: { defer: orders } }
`

// audited is the built server with all that can be changed at its admin port, and an audit log.
type audited struct {
	*servertest.Process
	t         *testing.T
	dir, log  string // the folder of the server, and the file of its audit log
	admin     string // URL
	values    map[string]string
	addresses int        // of clients, so far
	hold      sync.Mutex // no deferred request is answered while it is locked
}

// prepareAudited writes the files of a server.
func prepareAudited(t *testing.T, log string) *audited {
	t.Helper()
	a := &audited{t: t, dir: t.TempDir(), log: log,
		values: map[string]string{"banned": "192.0.2.2", "counted": "192.0.2.4", "user": "ada"}}
	servertest.WriteRules(t, filepath.Join(a.dir, "rules.yaml"), auditRules)
	var lines strings.Builder
	for _, role := range auth.Roles {
		fmt.Fprintf(&lines, "%s name=%s-name role=%s\n", tokenOf(role), role, role)
		servertest.WriteRules(t, filepath.Join(a.dir, role+".token"), tokenOf(role)+"\n")
	}
	servertest.WriteRules(t, filepath.Join(a.dir, "tokens"), lines.String())
	return a
}

// tokenOf is the token of a role.
func tokenOf(role string) string { return strings.Repeat(role+"-token-", 3) }

// begin starts the server, which calls its audit log path; extra files are cmd's ExtraFiles.
func (a *audited) begin(path string, extra ...*os.File) {
	a.t.Helper()
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Weir-Ticket") != "" { // one that was deferred
			a.hold.Lock()
			defer a.hold.Unlock()
			w.WriteHeader(http.StatusBadGateway)
		}
	}))
	a.t.Cleanup(upstream.Close)
	cmd := exec.Command(servertest.BuiltProgram(a.t), "serve", "--rules=rules.yaml", "--audit-path="+path,
		"--auth-tokens-file=tokens", "--proxy-upstream="+upstream.URL, "--defer-path=deferred.db", "--defer-attempts=1",
		"--listen-http=127.0.0.1:0", "--listen-admin=127.0.0.1:0", "--listen-proxy=127.0.0.1:0", "--listen-grpc=off", "--listen-resp=off", "--client-ip-trusted-proxies=127.0.0.1",
		"--drain=1m")
	cmd.Dir, cmd.ExtraFiles = a.dir, extra
	a.Process = servertest.Begin(a.t, cmd)
	a.admin = "http://" + a.Addr("admin")
}

// fill replaces each {name} by the value of that name.
func (a *audited) fill(text string) string {
	for name, value := range a.values {
		text = strings.ReplaceAll(text, "{"+name+"}", value)
	}
	return text
}

// do asks as a role, from an address of its own, which it returns.
func (a *audited) do(o *operation, role string) (status int, body, address string) {
	a.t.Helper()
	a.addresses++
	address = fmt.Sprintf("198.51.%d.%d", a.addresses/250, 1+a.addresses%250)
	method, path, _ := strings.Cut(o.route, " ")
	r, err := http.NewRequestWithContext(a.t.Context(), method, a.admin+a.fill(cmp.Or(o.target, path)),
		strings.NewReader(a.fill(o.body)))
	if err != nil {
		a.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-Forwarded-For", address)
	if role != "" {
		r.Header.Set("Authorization", "Bearer "+tokenOf(role))
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		a.t.Fatalf("%s as %q: %v\n%s", o.route, role, err, a.Stderr)
	}
	defer answer.Body.Close()
	raw, err := io.ReadAll(answer.Body)
	if err != nil {
		a.t.Fatal(err)
	}
	return answer.StatusCode, string(raw), address
}

// ask sends a request to be decided, or to be forwarded, and returns its status.
func (a *audited) ask(method, url string) int {
	a.t.Helper()
	r, err := http.NewRequestWithContext(a.t.Context(), method, url, nil)
	if err != nil {
		a.t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		a.t.Fatal(err)
	}
	answer.Body.Close()
	return answer.StatusCode
}

// decide asks for a decision about a request to a path.
func (a *audited) decide(path, attributes string) int {
	a.t.Helper()
	return a.ask("GET", "http://"+a.Addr("http")+"/api/v1/limit?path="+path+"&"+attributes)
}

// make makes what the operations change: a ban, keys that something is counted of, and two dead
// letters.
func (a *audited) make() {
	a.t.Helper()
	ban := operation{"POST /api/v1/bans", "", "", `{"limit": "login", "key": "{banned}", "until": ` + until + `}`, 200,
		"", false}
	if status, body, _ := a.do(&ban, "admin"); status != 200 {
		a.t.Fatalf("%d %s", status, body)
	}
	a.count()
	var list letters
	servertest.Eventually(a.t, "there are two dead letters", func() bool {
		if list.Dead < 2 {
			a.ask("POST", "http://"+a.Addr("proxy")+"/orders")
		}
		list = a.letters("failed")
		return list.Dead >= 2 && list.Waiting == 0
	})
	a.values["retried"], a.values["dropped"] = list.Jobs[0].ID, list.Jobs[1].ID
}

// letters are deferred requests.
type letters struct {
	Waiting, Dead int
	Jobs          []struct{ ID string }
}

// letters lists the deferred requests in a state.
func (a *audited) letters(state string) (list letters) {
	a.t.Helper()
	_, body, _ := a.do(&operation{route: "GET /api/v1/deferred", target: "/api/v1/deferred?state=" + state}, "admin")
	if err := json.Unmarshal([]byte(body), &list); err != nil {
		a.t.Fatalf("%v: %s", err, body)
	}
	return list
}

// count makes the keys that something is counted of.
func (a *audited) count() {
	a.t.Helper()
	for _, q := range [][2]string{{"/login", "ip=" + a.values["counted"]}, {"/notes", "user=" + a.values["user"]},
		{"/notes", "user=a%2Cb"}} {
		if status := a.decide(q[0], q[1]); status != 200 {
			a.t.Fatalf("%v: %d", q, status)
		}
	}
}

// told is a record in a line, without what the log adds and who it was.
func told(e *audit.Entry) string {
	parts := []string{e.What}
	if e.Domain != "" {
		parts = append(parts, e.Domain+"/"+e.Limit)
	}
	if e.Key != "" {
		parts = append(parts, e.Key)
	}
	for _, v := range []struct {
		name  string
		value any
	}{{"before", e.Before}, {"after", e.After}} {
		if v.value != nil {
			raw, _ := json.Marshal(v.value) // it came from JSON
			parts = append(parts, v.name+"="+string(raw))
		}
	}
	if e.Note != "" {
		parts = append(parts, "note="+e.Note)
	}
	return strings.Join(parts, " ")
}

// apart separates records of counts, which come whenever a minute ends, from the others.
func apart(list []audit.Entry) (each, counted []audit.Entry) {
	for _, e := range list {
		if e.What == "signal pushed" || e.What == "bans by denials" {
			counted = append(counted, e)
		} else {
			each = append(each, e)
		}
	}
	return each, counted
}

// verify checks the chain of the log with the program itself, from its beginning.
func (a *audited) verify(want int) {
	a.t.Helper()
	out, err := exec.Command(servertest.BuiltProgram(a.t), "audit", "--verify", a.log, "--follows",
		audit.Start).CombinedOutput()
	if err != nil || !strings.Contains(string(out), fmt.Sprintf(": %d records, 1 to %d, ", want, want)) {
		a.t.Errorf("weir audit --verify of %d records: %v\n%s", want, err, out)
	}
}

// changing asks a server which methods may change something at its admin port: as its description
// has them, which the tests of internal/admin hold against the routes, and of the paths that are no
// API as the port itself refuses others.
func changing(t *testing.T, admin string) map[string]bool {
	t.Helper()
	_, _, text := servertest.Get(t, admin+"/api/v1/openapi.yaml")
	var doc struct {
		Paths map[string]map[string]any
	}
	if err := yaml.Unmarshal([]byte(text), &doc); err != nil || len(doc.Paths) == 0 {
		t.Fatalf("%v: %.200s", err, text)
	}
	list := map[string]bool{}
	add := func(method, path string) {
		if method != http.MethodGet && method != http.MethodHead {
			list[method+" "+path] = true
		}
	}
	for path, methods := range doc.Paths {
		// Versions are of rules in a database: TestAuditVersions.
		if strings.HasPrefix(path, "/api/v1/rules/versions") || path == "/api/v1/rules/rollback" {
			continue
		}
		for method := range methods {
			add(strings.ToUpper(method), path)
		}
	}
	r, err := http.NewRequestWithContext(t.Context(), "GET", admin+"/help", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", "text/plain")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	help, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	paths := regexp.MustCompile(`(?m)^/\S*`).FindAllString(string(help), -1)
	if len(paths) == 0 {
		t.Fatalf("no paths in\n%s", help)
	}
	for _, path := range paths {
		if doc.Paths[path] != nil {
			continue
		}
		r, err := http.NewRequestWithContext(t.Context(), "BREW", admin+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != http.StatusMethodNotAllowed {
			t.Fatalf("BREW %s: %d", path, answer.StatusCode)
		}
		for method := range strings.SplitSeq(answer.Header.Get("Allow"), ", ") {
			add(method, path)
		}
	}
	return list
}

// auditedInDocs are the records that the page on security names.
func auditedInDocs(t *testing.T) (whats []string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(servertest.OriginalRoot, "docs", "operating", "security.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(data), "\n## Audit log\n")
	section, _, _ = strings.Cut(section, "\n## ")
	for _, row := range regexp.MustCompile("(?m)^\\| (`[^|]*) \\|").FindAllStringSubmatch(section, -1) {
		for _, what := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
			whats = append(whats, what[1])
		}
	}
	return slices.DeleteFunc(whats, func(what string) bool { return what == "what" })
}

// TestAuditChanges: each operation that may change something at the admin port leaves the record
// that is documented, of who asked for it from where, on the disk before it is answered; refused
// ones leave none.
func TestAuditChanges(t *testing.T) {
	t.Parallel()
	a := prepareAudited(t, filepath.Join(t.TempDir(), "audit.jsonl"))
	a.begin(a.log)
	all := changing(t, a.admin)
	for _, o := range operations {
		if !all[o.route] {
			t.Errorf("%s is no route any more", o.route)
		}
	}
	for route := range all {
		if !slices.ContainsFunc(operations, func(o operation) bool { return o.route == route }) {
			t.Errorf("%s has no row in operations: what does the audit log hold of it?", route)
		}
	}
	a.make()

	type line struct{ who, role, address, text string }
	want := []line{{"admin-name", "admin", "",
		`ban set shop/login ip=192.0.2.2 after={"set":true,"until":` + until + `}`}}
	pushed := map[string]string{} // by address
	roles := append([]string{""}, auth.Roles...)
	a.hold.Lock()
	for i := range refusals {
		if status, body, _ := a.do(&refusals[i], refusals[i].role); status != refusals[i].status {
			t.Errorf("%s %s: %d %s", refusals[i].route, refusals[i].body, status, body)
		}
	}
	for i := range operations {
		o := &operations[i]
		// Whoever may not do it leaves no trace.
		for _, role := range roles[:slices.Index(roles, o.role)] {
			if status, body, _ := a.do(o, role); status != 401 && status != 403 {
				t.Errorf("%s as %q: %d %s", o.route, role, status, body)
			}
		}
		role := o.role
		a.values["token"] = tokenOf("support")
		status, body, address := a.do(o, role)
		if status != o.status {
			t.Fatalf("%s as %q: %d %s", o.route, role, status, body)
		}
		if found := regexp.MustCompile(`/api/v1/preview/(\w+)`).FindStringSubmatch(body); found != nil {
			a.values["preview"] = found[1]
		}
		switch {
		case strings.HasPrefix(o.record, "signal pushed"):
			pushed[address] = role
			continue
		case strings.HasPrefix(o.record, "login"):
			role = "support"
		}
		if o.record != "" {
			want = append(want, line{role + "-name", role, address, a.fill(o.record)})
		}
		if o.record != "" && !o.gently {
			if list, _ := apart(records(t, a.log)); len(list) < len(want) ||
				told(&list[len(want)-1]) != want[len(want)-1].text {
				t.Errorf("%s: when it was answered the log had %d records, want %q as number %d", o.route, len(list),
					want[len(want)-1].text, len(want))
			}
		}
	}

	// A change that cannot be made after all is recorded, too.
	servertest.Eventually(t, "a deferred request is being forwarded", func() bool {
		list := a.letters("active")
		if len(list.Jobs) > 0 {
			a.values["active"] = list.Jobs[0].ID
		}
		return len(list.Jobs) > 0
	})
	drop := operation{route: "DELETE /api/v1/deferred/{active}"}
	status, body, address := a.do(&drop, "operator")
	if status != 409 {
		t.Errorf("%d %s", status, body)
	}
	for _, text := range []string{
		`deferred request dropped {active} before="active"`, `deferred request dropped: failed {active} before="active" note=deferred: the job is being forwarded just now; try again`,
	} {
		want = append(want, line{"operator-name", "operator", address, a.fill(text)})
	}
	a.hold.Unlock()

	// Changes without the admin port, which are recorded at once or once a minute.
	for range 6 {
		a.decide("/login", "ip=192.0.2.66")
	}
	hangup := func(rules, what string) {
		t.Helper()
		servertest.WriteRules(t, filepath.Join(a.dir, "rules.yaml"), rules)
		a.Signal(syscall.SIGHUP)
		want = append(want, line{who: audit.Weir, text: what})
		a.Stderr.Await(t, `audit: `+what)
	}
	hangup("limits: [{ name: a, alow: 1/min }]\n", "rules refused")
	hangup(auditRules, "rules as in force again")
	hangup(auditRules+"  - { name: more, when: { path: /more }, allow: 1/min }\n", "rules in force")

	// What the API tells is what the file holds.
	file := records(t, a.log)
	var api struct{ Records []audit.Entry }
	servertest.Eventually(t, "the API tells of all records", func() bool {
		_, body, _ := a.do(&operation{route: "GET /api/v1/audit", target: "/api/v1/audit?n=1000"}, "admin")
		api.Records = nil
		if err := json.Unmarshal([]byte(body), &api); err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		return len(api.Records) >= len(file)
	})
	slices.Reverse(api.Records)
	for i := range file {
		if api.Records[i].Hash != file[i].Hash {
			t.Errorf("record %d: the API has %+v, the file %+v", i+1, api.Records[i], file[i])
		}
	}
	a.Signal(syscall.SIGTERM)
	if status := a.Wait(); status != 0 {
		t.Fatalf("exit status %d\n%s", status, a.Stderr)
	}

	// Its end writes what was counted.
	list := records(t, a.log)
	got, counted := apart(list)
	says := false
	for i := range got {
		after, _ := got[i].After.(map[string]any)
		says = says || got[i].What == "rules in force" && fmt.Sprint(after["changes"]) == "[shop/more: added, allow 1/min]"
	}
	if !says {
		t.Errorf("no record says which rule came into force: %+v", got)
	}
	for i, e := range list {
		if e.Seq != uint64(i+1) || e.Node == "" || e.Node != list[0].Node || i > 0 && e.Time.Before(list[i-1].Time) {
			t.Errorf("record %d: %+v", i+1, e)
		}
	}
	for i := range max(len(got), len(want)) {
		var w, g line
		if i < len(want) {
			w = want[i]
		}
		if i < len(got) {
			g = line{got[i].Who, got[i].Role, got[i].Address, told(&got[i])}
		}
		if w.who == audit.Weir { // digests and paths are not of this test
			g.text = got[i].What
		}
		if i == 0 {
			w.address = g.address
		}
		if g != w {
			t.Errorf("record %d is %q, want %q", i+1, g, w)
		}
	}
	var texts []string
	for _, e := range counted {
		texts = append(texts, fmt.Sprintf("%s %s %s %s", e.Who, e.Role, e.Address, told(&e)))
	}
	wanted := []string{`weir   bans by denials shop/login after={"times":1}`}
	for address, role := range pushed {
		wanted = append(wanted, fmt.Sprintf(`%s-name %s %s signal pushed queue after={"last":80,"times":1}`, role, role,
			address))
	}
	slices.Sort(texts)
	slices.Sort(wanted)
	if !slices.Equal(texts, wanted) {
		t.Errorf("counted: %q, want %q", texts, wanted)
	}
	a.verify(len(list))

	// The page on security names all of these, and no others except the records of
	// TestAuditFullDisk and TestAuditVersions.
	seen := map[string]bool{"torn record cut": true, "records lost": true, "rules pushed": true,
		"rules rolled back": true}
	for _, e := range list {
		what := e.What
		if strings.HasSuffix(what, ": failed") {
			what = "…: failed"
		}
		seen[what] = true
	}
	named := auditedInDocs(t)
	for _, what := range named {
		if !seen[what] {
			t.Errorf("docs/operating/security.md has records %q, which no operation left", what)
		}
	}
	for what := range seen {
		if !slices.Contains(named, what) {
			t.Errorf("docs/operating/security.md does not name the record %q", what)
		}
	}
}
