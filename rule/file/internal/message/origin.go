// Package message has what messages about the rules of files are made of.
//
// Begin with Origin (origin.go): a file's text, whose lines messages quote. Comments in it silence
// warnings (ignore.go). words.go has words for numbers and limits.
package message

import (
	"slices"
	"strings"
	"sync"

	"github.com/weir-rl/weir/rule"
)

// MaxProblems bounds the errors of one load, and the warnings of one lint.
const MaxProblems = 10_000

const maxTextQuoting = 160 // characters of a quoted line

// SortProblems sorts problems by place.
func SortProblems(p []rule.Problem) {
	slices.SortStableFunc(p, func(a, b rule.Problem) int {
		if c := strings.Compare(a.Pos.File, b.Pos.File); c != 0 {
			return c
		}
		if c := a.Pos.Line - b.Pos.Line; c != 0 {
			return c
		}
		return a.Pos.Column - b.Pos.Column
	})
}

// Finish sorts the problems of a load, and quotes the lines of files at which they stand.
func Finish(problems []rule.Problem, files []*Origin) []rule.Problem {
	SortProblems(problems)
	for i := range problems {
		p := &problems[i]
		if at := slices.IndexFunc(files, func(o *Origin) bool { return o.Name == p.Pos.File }); at >= 0 &&
			p.Quote == "" {
			p.Quote = files[at].Quote(p.Pos.Line, p.Pos.Column)
		}
	}
	return problems
}

// Origin keeps the parts of a rule file that messages and Lint need. It is the Origin of a
// rule.File.
type Origin struct {
	Name  string
	Text  string
	split sync.Once
	lines []int // offset of each line, made when the first is asked for
	// Ignores are the comments that silence warnings, marked with the warnings that they silenced
	// when the file was loaded.
	Ignores Ignores
	// the rules for which the file names a timeout; nil for none
	timeouts map[*rule.Rule]bool
}

// Of returns the origin of r; nil if r comes from no file.
func Of(r *rule.Rule) *Origin {
	o, _ := r.File.Origin.(*Origin)
	return o
}

// All returns the origins of the files of s.
func All(s *rule.Set) (list []*Origin) {
	for _, f := range s.Files() {
		if o, ok := f.Origin.(*Origin); ok {
			list = append(list, o)
		}
	}
	return list
}

// NoteTimeout notes that the file names a timeout for r.
func (o *Origin) NoteTimeout(r *rule.Rule) {
	if o.timeouts == nil {
		o.timeouts = map[*rule.Rule]bool{}
	}
	o.timeouts[r] = true
}

// Timeout reports whether the file names a timeout for r.
func (o *Origin) Timeout(r *rule.Rule) bool { return o != nil && o.timeouts[r] }

// splitLines finds the lines of the file.
func (o *Origin) splitLines() {
	o.split.Do(func() {
		o.lines = []int{0}
		for i := 0; i < len(o.Text); i++ {
			if o.Text[i] == '\n' {
				o.lines = append(o.lines, i+1)
			}
		}
	})
}

// Quote returns line with a caret under column, counted in characters; "" if there is no such line.
func (o *Origin) Quote(line, column int) string {
	if o == nil || line < 1 {
		return ""
	}
	o.splitLines()
	if line > len(o.lines) {
		return ""
	}
	text, _, _ := strings.Cut(o.Text[o.lines[line-1]:], "\n")
	text = strings.TrimSuffix(text, "\r")
	if line == 1 {
		text = strings.TrimPrefix(text, "\ufeff")
	}
	start := 0
	if column > maxTextQuoting/2 {
		start = column - maxTextQuoting/2
	}
	var shown, under strings.Builder
	if start > 0 {
		shown.WriteString("…")
		under.WriteByte(' ')
	}
	n := 0
	for _, r := range text {
		if n++; n <= start {
			continue
		}
		if n > start+maxTextQuoting {
			shown.WriteString("…")
			break
		}
		if r != '\t' && (r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0) {
			r = '\ufffd' // control characters must not reach a terminal
		}
		shown.WriteRune(r)
		if n < column {
			if r == '\t' {
				under.WriteByte('\t')
			} else {
				under.WriteByte(' ')
			}
		}
	}
	if strings.TrimSpace(shown.String()) == "" {
		return ""
	}
	if column < 1 {
		return "    " + shown.String()
	}
	return "    " + shown.String() + "\n    " + under.String() + "^"
}
