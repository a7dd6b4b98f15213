package server

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

var update = flag.Bool("update", false, "write the tables of settings anew")

// Marks around the tables of settings in docs/reference/configuration.md.
const (
	settingsBegin = "<!-- settings: written by `go test ./internal/server -run TestSettingsDocumented -update` -->\n"
	settingsEnd   = "<!-- settings: end -->\n"
)

// TestSettingsDocumented: the tables of docs/reference/configuration.md say of each setting what
// the program says.
func TestSettingsDocumented(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "reference", "configuration.md")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begun := strings.Cut(string(data), settingsBegin)
	have, after, ended := strings.Cut(rest, settingsEnd)
	if !begun || !ended {
		t.Fatalf("%s has no place for the settings, between\n%s%s", path, settingsBegin, settingsEnd)
	}
	want := settingsTables()
	if *update {
		if err := os.WriteFile(path, []byte(before+settingsBegin+want+settingsEnd+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if have != want {
		t.Errorf(
			"docs/reference/configuration.md tells of other settings than the program; run go test ./internal/server -run TestSettingsDocumented -update\n%s",
			firstDifference(have, want))
	}
	if rows := strings.Count(want, "\n| `"); rows != len(allSettings) {
		t.Errorf("%d rows for %d settings", rows, len(allSettings))
	}
}

// TestSettingNames: flag and variable of each setting follow from its path, as the page says,
// without exception.
func TestSettingNames(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference", "configuration.md"))
	if err != nil {
		t.Fatal(err)
	}
	const example = "`store.max_deadline` is `--store-max-deadline` and `WEIR_STORE_MAX_DEADLINE`"
	if !strings.Contains(strings.Join(strings.Fields(string(page)), " "), example) {
		t.Errorf("the page does not say that %s", example)
	}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	AddFlags(flags)
	for i := range allSettings {
		s := &allSettings[i]
		words := strings.FieldsFunc(s.Path, func(r rune) bool { return r == '.' || r == '_' })
		flag, variable := strings.Join(words, "-"), "WEIR_"+strings.ToUpper(strings.Join(words, "_"))
		if f := flags.Lookup(flag); f == nil || !strings.HasSuffix(f.Usage, " ("+variable+")") {
			t.Errorf("the setting %s has no flag --%s that names the variable %s", s.Path, flag, variable)
		}
		if s.Variable() != variable {
			t.Errorf("%s is read from %s, and the page says %s", s.Path, s.Variable(), variable)
		}
	}
}

// TestFewSettings: a setting that nobody would change is a constant. The number may only fall, but
// for what an operator has to say: how a node is called, so that it is known again after a restart,
// and where the metrics are, for whoever is to reach nothing else.
func TestFewSettings(t *testing.T) {
	const most = 98
	if n := len(allSettings); n > most {
		t.Errorf("%d settings, and at most %d may be: make a constant of one, with its reason", n, most)
	}
}

// settingsTables writes a table for each group of settings.
func settingsTables() string {
	var b strings.Builder
	for _, g := range settingGroups {
		fmt.Fprintf(&b, "\n**%s**", g.Title)
		if g.Page != "" {
			fmt.Fprintf(&b, " ([%s](%s))", path.Base(g.Page), g.Page)
		}
		b.WriteString("\n\n| key | default | meaning |\n| --- | --- | --- |\n")
		for i := range g.Settings {
			s := &g.Settings[i]
			byDefault := "none"
			if s.Value != "" {
				byDefault = "`" + s.Value + "`"
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", s.Path, byDefault, markdownText(s.Help))
		}
	}
	b.WriteString("\n")
	return b.String()
}

// markdownText is plain text as Markdown shows it.
func markdownText(s string) string {
	return strings.NewReplacer(`\`, `\\`, "|", `\|`, "*", `\*`, "_", `\_`, "<", `\<`, "`", "\\`").Replace(s)
}

// firstDifference is the first line in which two texts differ.
func firstDifference(have, want string) string {
	h, w := strings.Split(have, "\n"), strings.Split(want, "\n")
	for i := range max(len(h), len(w)) {
		x, y := "", ""
		if i < len(h) {
			x = h[i]
		}
		if i < len(w) {
			y = w[i]
		}
		if x != y {
			return fmt.Sprintf("the page has %q\nthe program %q", cmp.Or(x, "nothing"), cmp.Or(y, "nothing"))
		}
	}
	return ""
}
