package page

import (
	"strings"
	"testing"
)

// TestLink: the script has each module once, and what link would not do right it refuses. That the
// page works by it, each test in browser holds.
func TestLink(t *testing.T) {
	modules := map[string][]byte{
		"app.js":     []byte("import { b as c, d } from './parts/b.js';\nconst e = async () => (await import('./parts/a.js')).a + (await import('./vendor/v.js')).v;\nc(d, e);\n"),
		"parts/a.js": []byte("import { b } from './b.js';\nexport const a = b;\n"),
		"parts/b.js": []byte("export function b() {}\nexport const d = 'export const x';\nexport async function f() {}\nexport class G {}\n"),
	}
	const want = linkHead + `'app.js': () => {
const { b: c, d } = $use('parts/b.js');
const e = async () => (await $later('parts/a.js')).a + (await $load('./vendor/v.js')).v;
c(d, e);
return {  };
},
'parts/a.js': () => {
const { b } = $use('parts/b.js');
const a = b;
return { a };
},
'parts/b.js': () => {
function b() {}
const d = 'export const x';
async function f() {}
class G {}
return { b, d, f, G };
},
};
$use('app.js');
`
	if got, err := link(modules, "app.js"); err != nil || string(got) != want {
		t.Errorf("%v\n%s\nwant:\n%s", err, got, want)
	}
	for text, says := range map[string]string{
		"export let a = 1;\n":                  "export let a = 1;", // which others would not see change
		"export default 1;\n":                  "export default 1;",
		"export { a };\n":                      "export { a };",
		"import a from './b.js';\n":            "import a from",
		"import './b.js';\n":                   "import './b.js'",
		"import * as b from './b.js';\n":       "import * as b",
		"import { b }\nfrom './b.js';\n":       "import { b }",
		"const a = import(b);\n":               "import(b)",
		"const $use = 1;\n":                    "the name $use",
		"import { b } from './gone.js';\n":     "parts/gone.js is needed by parts/a.js",
		"import { c } from '../app.js';\n":     "is not there",
		"import { a } from '../parts/a.js';\n": "parts/a.js is needed by parts/a.js",
	} {
		modules["parts/a.js"] = []byte(text)
		modules["app.js"] = []byte("import { a } from './parts/a.js';\n")
		if _, err := link(modules, "app.js"); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want %q", text, err, says)
		}
	}
	all := sources(t)
	script := string(load().files["app.js"].plain)
	for name, source := range all {
		if name != "boot.js" && strings.Count(script, "\n'"+name+"': () => {\n") != 1 {
			t.Errorf("%s is not there once", name)
		}
		if n := strings.Count(string(source), "import("); name == "boot.js" && n != 1 {
			t.Errorf("boot.js loads %d scripts", n)
		}
	}
	if n := len(load().files); n != 4 {
		t.Errorf("%d files are served, besides the HTML: %v", n, load().files)
	}
}
