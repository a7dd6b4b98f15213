package page

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
)

// What link reads of a module: imports of names and declarations that are exported, each at the
// begin of a line, and imports of modules that are loaded later.
var (
	imported = regexp.MustCompile(`(?m)^import \{ ([\w, ]+) \} from '([^']+)';$`)
	exported = regexp.MustCompile(`(?m)^export ((?:async function|function|class|const) (\w+))`)
	later    = regexp.MustCompile(`\bimport\('([^']+)'\)`)
	// unread is what link does not understand, once it has read these.
	unread = regexp.MustCompile(`(?m)^(?:import|export)\b.*|\bimport\(.*`)
	// reserved are the names that link itself uses.
	reserved = regexp.MustCompile(`\$(?:made|use|later|load|of)\b`)
)

// linkHead makes a module when another one first needs it.
const linkHead = `const $made = {};
const $use = (name) => $made[name] ??= $of[name]();
const $later = async (name) => $use(name);
const $load = (file) => import(file);
const $of = {
`

// link puts the modules of the page, by path, into one script that begins with main: packed
// together they weigh a quarter less, and a browser asks for them once. Each module becomes a
// function that returns what it exports. Files that are no modules of ours are loaded as before. An
// error says what is not understood.
func link(modules map[string][]byte, main string) ([]byte, error) {
	var out strings.Builder
	out.WriteString(linkHead)
	needs := map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(modules)) {
		text := string(modules[name])
		if found := reserved.FindString(text); found != "" {
			return nil, fmt.Errorf("%s: the name %s is for what links the modules", name, found)
		}
		at := func(to string) string { return path.Join(path.Dir(name), to) }
		var exports []string
		for _, m := range exported.FindAllStringSubmatch(text, -1) {
			exports = append(exports, m[2])
		}
		text = exported.ReplaceAllString(text, "$1")
		text = imported.ReplaceAllStringFunc(text, func(line string) string {
			m := imported.FindStringSubmatch(line)
			needs[name] = append(needs[name], at(m[2]))
			return fmt.Sprintf("const { %s } = $use('%s');", strings.ReplaceAll(m[1], " as ", ": "), at(m[2]))
		})
		text = later.ReplaceAllStringFunc(text, func(call string) string {
			to := at(later.FindStringSubmatch(call)[1])
			if _, ours := modules[to]; ours {
				return "$later('" + to + "')"
			}
			return "$load('./" + to + "')" // from where the script lies
		})
		if line := unread.FindString(text); line != "" {
			return nil, fmt.Errorf("%s: what links the modules does not understand %q", name, line)
		}
		fmt.Fprintf(&out, "'%s': () => {\n%sreturn { %s };\n},\n", name, text, strings.Join(exports, ", "))
	}
	fmt.Fprintf(&out, "};\n$use('%s');\n", main)
	return []byte(out.String()), inOrder(needs, modules)
}

// inOrder fails if a module that another one needs is not there, or would not be made yet, since it
// needs that one itself.
func inOrder(needs map[string][]string, modules map[string][]byte) error {
	done := map[string]bool{}
	var visit func(name string, from []string) error
	visit = func(name string, from []string) error {
		if _, ok := modules[name]; !ok || slices.Contains(from, name) {
			return fmt.Errorf("%s is needed by %s, and is not there", name, strings.Join(from, ", which is needed by "))
		}
		if done[name] {
			return nil
		}
		done[name] = true
		for _, to := range needs[name] {
			if err := visit(to, append([]string{name}, from...)); err != nil {
				return err
			}
		}
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(modules)) {
		if err := visit(name, nil); err != nil {
			return err
		}
	}
	return nil
}
