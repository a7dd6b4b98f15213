package findings

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"

	"github.com/weir-rl/weir/internal/lab/sim"
)

// Tests is how tests of rules went, and its form in JSON.
type Tests struct {
	Passed int         `json:"passed"`
	Failed int         `json:"failed"`
	Files  []TestsFile `json:"files"`
}

// TestsFile is how the tests of one file went.
type TestsFile struct {
	File  string `json:"file"`
	Error string `json:"error,omitempty"` // why the file, or the rest of it, could not be run
	Tests []Test `json:"tests"`
}

// Test is how one test went: it passed if no step failed.
type Test struct {
	Name     string `json:"name"`
	Line     int    `json:"line"`
	Passed   bool   `json:"passed"`
	Failures []Step `json:"failures,omitempty"`
}

// Step is a step that did not go as expected.
type Step struct {
	Line     int    `json:"line"`
	What     string `json:"what"`
	Request  int    `json:"request,omitempty"` // of several, counted from 1
	Expected string `json:"expected"`
	Got      string `json:"got"`
}

// Add adds the tests of a file. err says why not all of them were run.
func (t *Tests) Add(path string, results []*sim.TestResult, err error) {
	f := TestsFile{File: path, Tests: []Test{}}
	if err != nil {
		f.Error = err.Error()
	}
	for _, r := range results {
		test := Test{Name: r.Test.Name, Line: r.Test.Line, Passed: !r.Failed}
		if r.Failed {
			t.Failed++
		} else {
			t.Passed++
		}
		for _, s := range r.Steps {
			if s.Failed == 0 {
				continue
			}
			step := Step{Line: s.Step.Line, What: s.What, Expected: s.Expected, Got: s.Got}
			if s.Step.Send != nil && s.Step.Send.Times > 1 {
				step.Request = int(s.Failed)
			}
			test.Failures = append(test.Failures, step)
		}
		f.Tests = append(f.Tests, test)
	}
	t.Files = append(t.Files, f)
}

// The elements of a report in the form of JUnit, as CI systems read it.
type (
	junitSuites struct {
		XMLName  xml.Name     `xml:"testsuites"`
		Name     string       `xml:"name,attr"`
		Tests    int          `xml:"tests,attr"`
		Failures int          `xml:"failures,attr"`
		Errors   int          `xml:"errors,attr"`
		Suites   []junitSuite `xml:"testsuite"`
	}
	junitSuite struct {
		Name     string      `xml:"name,attr"`
		Tests    int         `xml:"tests,attr"`
		Failures int         `xml:"failures,attr"`
		Errors   int         `xml:"errors,attr"`
		Cases    []junitCase `xml:"testcase"`
	}
	junitCase struct {
		Name    string      `xml:"name,attr"`
		Class   string      `xml:"classname,attr"`
		File    string      `xml:"file,attr"`
		Line    int         `xml:"line,attr,omitempty"`
		Failure *junitFault `xml:"failure"`
		Error   *junitFault `xml:"error"`
	}
	junitFault struct {
		Message string `xml:"message,attr"`
		Text    string `xml:",chardata"`
	}
)

// WriteJUnit writes the tests as a report in the form of JUnit: a suite for each file. A file that
// could not be run is a case with an error.
func (t *Tests) WriteJUnit(out io.Writer) error {
	all := junitSuites{Name: "weir test", Failures: t.Failed}
	for _, f := range t.Files {
		s := junitSuite{Name: f.File}
		for _, test := range f.Tests {
			c := junitCase{Name: test.Name, Class: f.File, File: f.File, Line: test.Line}
			if !test.Passed {
				s.Failures++
				c.Failure = faultOf(f.File, test.Failures)
			}
			s.Cases = append(s.Cases, c)
		}
		if f.Error != "" {
			s.Errors++
			first, _, _ := strings.Cut(f.Error, "\n")
			s.Cases = append(s.Cases, junitCase{Name: f.File, Class: f.File, File: f.File,
				Error: &junitFault{first, f.Error}})
		}
		s.Tests = len(s.Cases)
		all.Tests, all.Errors, all.Suites = all.Tests+s.Tests, all.Errors+s.Errors, append(all.Suites, s)
	}
	if _, err := io.WriteString(out, xml.Header); err != nil {
		return err
	}
	e := xml.NewEncoder(out)
	e.Indent("", "  ")
	if err := e.Encode(all); err != nil {
		return err
	}
	_, err := io.WriteString(out, "\n")
	return err
}

// faultOf describes failures, the first of them in short.
func faultOf(path string, failures []Step) *junitFault {
	var text strings.Builder
	for _, s := range failures {
		fmt.Fprintf(&text, "%s:%d: %s", path, s.Line, s.What)
		if s.Request > 0 {
			fmt.Fprintf(&text, ", request %d", s.Request)
		}
		fmt.Fprintf(&text, "\nexpected %s\ngot      %s\n", s.Expected, s.Got)
	}
	fault := &junitFault{Text: text.String()}
	if len(failures) > 0 {
		fault.Message = fmt.Sprintf("line %d: expected %s, got %s", failures[0].Line, failures[0].Expected,
			failures[0].Got)
	}
	return fault
}
