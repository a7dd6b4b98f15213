package settings_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/weir-rl/weir/internal/server/settings"
)

// kitchen is a configuration that no server has.
type kitchen struct {
	oven    string
	bake    time.Duration
	guests  []string
	friends []string
}

var table = settings.TableOf([]settings.Group[kitchen]{
	{Title: "Oven", Settings: []settings.Setting[kitchen]{
		{Path: "oven", Value: "gas", Set: settings.String(func(k *kitchen) *string { return &k.oven })},
		{Path: "oven.bake_time", Value: "10m",
			Set: settings.Duration(time.Minute, func(k *kitchen) *time.Duration { return &k.bake })},
	}},
	{Title: "Guests", Settings: []settings.Setting[kitchen]{
		{Path: "guests", Kind: settings.List,
			Set: func(k *kitchen, items []string) error { k.guests = items; return nil }},
		{Path: "friends", Kind: settings.Mapping,
			Set: func(k *kitchen, items []string) error { k.friends = items; return nil }},
	}},
})

// load reads a file, variables and flags into a kitchen.
func load(t *testing.T, file string, variables map[string]string, args ...string) (k kitchen, named map[string]bool,
	err error) {
	t.Helper()
	t.Chdir(t.TempDir())
	if err := os.WriteFile("weir.yaml", []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	table.AddFlags(flags)
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	if err := table.SetDefaults(&k); err != nil {
		t.Fatal(err)
	}
	named, problems := table.Load(&k, flags, variables)
	return k, named, errors.Join(problems...)
}

// TestLoad: flags go before variables, these before the file, and this before the defaults.
func TestLoad(t *testing.T) {
	k, named, err := load(t, "oven: {url: wood, bake_time: 20m}\nguests: [ada, bob]\nfriends: {ada: bob}\n",
		map[string]string{"WEIR_OVEN_BAKE_TIME": "30m", "WEIR_GUESTS": "eve, dan"}, "--guests=flo")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprintln(k.oven, k.bake, k.guests, k.friends, len(named)), "wood 30m0s [flo] [ada=bob] 4\n"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	k, named, err = load(t, "", nil)
	if got, want := fmt.Sprintln(k.oven, k.bake, k.guests, k.friends, len(named), err), "gas 10m0s [] [] 0 <nil>\n"; got != want {
		t.Errorf("by default: got %s, want %s", got, want)
	}
}

// TestErrors: an error says where it is and which name was meant, and all come at once.
func TestErrors(t *testing.T) {
	_, _, err := load(t, "oven:\n  bake_tme: 1h\n  bake_time: 1s\n", map[string]string{"WEIR_OVEN_BAKE_TIME": "soon"},
		"--oven-bake-time=never")
	if err == nil {
		t.Fatal("no error")
	}
	want := []string{
		`weir.yaml:2:3: unknown key "oven.bake_tme"; did you mean "oven.bake_time"?`,
		`weir.yaml:3:14: oven.bake_time: "1s" is below 1m0s`,
		`WEIR_OVEN_BAKE_TIME: "soon" is no duration; write a number with a unit, such as 10s or 500ms`,
		`--oven-bake-time: "never" is no duration; write a number with a unit, such as 10s or 500ms`,
	}
	if got := strings.Split(err.Error(), "\n"); !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// TestStrays: a variable that begins as these do and is none is named, and its value is not.
func TestStrays(t *testing.T) {
	got := table.Strays([]string{"WEIR_OVEN=gas", "WEIR_GUEST=secret", "WEIR_SERVER=x", "WEIR_PORT=tcp://10.0.0.1:80",
		"HOME=/"})
	want := []string{`WEIR_GUEST is no setting, and has no effect; did you mean "WEIR_GUESTS"?`}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
