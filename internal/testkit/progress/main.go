// Command progress shows how tests go: it reads what go test -json writes, prints a line for each
// package when it has ended and the running tests meanwhile, the output of a test when that has
// failed, and the reason of one that was skipped. At the end it lists once more, in at most 40
// lines, the skipped and the failed tests, with as much of the output as there is room for: many
// people see only the end of a long log.
//
//	{ go test -json ./...; go test -json ./other/...; } 2>&1 | progress [-strict] [-may-skip REGEXP]...
//
// Lines that are not of go test -json are shown as they are; one that begins with FAIL is a
// failure, too. With -strict a skipped test is a failure, unless its line ("TestX: the reason")
// matches a REGEXP. The exit status is 1 if something has failed, or if nothing ran.
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

// quiet is how long nothing may end before the running tests are shown.
const quiet = 30 * time.Second

// ending is how many lines the end has at most, and skips how many lines about skipped tests there
// are beside the names of failed ones.
const (
	ending = 40
	skips  = 10
)

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
	w        io.Writer
	output   map[id]*strings.Builder
	builds   map[string]*strings.Builder // the compiler's output, by import path
	under    []id                        // tests that run, in the order of their start
	tests    map[string]*tests           // that ended, by package
	failed   []failure
	skipped  []skip
	packages int
}

// tests counts the tests of a package that have ended, and those among them that have failed.
type tests struct{ ended, failed int }

// skip is a test that was skipped, and why.
type skip struct{ name, reason string }

func (s skip) String() string { return s.name + ": " + s.reason }

// long reports whether a quick run leaves the test out (package effort).
func (s skip) long() bool { return strings.HasPrefix(s.why(), "long: ") }

// why is the reason without the line of the test that gives it.
func (s skip) why() string { return place.ReplaceAllString(s.reason, "") }

var place = regexp.MustCompile(`^\S+\.go:\d+: `)

// failure is a test or package that has failed, and its output.
type failure struct{ name, text string }

func newReport(w io.Writer) *report {
	return &report{w: w, output: map[id]*strings.Builder{}, builds: map[string]*strings.Builder{},
		tests: map[string]*tests{}}
}

