package admin

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/doortest"
)

// undescribed are paths of the port that are no API.
var undescribed = []string{"/", "/help", "/healthz", "/readyz", "/metrics", "/rlconfig", "/rules/", "/assets/", pprofPrefix}

// below are the described paths that are served below a path of the table.
var below = map[string][]string{
	"/api/v1/insight/rules/": {"/api/v1/insight/rules/{domain}/{rule}"},
	"/api/v1/insight/keys/":  {"/api/v1/insight/keys/{domain}/{key}"},
	"/api/v1/keys/":          {"/api/v1/keys/{domain}/{limit}/{key}"},
	"/api/v1/signals/":       {"/api/v1/signals/{name}"},
	"/api/v1/decisions/":     {"/api/v1/decisions/{id}"},
	"/api/v1/deferred/":      {"/api/v1/deferred/{id}", "/api/v1/deferred/{id}/retry"},
	"/api/v1/preview/":       {"/api/v1/preview/{id}"},
}

// TestOpenAPI: paths, methods, query parameters and the answers of roles are as in openapi.yaml,
// and no others. TestSchemas holds the schemas, and TestMain each answer of all tests.
func TestOpenAPI(t *testing.T) {
	doc, err := doortest.ReadDescription(openAPI)
	if err != nil {
		t.Fatal(err)
	}
	w := newWhole(t, nil)
	if a := w.as("", "GET", "/api/v1/openapi.yaml", ""); a.Status != 200 || a.Body != string(openAPI) {
		t.Errorf("it is not served: %d", a.Status)
	}
	served := map[string]bool{}
	for _, e := range w.routes {
		if slices.Contains(undescribed, e.path) {
			continue
		}
		paths := below[e.path]
		if paths == nil {
			paths = []string{e.path}
		}
		params, methods := map[string]bool{}, map[string]bool{}
		for _, path := range paths {
			served[path] = true
			for method, d := range doc.Paths[path] {
				methods[strings.ToUpper(method)] = true
				for i := range d.Parameters {
					p, err := doc.Parameter(&d.Parameters[i])
					if err != nil {
						t.Error(err)
					} else if p.In != "path" {
						params[p.Name] = true
					}
				}
				for _, status := range []string{"401", "403"} {
					if _, ok := d.Answers[status]; !ok && e.sees+e.changes > 0 {
						t.Errorf("%s %s: no answer %s is described", method, path, status)
					}
				}
			}
		}
		for method := range strings.SplitSeq(e.methods, ", ") {
			if !methods[method] && method != "HEAD" {
				t.Errorf("%s %s is not described", method, e.path)
			}
			delete(methods, method)
		}
		for method := range methods {
			t.Errorf("%s %s is described, and not served", method, e.path)
		}
		for _, name := range strings.Fields(e.params) {
			if !params[name] {
				t.Errorf("%s: the parameter %s is not described", e.path, name)
			}
			delete(params, name)
		}
		for name := range params {
			t.Errorf("%s: the parameter %q is described, and not known", e.path, name)
		}
	}
	for path := range doc.Paths {
		if !served[path] {
			t.Errorf("%s is described, and not served", path)
		}
	}
}

// TestUnknownParameters: an unknown query parameter is a 400 that names it, at every endpoint of
// the API.
func TestUnknownParameters(t *testing.T) {
	w := newWhole(t, nil)
	for _, c := range access {
		if slices.Contains(undescribed, c.path) || c.path == "/login" || c.path == pprofPrefix || c.method == "HEAD" {
			continue
		}
		target := c.target
		if target == "" {
			target = c.path
		}
		sep := "?"
		if strings.Contains(target, "?") {
			sep = "&"
		}
		a := w.as("admin", c.method, target+sep+"colour=red",
			`{"domain": "shop", "limit": "api", "key": "ada", "for": "1h", "allow": "1/min"}`)
		if a.Status != 400 || !strings.Contains(a.Body, "colour") {
			t.Errorf("%s %s: %d %s", c.method, target, a.Status, a.Body)
		}
	}
}

