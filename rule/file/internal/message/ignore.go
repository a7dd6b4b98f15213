package message

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/weir-rl/weir/internal/util/suggest"
	"github.com/weir-rl/weir/rule"
)

// Ignore is a comment "lint: ignore NAME, NAME: reason". It silences those warnings of the entry (a
// limit, a descriptor) in which or above which it stands, and of the whole file where it stands in
// no entry.
type Ignore struct {
	Line, Column int
	Names        []string
	Fault, Hint  string // what is wrong with the comment; "" if nothing is

	from, to int // the lines that it applies to
}

// Ignores are the comments of one file that silence warnings. Used is by comment and name.
type Ignores struct {
	List []Ignore
	Used [][]bool
}

// ParseIgnore parses a comment, without its #; ok is false for one that does not speak to lint.
func ParseIgnore(text string) (ig Ignore, ok bool) {
	rest, ok := strings.CutPrefix(text, "lint:")
	if !ok {
		return ig, false
	}
	verb, list, _ := strings.Cut(strings.TrimSpace(rest), " ")
	if verb != "ignore" {
		if suggest.Nearest(verb, []string{"ignore"}) == "" {
			return ig, false
		}
		ig.Fault, ig.Hint = fmt.Sprintf("lint: %q is no word that is known here", Clip(verb)), `did you mean "ignore"?`
		return ig, true
	}
	list, _, _ = strings.Cut(list, ":")
	for _, name := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' || r == '\t' }) {
		if !slices.Contains(ig.Names, name) {
			ig.Names = append(ig.Names, name)
		}
	}
	if len(ig.Names) == 0 {
		ig.Fault, ig.Hint = "lint: ignore names no warning",
			"as in: # lint: ignore long-wait: the client is a batch job"
	}
	return ig, true
}

// Entry is the lines of one limit or descriptor.
type Entry struct {
	Start, End int
	Next       int // the line on which something behind it begins
	Dash       int // the column of its dash; 0 if it has none
}

// AddIgnore notes a comment at that place, if it speaks to lint. entries are the limits and
// descriptors of the file, each before those inside it.
func (o *Origin) AddIgnore(line, column int, text string, entries []Entry) {
	ig, ok := ParseIgnore(text)
	if !ok {
		return
	}
	ig.Line, ig.Column = line, column
	ig.from, ig.to = o.scope(line, column, entries)
	o.Ignores.List = append(o.Ignores.List, ig)
	o.Ignores.Used = append(o.Ignores.Used, make([]bool, len(ig.Names)))
}

// scope returns the lines that a comment at that place is for.
func (o *Origin) scope(at, column int, entries []Entry) (from, to int) {
	whole := func() (int, int) { return 0, math.MaxInt }
	line := []rune(o.LineText(at))
	alone := strings.TrimSpace(string(line[:min(len(line), max(0, column-1))])) == ""
	if alone {
		// Above an entry it is for that entry.
		below := at + 1
		for ; below <= len(o.lines); below++ {
			if s := strings.TrimSpace(o.LineText(below)); s != "" && s[0] != '#' {
				break
			}
		}
		for _, e := range entries {
			if e.Start != below {
				continue
			}
			if e.Dash > 0 && column <= e.Dash || e.Dash == 0 &&
				strings.HasPrefix(strings.TrimSpace(o.LineText(below)), "{") {
				return e.Start, e.End
			}
		}
	}
	best := Entry{}
	for _, e := range entries { // the innermost is the last
		inside := e.Start <= at && at <= e.End
		if alone && !inside {
			inside = e.Start <= at && at < e.Next && e.Dash > 0 && column > e.Dash
		}
		if inside {
			best = e
		}
	}
	if best.Start == 0 {
		return whole()
	}
	return best.Start, max(best.End, at)
}

// LineText returns a line of the file, "" if there is no such line.
func (o *Origin) LineText(line int) string {
	o.splitLines()
	if line < 1 || line > len(o.lines) {
		return ""
	}
	text, _, _ := strings.Cut(o.Text[o.lines[line-1]:], "\n")
	return text
}

// Silence reports whether a warning of that name at one of these lines is silenced, and notes the
// comment as used.
func (g *Ignores) Silence(name string, lines ...int) bool {
	silenced := false
	for i := range g.List {
		ig := &g.List[i]
		k := slices.Index(ig.Names, name)
		if k >= 0 && slices.ContainsFunc(lines, func(line int) bool { return ig.from <= line && line <= ig.to }) {
			g.Used[i][k], silenced = true, true
		}
	}
	return silenced
}

// Silence returns warnings without those that a comment of their file silences.
func Silence(warnings []rule.Problem, files []*Origin) []rule.Problem {
	return slices.DeleteFunc(warnings, func(p rule.Problem) bool {
		at := slices.IndexFunc(files, func(o *Origin) bool { return o.Name == p.Pos.File })
		return at >= 0 && files[at].Ignores.Silence(p.Name, p.Pos.Line)
	})
}

// Clone returns a copy whose use is counted apart.
func (g *Ignores) Clone() *Ignores {
	out := &Ignores{List: g.List}
	for _, used := range g.Used {
		out.Used = append(out.Used, slices.Clone(used))
	}
	return out
}
