package main

import (
	"bytes"
	"debug/buildinfo"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// checkThirdParty: the text of a THIRD-PARTY has Go, then each module of the program in the order
// of their paths, then uPlot, all with texts.
func checkThirdParty(t *testing.T, text string) {
	t.Helper()
	r := makeRelease(t)
	info, err := buildinfo.ReadFile(r.program(r.targets[0]))
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(info.Deps, func(a, b *debug.Module) int { return strings.Compare(a.Path, b.Path) })
	want := []string{"Go " + info.GoVersion}
	for _, m := range info.Deps {
		want = append(want, m.Path+"@"+m.Version)
	}
	if len(want) < 60 {
		t.Fatalf("the program has %q", want)
	}
	want = append(want, "uPlot")
	var got []string
	for _, m := range regexp.MustCompile(`(?m)^={80}\n(.+): \S+\n\n`).FindAllStringSubmatch(text, -1) {
		got = append(got, m[1])
	}
	if got = slices.Compact(got); !slices.Equal(got, want) {
		t.Errorf("it has the licences of %q, want %q", got, want)
	}
	for _, part := range []string{
		"The Go Authors", "Leon Sorokin", "github.com/redis/rueidis@", ": NOTICE\n", "Permission is hereby granted",
	} {
		if !strings.Contains(text, part) {
			t.Errorf("it has no %q", part)
		}
	}
}

// TestThirdParty: the licences of a program are the same bytes again.
func TestThirdParty(t *testing.T) {
	r := makeRelease(t)
	one, err := r.thirdParty(r.targets[0])
	if err != nil {
		t.Fatal(err)
	}
	two, err := r.thirdParty(r.targets[0])
	if err != nil || !bytes.Equal(one, two) {
		t.Errorf("two differ (%v)", err)
	}
	t.Logf("%d bytes", len(one))
	checkThirdParty(t, string(one))
}

// TestModuleTexts: which files of a module are its licences and notices; and one without a licence
// is named.
func TestModuleTexts(t *testing.T) {
	files := fstest.MapFS{}
	for _, name := range []string{"LICENSE", "NOTICE.txt", "copied/COPYING", "copied/Licence-MIT.md", "license.go",
		"licensed.md", "main.go", "testdata/LICENSE"} {
		files[name] = &fstest.MapFile{Data: []byte("text of " + name + "\r\n\r\n")}
	}
	var out bytes.Buffer
	if err := appendModule(&out, "example.com/m@v1.0.0", files); err != nil {
		t.Fatal(err)
	}
	var want string
	for _, name := range []string{"LICENSE", "NOTICE.txt", "copied/COPYING", "copied/Licence-MIT.md"} {
		want += "\n" + strings.Repeat("=", 80) + "\nexample.com/m@v1.0.0: " + name + "\n\ntext of " + name + "\n"
	}
	if out.String() != want {
		t.Errorf("it has\n%s\nwant\n%s", &out, want)
	}
	delete(files, "LICENSE")
	err := appendModule(&out, "example.com/m@v1.0.0", files)
	if err == nil || !strings.Contains(err.Error(), "example.com/m@v1.0.0 has no file with its licence") {
		t.Errorf("without a licence: %v", err)
	}
}
