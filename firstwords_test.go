package weir_test

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// What begins with a word that is no folder's name lies in these folders.
var (
	settingsElsewhere = map[string]string{
		"cors": "httplimit", "decisions": "internal/observe/decisionlog",
		"default_domain": "internal/server", "defer": "internal/door/proxy/deferred", "drain": "internal/server",
		"fields": "httplimit", "headers": "httplimit", "identity": "httplimit", "limits": "internal/wire/listen",
		"log": "internal/server", "node": "internal/server/nodename.go", "max_connections": "internal/wire/listen", "prometheus": "internal/host/load",
		"proxy_protocol": "internal/wire/listen", "region": "store/regions", "rules": "internal/rulesource",
		"rules_db": "internal/rulesource/ruledb", "signals": "internal/host/load",
		"tls": "internal/wire/listen", "trusted_peers": "internal/door/auth", "unknown_domain": "decide.go",
	}
	commandsElsewhere = map[string]string{
		"rules": "cmd/weir/rulesdb.go",
	}
	metricsElsewhere = map[string]string{
		"abandoned": "internal/door/proxy", "ban": "internal/limiter/orders", "banned": "internal/limiter/orders",
		"bans": "internal/limiter/orders", "candidate": "internal/observe/insight", "certificate": "internal/wire/listen",
		"connections": "internal/wire/listen", "cost": "httplimit", "database": "store/cas",
		"decision": "internal/observe/decisionlog", "decisions": "internal/observe", "descriptor": "internal/door/rls",
		"elastic": "internal/host/load", "fields": "httplimit", "grants": "internal/limiter/orders",
		"held": "internal/door/line", "node": "internal/server/nodename.go", "region": "store/regions", "requests": "internal/observe",
		"reservations": "internal/limiter/reserve", "retry": "internal/observe/insight", "rules": "internal/rulesource",
		"signal": "internal/host/load", "tokens": "internal/door/auth", "wrong": "internal/door/auth",
	}
)

// TestFirstWords: what a user types leads to the code. The first word of a setting or a metric is
// the name of a folder, and a command has a file of its name in cmd/weir.
func TestFirstWords(t *testing.T) {
	folders := map[string]bool{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := d.Name(); d.IsDir() && path != "." {
			if name[0] == '.' || name == "testdata" || isModule(path) || !shipped(filepath.ToSlash(path)) {
				return filepath.SkipDir
			}
			folders[name] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	isFolder := func(word string) bool { return folders[strings.NewReplacer("_", "", "-", "").Replace(word)] }
	check := func(what string, words []string, known func(word string) bool, elsewhere map[string]string) {
		t.Helper()
		if len(words) < 10 {
			t.Errorf("only %d first words of %s were found", len(words), what)
		}
		for _, word := range words {
			place, listed := elsewhere[word]
			switch _, err := os.Stat(place); {
			case !known(word) && !listed:
				t.Errorf("%s: %s is no name of a folder; name it after its folder, or list where it lies", what, word)
			case known(word) && listed:
				t.Errorf("%s: %s is the name of a folder, and is listed all the same", what, word)
			case listed && err != nil:
				t.Errorf("%s: %s: %v", what, word, err)
			}
		}
		for word := range maps.Keys(elsewhere) {
			if !slices.Contains(words, word) {
				t.Errorf("%s: %s is listed, and there is none", what, word)
			}
		}
	}
	check("settings", wordsIn(t, "internal/server/*.go", `\{Path: "([a-z0-9_]+)`), isFolder, settingsElsewhere)
	check("metrics", wordsIn(t, "internal/admin/metrics/*.go", `"weir_([a-z0-9]+)`), isFolder, metricsElsewhere)
	check("commands", wordsIn(t, "cmd/weir/main.go", `\tnew([A-Z][a-z]+)\w*Command\(`), func(word string) bool {
		_, err := os.Stat(filepath.Join("cmd", "weir", strings.ToLower(word)+".go"))
		return err == nil
	}, commandsElsewhere)
}

// wordsIn returns what an expression finds in the files of a pattern, sorted, in lower case.
func wordsIn(t *testing.T, pattern, expression string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.FromSlash(pattern))
	if err != nil {
		t.Fatal(err)
	}
	words := map[string]bool{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range regexp.MustCompile(expression).FindAllSubmatch(text, -1) {
			words[strings.ToLower(string(found[1]))] = true
		}
	}
	return slices.Sorted(maps.Keys(words))
}
