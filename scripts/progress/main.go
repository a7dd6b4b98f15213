// Command progress shows how tests go: it reads what go test -json writes, prints a line for each
// package when it has ended and what is running meanwhile, the output of a test when that has
// failed, and at the end only what has failed and what was skipped, with the reasons.
//
//	go test -json ./... 2>&1 | progress [-strict] [-may-skip REGEXP]...
//
// With -strict a skipped test is a failure, unless its line ("TestX: the reason") matches a REGEXP.
// The exit status is 1 if something has failed, or if nothing ran.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
)

// quiet is how long nothing may end before it is told what is running.
const quiet = 30 * time.Second

func main() {
	strict := flag.Bool("strict", false, "a skipped test is a failure")
	var may []*regexp.Regexp
	flag.Func("may-skip", "what may be skipped nevertheless", func(s string) error {
		r, err := regexp.Compile(s)
		may = append(may, r)
		return err
	})
	flag.Parse()
	lines := make(chan string)
	go func() {
		defer close(lines)
		for in := bufio.NewReader(os.Stdin); ; {
			line, err := in.ReadString('\n')
			if line != "" {
				lines <- line
			}
			if err != nil {
				return
			}
		}
	}()
	r := newReport(os.Stdout)
	for open := true; open; {
		select {
		case line, ok := <-lines:
			if open = ok; ok {
				r.line(line)
			}
		case <-time.After(quiet):
			r.running()
		}
	}
	if !r.end(*strict, may) {
		os.Exit(1)
	}
}

// event is a line of go test -json (go doc test2json, go help buildjson).
type event struct {
	Action, Package, Test, Output string
	ImportPath, FailedBuild       string
	Elapsed                       float64 // s
}

// id names a test; Test is empty for its package as a whole.
type id struct{ Package, Test string }

func (i id) String() string {
	name := i.Package
	if _, inside, ok := strings.Cut(name, "/weir-rl/weir"); ok {
		name = "." + inside
	}
	return strings.TrimSpace(name + " " + i.Test)
}

type report struct {
	w               io.Writer
	output          map[id]*strings.Builder
	builds          map[string]*strings.Builder // what the compiler said, by import path
	under           []id                        // tests under way, in the order of their start
	tests           map[string]int              // that ended, by package
	failed, skipped []string
	packages        int
}

func newReport(w io.Writer) *report {
	return &report{w: w, output: map[id]*strings.Builder{}, builds: map[string]*strings.Builder{}, tests: map[string]int{}}
}

// line takes one line of what go test writes; one that is no event is shown as it is.
func (r *report) line(line string) {
	var e event
	if !strings.HasPrefix(line, "{") || json.Unmarshal([]byte(line), &e) != nil || e.Action == "" {
		fmt.Fprint(r.w, line)
		return
	}
	at := id{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		add(r.builds, e.ImportPath, e.Output)
	case "start", "run":
		r.under = append(r.under, at)
	case "output":
		add(r.output, at, e.Output)
	case "pass", "fail", "skip":
		r.ended(e, at)
	}
}

func add[K comparable](m map[K]*strings.Builder, k K, text string) {
	if m[k] == nil {
		m[k] = &strings.Builder{}
	}
	m[k].WriteString(text)
}

func (r *report) ended(e event, at id) {
	text := ""
	if b := r.output[at]; b != nil {
		text = b.String()
	}
	delete(r.output, at)
	r.under = slices.DeleteFunc(r.under, func(i id) bool { return i == at })
	if e.Test != "" {
		r.tests[e.Package]++
		switch e.Action {
		case "fail":
			r.failed = append(r.failed, at.String())
			fmt.Fprintf(r.w, "FAIL %s\n%s", at, indented(text))
		case "skip":
			r.skipped = append(r.skipped, at.String()+": "+reason(text))
		}
		return
	}
	r.packages++
	took := time.Duration(e.Elapsed * float64(time.Second)).Round(100 * time.Millisecond)
	switch e.Action {
	case "skip": // no test files
	case "pass":
		fmt.Fprintf(r.w, "ok   %-32s %8v %6d tests\n", at, took, r.tests[e.Package])
	case "fail":
		if b := r.builds[e.FailedBuild]; b != nil {
			text = b.String() + text
		}
		before := len(r.failed)
		for i := range r.output { // of tests that a panic, or the end of the time, has cut off
			if i.Package == e.Package {
				text += r.output[i].String()
				r.failed = append(r.failed, i.String()+" (cut off)")
			}
		}
		slices.Sort(r.failed[before:])
		if !slices.ContainsFunc(r.failed, func(s string) bool { return strings.HasPrefix(s, at.String()+" ") }) {
			r.failed = append(r.failed, at.String())
		}
		fmt.Fprintf(r.w, "FAIL %-32s %8v\n%s", at, took, indented(text))
	}
}

// running tells what is under way: of each package the test that has begun last.
func (r *report) running() {
	last := map[string]id{}
	for _, i := range r.under {
		last[i.Package] = i
	}
	var names []string
	for _, i := range last {
		names = append(names, i.String())
	}
	if slices.Sort(names); len(names) > 0 {
		fmt.Fprintf(r.w, "...  %s\n", strings.Join(names, ", "))
	} else {
		fmt.Fprintln(r.w, "...  compiling")
	}
}

// end prints what has failed and what was skipped, and reports whether all is well.
func (r *report) end(strict bool, may []*regexp.Regexp) bool {
	allowed := func(line string) bool {
		return slices.ContainsFunc(may, func(m *regexp.Regexp) bool { return m.MatchString(line) })
	}
	slices.Sort(r.skipped)
	for _, line := range r.skipped {
		fmt.Fprintf(r.w, "SKIP %s\n", line)
		if strict && !allowed(line) {
			r.failed = append(r.failed, line+" (no test may be skipped here)")
		}
	}
	for _, name := range r.failed {
		fmt.Fprintf(r.w, "FAIL %s\n", name)
	}
	if r.packages == 0 {
		fmt.Fprintln(r.w, "FAIL nothing was tested")
	}
	return len(r.failed) == 0 && r.packages > 0
}

// frame are the lines that go test itself writes around a test's own.
var frame = regexp.MustCompile(`^\s*(=== |--- |PASS$|FAIL$|exit status |-test\.shuffle )`)

// reason is why a test was skipped, by its own words.
func reason(text string) string {
	var own []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && !frame.MatchString(line) {
			own = append(own, line)
		}
	}
	if len(own) == 0 {
		return "no reason is given"
	}
	return strings.Join(own, " ")
}

func indented(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) != "" && !strings.HasPrefix(line, "=== ") {
			b.WriteString("     " + strings.TrimSuffix(line, "\n") + "\n")
		}
	}
	return b.String()
}
