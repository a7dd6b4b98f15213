package browser

import (
	"encoding/json"
	"path"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/redistest"
)

// TestDecisionsOfNodes: if several nodes share a Redis, lists of decisions have the decisions of
// all, live. The view Decisions can show one node.
func TestDecisionsOfNodes(t *testing.T) {
	t.Parallel()
	d := chromium(t)
	redis := redistest.Start(t)
	rules := map[string]string{"rules/shop.yaml": "domain: shop\nlimits: [{ name: once, per: [user], allow: 1/day, algorithm: sliding_log }]\n"}
	var all [2]*server
	var names [2]string
	for i := range all {
		all[i] = serve(t, rules, "--store", redis.URL(), "--store-deadline", "30s", "--store-timeout", "30s")
	}
	for i, s := range all {
		patience.Until(t, "both nodes are known", func() bool {
			_, body := s.api("GET", "/api/v1/nodes", "")
			var answer struct {
				List []struct {
					Node string
					Self bool
				}
			}
			if err := json.Unmarshal([]byte(body), &answer); err != nil {
				t.Fatal(err, body)
			}
			for _, n := range answer.List {
				if n.Self {
					names[i] = n.Node
				}
			}
			return len(answer.List) == 2
		})
	}
	refuse := func(node int, user string) {
		for range 2 {
			all[node].ask("user", user, "path", "/")
		}
	}
	b := d.open(t, all[0].admin, desktop)
	for _, view := range []string{"/", "/rules/shop/once"} {
		user := "far-0" + path.Base(view)
		b.visit(view)
		refuse(1, user)
		b.until("the list has the other node's decisions",
			`(user) => [...document.querySelectorAll('.log')].some((e) => e.innerText.includes(user))`, user)
	}
	b.visit("/decisions")
	refuse(1, "far-1")
	refuse(0, "near-1")
	b.sees("far-1")
	b.sees("near-1")
	// choose chooses a node in a view, which lists those that answered in time as it was opened.
	choose := func(view, node string) {
		t.Helper()
		patience.Until(t, node+" can be chosen", func() bool {
			if b.has(`(name) => [...document.querySelectorAll('.filters option')].some((o) => o.value === name)`, node) {
				return true
			}
			b.visit(view)
			return false
		})
		b.do(nil, "evaluate", "js",
			`(name) => { const e = [...document.querySelectorAll('.filters select')].find((e) => [...e.options].some((o) => o.value === name)); e.value = name; e.dispatchEvent(new Event('change')); }`, "arg", node)
	}
	choose("/decisions", names[1])
	b.until("only those of one node are shown",
		`() => { const text = document.querySelector('.log')?.innerText ?? ''; return text.includes('far-1') && !text.includes('near-1'); }`, nil)
	refuse(0, "near-2")
	refuse(1, "far-2")
	b.sees("far-2")
	if b.has(`() => document.querySelector('main').innerText.includes('near-2')`, nil) {
		t.Error("decisions of the other node are shown, too")
	}
	b.accessible("the decisions of a node")
	b.cleanBut("the decisions of a node", "a status of 503") // that it answered too late, once
	// A link to a node that is gone tells which there are, and another one can be chosen.
	patience.Until(t, "the page says which nodes there are", func() bool {
		b.visit("/decisions?node=nobody")
		b.sees("no node is called nobody; there ")
		return b.has(`() => document.body.innerText.includes('nobody; there are ')`, nil)
	})
	choose("/decisions?node=nobody", names[1])
	b.sees("far-2")

	// A node that answers too late when a view is opened is asked again.
	b.visit("/nodes")
	b.do(nil, "evaluate", "js", `() => {
		const real = window.fetch;
		window.late = 0;
		window.fetch = async (url, o) => {
			const r = await real(url, o);
			if (!String(url).startsWith('/api/v1/decisions?') || ++window.late > 3) return r;
			const a = await r.json();
			return new Response(JSON.stringify({ ...a, decisions: [], nodes: { ...a.nodes, answered: 1 } }), { headers: { date: r.headers.get('date') } });
		};
	}`)
	for key, title := range map[string]string{"d": "Decisions", "o": "Overview"} {
		b.do(nil, "evaluate", "js", "() => { window.late = 0; }")
		b.goTo(key, title)
		b.sees("far-2")
	}

	// A broken file of one node stands above the figures, with file, line and node, and is nobody's
	// verdict. A node whose rule differs is named, and the dot of the nodes is amber.
	b.do(nil, "clear") // the console reports the 404
	all[1].write("shop.yaml", strings.Replace(rules["rules/shop.yaml"], "1/day", "2/day", 1))
	b.visit("/")
	b.sees("has another rule shop/once: 2 per day there, 1 per day here")
	b.until("the dot is amber", `() => document.getElementById('live').classList.contains('part')`, nil)
	b.from().took("see which node differs, and in which rule")
	all[1].write("images.yaml", "domain: images\nlimits: [{ name: all, alow: 5/day }]\n")
	b.sees("The rules as they lie in the source are not in force; those before them are. The error on " + names[1] +
		": images.yaml:2:")
	b.visit("/rules/shop/once")
	b.sees("images.yaml:2:")
	b.do(nil, "click", "selector", `nav a[href^="/decisions"]`)
	b.until("the decisions are drawn", `() => document.title.startsWith('Decisions')`, nil)
	b.sees("not in force; those before them are. The error on " + names[1] + ": images.yaml:2:")
	b.accessible("a broken file")
	b.clean("a broken file")
	if b.has(`() => /broken/i.test(document.querySelector('main').innerText.replace(/images.*/g, ''))`, nil) {
		t.Error("a rule in force is broken")
	}
}