// line takes one line of go test's output; one that is no event is shown as it is.
func (r *report) line(line string) {
	var e event
	if !strings.HasPrefix(line, "{") || json.Unmarshal([]byte(line), &e) != nil || e.Action == "" {
		fmt.Fprint(r.w, line)
		if name, ok := strings.CutPrefix(line, "FAIL "); ok {
			r.failed = append(r.failed, failure{name: strings.TrimSpace(name)})
		}
		return
	}
	at := id{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		add(r.builds, e.ImportPath, e.Output)
	case "start", "run", "cont":
		r.under = append(r.under, at)
	case "pause": // until the tests before it have ended
		r.leave(at)
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

// leave says that a test does not run any more.
func (r *report) leave(at id) {
	r.under = slices.DeleteFunc(r.under, func(i id) bool { return i == at })
}

// take returns what a test or package has written, and forgets it.
func (r *report) take(at id) string {
	b := r.output[at]
	if b == nil {
		return ""
	}
	delete(r.output, at)
	return b.String()
}

func (r *report) ended(e event, at id) {
	text := r.take(at)
	r.leave(at)
	count := r.tests[e.Package]
	if count == nil {
		count = &tests{}
		r.tests[e.Package] = count
	}
	if e.Test != "" {
		count.ended++
		switch e.Action {
		case "fail":
			count.failed++
			r.failed = append(r.failed, failure{at.String(), text})
			fmt.Fprintf(r.w, "FAIL %s\n%s", at, indented(text))
		case "skip":
			line := skip{at.String(), reason(text)}
			r.skipped = append(r.skipped, line)
			if !line.long() { // a quick run has many of these
				fmt.Fprintf(r.w, "SKIP %s\n", line)
			}
		}
		return
	}
	r.packages++
	cut, rest := r.leftovers(e.Package)
	// The same package may come once more, with other flags.
	defer delete(r.tests, e.Package)
	took := time.Duration(e.Elapsed * float64(time.Second)).Round(100 * time.Millisecond)
	switch e.Action {
	case "skip": // no test files
	case "pass":
		fmt.Fprintf(r.w, "ok   %-32s %8v %6d tests\n", at, took, count.ended)
	case "fail":
		if b := r.builds[e.FailedBuild]; b != nil {
			text = b.String() + text
		}
		text += rest
		if count.failed+len(cut) == 0 || crash.MatchString(text) {
			r.failed = append(r.failed, failure{at.String(), text})
		}
		r.failed = append(r.failed, cut...)
		fmt.Fprintf(r.w, "FAIL %-32s %8v\n%s", at, took, indented(text))
		for _, f := range cut {
			fmt.Fprintf(r.w, "FAIL %s\n%s", f.name, indented(f.text))
		}
	}
}

// leftovers returns, when a package has ended, its tests that a panic or the end of the time has
// cut off, and what was written under the names of tests that had ended before: often the
// goroutines of a program that died.
func (r *report) leftovers(name string) (cut []failure, rest string) {
	for _, i := range slices.Clone(r.under) {
		if i.Package == name && i.Test != "" {
			cut = append(cut, failure{i.String() + " (cut off)", r.take(i)})
			r.leave(i)
		}
	}
	slices.SortFunc(cut, func(a, b failure) int { return strings.Compare(a.name, b.name) })
	var ended []id
	for i := range r.output {
		if i.Package == name {
			ended = append(ended, i)
		}
	}
	slices.SortFunc(ended, func(a, b id) int { return strings.Compare(a.Test, b.Test) })
	for _, i := range ended {
		rest += r.take(i)
	}
	return cut, rest
}

// running prints the tests that run: of each package the one that has run for longest, without
// those that wait for subtests.
func (r *report) running() {
	longest := map[string]id{}
	for _, i := range r.under {
		if have, ok := longest[i.Package]; !ok || have.Test == "" || strings.HasPrefix(i.Test, have.Test+"/") {
			longest[i.Package] = i
		}
	}
	var names []string
	for _, i := range longest {
		names = append(names, i.String())
	}
	if slices.Sort(names); len(names) > 0 {
		fmt.Fprintf(r.w, "...  %s\n", strings.Join(names, ", "))
	} else {
		fmt.Fprintln(r.w, "...  compiling")
	}
}

// end prints the skipped and the failed tests, and reports whether all is well. The names of failed
// tests come before anything else that could take their room; they are the last lines.
func (r *report) end(strict bool, may []*regexp.Regexp) bool {
	slices.SortFunc(r.skipped, func(a, b skip) int { return strings.Compare(a.String(), b.String()) })
	var allowed []skip
	for _, s := range r.skipped {
		if strict && !slices.ContainsFunc(may, func(m *regexp.Regexp) bool { return m.MatchString(s.String()) }) {
			r.failed = append(r.failed, failure{name: s.String() + " (no test may be skipped here)"})
		} else {
			allowed = append(allowed, s)
		}
	}
	mayBe := byReason(allowed)
	if r.packages == 0 {
		r.failed = append(r.failed, failure{name: "nothing was tested"})
	}
	fails := summary(r.failed, ending-min(len(mayBe), skips))
	for _, line := range append(first(mayBe, ending-len(fails), "SKIP"), fails...) {
		fmt.Fprintln(r.w, line)
	}
	return len(r.failed) == 0
}

// byReason are lines that say which tests were skipped and why: one for each reason.
func byReason(skipped []skip) []string {
	names := map[string][]string{}
	for _, s := range skipped {
		why := s.why()
		if s.long() {
			why = "long; scripts/test --all runs them"
		}
		names[why] = append(names[why], s.name)
	}
	var lines []string
	for why, of := range names {
		if len(of) == 1 {
			lines = append(lines, fmt.Sprintf("SKIP %s: %s", of[0], why))
		} else {
			lines = append(lines, fmt.Sprintf("SKIP %d tests: %s", len(of), why))
		}
	}
	slices.Sort(lines)
	return lines
}

// summary describes failures in at most so many lines: all names if possible, and as much of the
// output as there is room for, the same of each.
func summary(failed []failure, room int) []string {
	var names, lines []string
	for _, f := range failed {
		names = append(names, "FAIL "+f.name)
	}
	if len(names) > room {
		return first(names, room, "FAIL")
	}
	room -= len(names)
	var sizes []int
	for _, f := range failed {
		sizes = append(sizes, len(telling(f.text, room)))
	}
	slices.Sort(sizes)
	each := room
	for i, size := range sizes { // room that short ones do not need is for the long ones
		each = room / (len(sizes) - i)
		room -= min(size, each)
	}
	for i, f := range failed {
		lines = append(append(lines, names[i]), telling(f.text, each)...)
	}
	return lines
}

// first returns as many of the first lines as there is room for, and a count of the rest.
func first(lines []string, room int, what string) []string {
	if len(lines) <= room {
		return lines
	}
	if room <= 0 {
		return nil
	}
	return append(lines[:room-1:room-1], fmt.Sprintf("%s ... and %d more, told above", what, len(lines)-room+1))
}

// crash is how the lines begin after which the reason stands; without one the reason stands last.
var crash = regexp.MustCompile(
	`(?m)^\s*(panic: |fatal error: |WARNING: DATA RACE|SIG[A-Z]+: |unexpected fault address)`)

// telling are the lines of an output, at most so many, that most likely show why a test has failed.
func telling(text string, room int) []string {
	var lines []string
	for line := range strings.Lines(indented(text)) {
		if !frame.MatchString(line) {
			lines = append(lines, strings.TrimSuffix(line, "\n"))
		}
	}
	if i := slices.IndexFunc(lines, crash.MatchString); i >= 0 {
		return lines[i:min(i+room, len(lines))]
	}
	return lines[max(0, len(lines)-room):]
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
