// Package findings holds what the checks of rules found, in the forms that people and programs
// read: Lint as text, JSON and SARIF, Tests as text, JSON and JUnit.
package findings

import (
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"path/filepath"

	"github.com/weir-rl/weir/internal/util/human"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
)

// Severities of a Problem.
const (
	Error   = "error"
	Warning = "warning"
	Note    = "note"
)

// Lint is what lint found, and its form in JSON.
type Lint struct {
	Rules    int       `json:"rules"`
	Files    int       `json:"files"`
	Errors   int       `json:"errors"`
	Warnings int       `json:"warnings"`
	Problems []Problem `json:"problems"`
}

// Problem is one thing that lint found.
type Problem struct {
	Severity string `json:"severity"` // Error, Warning or Note
	File     string `json:"file,omitempty"`
	Line     int    `json:"line,omitempty"`
	Column   int    `json:"column,omitempty"`
	Rule     string `json:"rule,omitempty"`
	Name     string `json:"name,omitempty"` // of the warning, as comments silence it
	Message  string `json:"message"`
	Hint     string `json:"hint,omitempty"`

	text string // for people, with the quoted line
}

// Add adds a problem. Its file is as the user named it.
func (l *Lint) Add(severity string, p rule.Problem) {
	switch severity {
	case Error:
		l.Errors++
	case Warning:
		l.Warnings++
	}
	l.Problems = append(l.Problems, Problem{Severity: severity, File: p.Pos.File, Line: p.Pos.Line,
		Column: p.Pos.Column,
		Rule:   p.Rule, Name: p.Name, Message: p.Message, Hint: p.Hint, text: p.Error()})
}

// WriteText writes the problems for people, and a line that counts them.
func (l *Lint) WriteText(out io.Writer) error {
	for i := range l.Problems {
		if _, err := fmt.Fprintf(out, "%s: %s\n", l.Problems[i].Severity, l.Problems[i].text); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(out, "%s in %s: %s, %s\n", human.Count(l.Rules, "rule"), human.Count(l.Files, "file"),
		human.Count(l.Errors, "error"), human.Count(l.Warnings, "warning"))
	return err
}

// The parts of a SARIF log that are written (OASIS, Static Analysis Results Interchange Format
// 2.1.0).
type (
	sarifLog struct {
		Schema  string     `json:"$schema"`
		Version string     `json:"version"`
		Runs    []sarifRun `json:"runs"`
	}
	sarifRun struct {
		Tool    sarifTool     `json:"tool"`
		Results []sarifResult `json:"results"`
	}
	sarifTool struct {
		Driver sarifDriver `json:"driver"`
	}
	sarifDriver struct {
		Name           string      `json:"name"`
		Version        string      `json:"version,omitempty"`
		InformationURI string      `json:"informationUri"`
		Rules          []sarifRule `json:"rules"`
	}
	sarifRule struct {
		ID               string       `json:"id"`
		ShortDescription sarifMessage `json:"shortDescription"`
	}
	sarifMessage struct {
		Text string `json:"text"`
	}
	sarifResult struct {
		RuleID    string          `json:"ruleId"`
		RuleIndex int             `json:"ruleIndex"`
		Level     string          `json:"level"`
		Message   sarifMessage    `json:"message"`
		Locations []sarifLocation `json:"locations,omitempty"`
	}
	sarifLocation struct {
		PhysicalLocation sarifPlace `json:"physicalLocation"`
	}
	sarifPlace struct {
		ArtifactLocation sarifArtifact `json:"artifactLocation"`
		Region           *sarifRegion  `json:"region,omitempty"`
	}
	sarifArtifact struct {
		URI string `json:"uri"`
	}
	sarifRegion struct {
		StartLine   int `json:"startLine"`
		StartColumn int `json:"startColumn,omitempty"`
	}
)

// invalid and noted are the names of problems that have none of their own.
const (
	invalid = "invalid"
	noted   = "note"
)

// WriteSARIF writes the problems as a SARIF log 2.1.0, as code scanning reads it.
func (l *Lint) WriteSARIF(out io.Writer, version string) error {
	driver := sarifDriver{Name: "weir", Version: version, InformationURI: "https://github.com/weir-rl/weir",
		Rules: []sarifRule{
			{invalid, sarifMessage{"the rules cannot be loaded"}}, {noted, sarifMessage{"worth knowing, and no fault"}},
		}}
	index := map[string]int{invalid: 0, noted: 1}
	for _, w := range file.Warnings() {
		index[w.Name] = len(driver.Rules)
		driver.Rules = append(driver.Rules, sarifRule{w.Name, sarifMessage{w.About}})
	}
	run := sarifRun{Tool: sarifTool{driver}, Results: []sarifResult{}}
	for i := range l.Problems {
		p := &l.Problems[i]
		name := p.Name
		if _, known := index[name]; !known || name == "" {
			if name = invalid; p.Severity == Note {
				name = noted
			}
		}
		r := sarifResult{RuleID: name, RuleIndex: index[name], Level: p.Severity, Message: sarifMessage{p.Message}}
		if p.Hint != "" {
			r.Message.Text += " (" + p.Hint + ")"
		}
		if p.File != "" {
			place := sarifPlace{ArtifactLocation: sarifArtifact{fileURI(p.File)}}
			if p.Line > 0 {
				place.Region = &sarifRegion{p.Line, p.Column}
			}
			r.Locations = []sarifLocation{{place}}
		}
		run.Results = append(run.Results, r)
	}
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(sarifLog{"https://json.schemastore.org/sarif-2.1.0.json", "2.1.0", []sarifRun{run}})
}

// fileURI is the path of a file as a reference: relative as it was named, or with its scheme.
func fileURI(path string) string {
	u := url.URL{Path: filepath.ToSlash(path)}
	if filepath.IsAbs(path) {
		u.Scheme = "file"
	}
	return u.String()
}