// TestUnknownNames: a domain or a limit that is not in force is a 404 at every endpoint that takes
// one.
func TestUnknownNames(t *testing.T) {
	w := newWhole(t, nil)
	for _, e := range w.routes {
		for _, name := range []string{"domain", "limit"} {
			if !slices.Contains(strings.Fields(e.params), name) {
				continue
			}
			for _, query := range []string{name + "=nonsense", name + "=no%20sense%0A"} {
				if a := w.as("admin", "GET", e.path+"?"+query, ""); a.Status != 404 ||
					!strings.Contains(a.Body, `"field":"`+name+`"`) {
					t.Errorf("%s?%s: %d %s", e.path, query, a.Status, a.Body)
				}
			}
		}
	}
	for _, path := range []string{"/api/v1/insight/rules/shop/none", "/api/v1/insight/rules/none/api",
		"/api/v1/insight/keys/none/user=ada", "/api/v1/insight/rules/shop", "/api/v1/insight/rules/shop/api/x"} {
		if a := w.as("admin", "GET", path, ""); a.Status != 404 {
			t.Errorf("%s: %d %s", path, a.Status, a.Body)
		}
	}
	for target, want := range map[string]string{
		"/api/v1/insight?over=8d": "over", "/api/v1/insight?over=x": "over", "/api/v1/insight?over=-1h": "over", "/api/v1/insight/keys?by=x": "by", "/api/v1/insight/keys?n=0": "n",
		"/api/v1/decisions?nodes=x": "nodes", "/api/v1/decisions?key=ada": "key", "/api/v1/decisions?after=!": "after", "/api/v1/decisions?before=now": "before",
		"/api/v1/stream?views=x": "views", "/api/v1/stream?n=x": "n", "/api/v1/stream?outcome=x": "outcome", "/api/v1/audit?n=x": "n", "/api/v1/audit?after=-1": "after", "/api/v1/insight?%zz": "query",
	} {
		if a := w.as("admin", "GET", target, ""); a.Status != 400 || !strings.Contains(a.Body, want) {
			t.Errorf("%s: %d %s", target, a.Status, a.Body)
		}
	}
}

// TestHelp: whatever the list of endpoints links to is there, and the list is there for those who
// want text.
func TestHelp(t *testing.T) {
	w := newWhole(t, nil)
	page := w.as("admin", "GET", "/help", "", "Accept", "text/html,*/*;q=0.8")
	links := regexp.MustCompile(`href="([^"]+)"`).FindAllStringSubmatch(page.Body, -1)
	if page.Status != 200 || len(links) < 15 {
		t.Fatalf("%d, %d links: %s", page.Status, len(links), page.Body)
	}
	for _, l := range links {
		if l[1] == streamPath || l[1] == previewPath {
			continue // the one does not end, the other is for POST
		}
		if a := w.as("admin", "GET", l[1], ""); a.Status != 200 {
			t.Errorf("%s is linked, and answers %d %s", l[1], a.Status, a.Body)
		}
	}
	for accept, want := range map[string]string{
		"text/plain": "weir: 3 rules in force", "text/plain, text/html;q=0.9": "weir: 3 rules in force", "text/html": "the page", "*/*": "the page", "": "the page",
		"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8": "the page",
	} {
		if a := onAdmin(w, "GET", "/", "", "Accept", accept); a.Status != 200 || !strings.HasPrefix(a.Body, want) {
			t.Errorf("/ with Accept: %q: %d %.80s", accept, a.Status, a.Body)
		}
	}
	text := onAdmin(w, "GET", "/", "", "Accept", "text/plain").Body
	for _, l := range links {
		if !strings.Contains(text, "\n"+l[1]+" ") {
			t.Errorf("the text does not list %s", l[1])
		}
	}
	// Without a page the list is at /.
	w = newWhole(t, func(o *Options) { o.Page, o.PagePaths = nil, nil })
	if a := onAdmin(w, "GET", "/", "", "Accept", "text/html"); a.Status != 200 ||
		!strings.Contains(a.Body, `href="/api/v1/rules"`) {
		t.Errorf("without a page: %d %s", a.Status, a.Body)
	}
	if a := onAdmin(w, "GET", "/rules/shop/api", ""); a.Status != 404 {
		t.Errorf("a view without a page: %d", a.Status)
	}
}

// TestSession: each role learns what it is.
func TestSession(t *testing.T) {
	w := newWhole(t, nil)
	for _, role := range []string{"viewer", "admin"} {
		if a, want := w.as(role, "GET", "/api/v1/session", ""), fmt.Sprintf("{\n  \"name\": %q,\n  \"role\": %q,\n  \"tokens\": true\n}\n", role+"-name", role); a.Body != want {
			t.Errorf("%s: %s", role, a.Body)
		}
	}
	open := newWhole(t, func(o *Options) { o.Tokens = nil })
	if a := open.as("", "GET", "/api/v1/session", ""); !strings.Contains(a.Body, `"role": "admin"`) ||
		!strings.Contains(a.Body, `"tokens": false`) {
		t.Errorf("without tokens: %s", a.Body)
	}
}
