package weir_test

import (
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

// TestThirdPartyPackages holds what a program compiles that embeds Weir: the packages of others
// that ours need. Rules in YAML and expressions in CEL are for those that import rule/file.
func TestThirdPartyPackages(t *testing.T) {
	const xxhash = "github.com/cespare/xxhash/v2"
	jose := []string{xxhash, "github.com/dunglas/httpsfv", "github.com/go-jose/go-jose/v4",
		"github.com/go-jose/go-jose/v4/cipher", "github.com/go-jose/go-jose/v4/json"}
	for folder, want := range map[string][]string{
		".":            {xxhash},
		"rule":         {xxhash},
		"store":        {xxhash},
		"store/memory": {xxhash},
		"overload":     {xxhash},
		"httplimit":    jose,
	} {
		list, err := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}",
			path.Join(module, folder)).Output()
		if err != nil {
			t.Fatalf("%s: %v", folder, err)
		}
		var got []string
		for name := range strings.FieldsSeq(string(list)) {
			if name != module && !strings.HasPrefix(name, module+"/") {
				got = append(got, name)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s needs %q, want %q", folder, got, want)
		}
	}
}
