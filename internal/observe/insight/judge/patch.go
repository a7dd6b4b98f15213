package judge

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/weir-rl/weir/rule"
)

// A patch changes the text of a rule's file if that is simple. If it is not, as with anchors, the
// proposal is its sentence alone. Changing the text, rather than parsing and writing it, keeps
// comments and layout.

// ruleEntry is where a rule lies in the text of its file.
type ruleEntry struct {
	text   string
	start  int
	end    int
	indent int  // of its keys, in block style
	flow   bool // { … }
}

// findEntry finds the rule that begins on a line, counted from 1; ok is false if there is none.
func findEntry(text string, line int) (e ruleEntry, ok bool) {
	start := 0
	for range line - 1 {
		i := strings.IndexByte(text[start:], '\n')
		if i < 0 {
			return e, false
		}
		start += i + 1
	}
	if line < 1 {
		return e, false
	}
	end := start + lineLength(text[start:])
	dash := strings.TrimLeft(text[start:end], " ")
	indent := end - start - len(dash)
	rest, found := strings.CutPrefix(dash, "- ")
	if !found {
		return e, false
	}
	rest = strings.TrimLeft(rest, " ")
	e = ruleEntry{text: text, start: end - len(rest), indent: end - start - len(rest)}
	if strings.HasPrefix(rest, "{") {
		e.flow = true
		e.end = closingBrace(text, e.start)
		return e, e.end > 0
	}
	// The entry ends before the first line that is indented no further than its dash.
	e.end = end
	for e.end < len(text) {
		next := e.end + lineLength(text[e.end:])
		body := strings.TrimLeft(text[e.end:next], " ")
		if text := strings.TrimSpace(body); text != "" && text[0] != '#' && next-e.end-len(body) <= indent {
			break
		}
		e.end = next
	}
	// Empty lines and comments behind the entry are not part of it.
	for {
		last := strings.LastIndexByte(strings.TrimSuffix(text[e.start:e.end], "\n"), '\n')
		if last < 0 {
			break
		}
		if tail := strings.TrimSpace(text[e.start+last+1 : e.end]); tail != "" && tail[0] != '#' {
			break
		}
		e.end = e.start + last + 1
	}
	return e, true
}

// lineLength is the length of the first line with its end.
func lineLength(text string) int {
	if i := strings.IndexByte(text, '\n'); i >= 0 {
		return i + 1
	}
	return len(text)
}

// closingBrace returns the place behind the brace that closes the one at start; 0 if none does.
func closingBrace(text string, start int) int {
	depth := 0
	for i := start; i < len(text); i++ {
		switch c := text[i]; c {
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
		case '"', '\'':
			end := strings.IndexByte(text[i+1:], c)
			if end < 0 {
				return 0
			}
			i += end + 1
		case '#':
			if i > 0 && text[i-1] == ' ' {
				i += lineLength(text[i:]) - 1
			}
		}
	}
	return 0
}

// key returns where the value of a key of the entry lies; ok is false if it has none.
func (e *ruleEntry) key(name string) (start, end int, ok bool) {
	if e.flow {
		for i := e.start + 1; i < e.end-1; i++ {
			from := i
			for i < e.end-1 && e.text[i] != ',' {
				switch e.text[i] {
				case '{', '[':
					i = closingBrace(e.text, i)
				case '"', '\'':
					n := strings.IndexByte(e.text[i+1:], e.text[i])
					if n < 0 {
						return 0, 0, false
					}
					i += n + 2
				default:
					i++
				}
				if i <= from {
					return 0, 0, false
				}
			}
			item := e.text[from:i]
			if k, v, found := strings.Cut(item, ":"); found && strings.TrimSpace(k) == name {
				return from + len(item) - len(v), i, true
			}
		}
		return 0, 0, false
	}
	at := e.start
	for first := true; at < e.end; first = false {
		next := at + lineLength(e.text[at:])
		body := strings.TrimLeft(e.text[at:next], " ")
		if first || next-at-len(body) == e.indent {
			if rest, found := strings.CutPrefix(body, name+":"); found {
				start, end = next-len(rest), next
				for end < e.end {
					more := end + lineLength(e.text[end:])
					body := strings.TrimLeft(e.text[end:more], " ")
					if strings.TrimSpace(body) != "" && more-end-len(body) <= e.indent &&
						!strings.HasPrefix(body, "- ") {
						break
					}
					end = more
				}
				return start, end, true
			}
		}
		at = next
	}
	return 0, 0, false
}

var ratePattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`([0-9]+)(\s*/\s*[0-9a-z.]+)`) })

var perUnitPattern = sync.OnceValue(
	func() *regexp.Regexp { return regexp.MustCompile(`requests_per_unit:\s*([0-9]+)`) })

// withLimits returns the text of the rule's file with other limits for some of its windows: limits
// has one for each of f.Windows, 0 for no change. It returns "" if that is not simple.
func (f *Facts) withLimits(limits []int64) string {
	e, ok := findEntry(f.Text, f.Line)
	if !ok {
		return ""
	}
	type change struct {
		start, end int
		text       string
	}
	var changes []change
	for i, w := range f.Windows {
		if limits[i] == 0 || w.Bucket {
			continue
		}
		want, err := rule.ParseRate(w.Rate)
		if err != nil {
			return ""
		}
		if start, end, ok := e.key("allow"); ok {
			for _, m := range ratePattern().FindAllStringSubmatchIndex(f.Text[start:end], -1) {
				r, err := rule.ParseRate(f.Text[start+m[0] : start+m[1]])
				if err == nil && r.N == want.N && r.Window == want.Window {
					changes = append(changes, change{start + m[2], start + m[3], strconv.FormatInt(limits[i], 10)})
					break
				}
			}
		} else if start, end, ok := e.key("rate_limit"); ok {
			if m := perUnitPattern().FindStringSubmatchIndex(f.Text[start:end]); m != nil &&
				f.Text[start+m[2]:start+m[3]] == strconv.FormatInt(want.N, 10) {
				changes = append(changes, change{start + m[2], start + m[3], strconv.FormatInt(limits[i], 10)})
			}
		}
	}
	if len(changes) == 0 {
		return ""
	}
	// From the last to the first, so that places stay.
	slices.SortFunc(changes, func(a, b change) int { return b.start - a.start })
	text := f.Text
	for _, c := range changes {
		text = text[:c.start] + c.text + text[c.end:]
	}
	return text
}

// withRule returns the text of the rule's file with a second rule behind it, which has another name
// and the same conditions; body is the rest of it, one line each. It returns "" if that is not
// simple.
func (f *Facts) withRule(name string, body ...string) string {
	e, ok := findEntry(f.Text, f.Line)
	if !ok || e.flow {
		return ""
	}
	if _, _, lyft := e.key("rate_limit"); lyft {
		return ""
	}
	pad := strings.Repeat(" ", e.indent)
	var b strings.Builder
	dash := strings.LastIndexByte(f.Text[:e.start], '\n') + 1
	fmt.Fprintf(&b, "%sname: %s\n", f.Text[dash:e.start], name)
	for _, key := range []string{"when", "if"} {
		if start, end, ok := e.key(key); ok {
			fmt.Fprintf(&b, "%s%s:%s", pad, key, strings.TrimRight(f.Text[start:end], "\n ")+"\n")
		}
	}
	for _, line := range body {
		fmt.Fprintf(&b, "%s%s\n", pad, line)
	}
	before := f.Text[:e.end]
	if !strings.HasSuffix(before, "\n") {
		before += "\n"
	}
	return before + b.String() + f.Text[e.end:]
}

// unifiedDiff writes the difference of two texts as a unified diff with one hunk; "" if they are
// equal.
func unifiedDiff(name, before, after string) string {
	if before == after {
		return ""
	}
	a, b := strings.SplitAfter(before, "\n"), strings.SplitAfter(after, "\n")
	if a[len(a)-1] == "" {
		a = a[:len(a)-1]
	}
	if b[len(b)-1] == "" {
		b = b[:len(b)-1]
	}
	same := 0
	for same < len(a) && same < len(b) && a[same] == b[same] {
		same++
	}
	tail := 0
	for tail < len(a)-same && tail < len(b)-same && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	const context = 3
	from, behind := max(same-context, 0), min(tail, context)
	oldEnd, newEnd := len(a)-tail, len(b)-tail
	var out strings.Builder
	fmt.Fprintf(&out, "--- %s\n+++ %s\n@@ -%s +%s @@\n", name, name, hunkRange(from, oldEnd+behind-from),
		hunkRange(from, newEnd+behind-from))
	write := func(sign string, lines []string) {
		for _, l := range lines {
			out.WriteString(sign)
			out.WriteString(l)
			if !strings.HasSuffix(l, "\n") {
				out.WriteString("\n\\ No newline at end of file\n")
			}
		}
	}
	write(" ", a[from:same])
	write("-", a[same:oldEnd])
	write("+", b[same:newEnd])
	write(" ", a[oldEnd:oldEnd+behind])
	return out.String()
}

// hunkRange writes the range of a hunk: lines count from 1.
func hunkRange(from, n int) string {
	if n == 0 {
		return fmt.Sprintf("%d,0", from)
	}
	return fmt.Sprintf("%d,%d", from+1, n)
}
