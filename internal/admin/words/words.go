// Package words says what the admin API answers in words and tables, for a terminal. What clients,
// rule files and other nodes wrote never steers that terminal.
package words

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/weir-rl/weir/internal/observe/recent"
	"github.com/weir-rl/weir/internal/util/human"
)

// Instant writes a time to the second, in UTC.
func Instant(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// LimitName names a limit. The rules of the Lyft form let its name hold anything.
func LimitName(domain, limit string) string {
	return human.Printable(domain) + "/" + human.Printable(limit)
}

// Key is a key as a shell takes it: parts that can be pasted behind the name of a limit.
func Key(parts []string) string {
	words := make([]string, len(parts))
	for i, part := range parts {
		words[i] = shellWord(part)
	}
	return strings.Join(words, " ")
}

// shellWord quotes a text for a shell if needed, and escapes characters that are harmful to a
// terminal.
func shellWord(s string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=.,:/@%"
	switch quoted := strconv.QuoteToGraphic(s); {
	case s != "" && strings.Trim(s, plain) == "":
		return s
	case quoted == `"`+strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s)+`"`:
		return human.ShellQuote(s)
	}
	var b strings.Builder
	b.WriteString("$'")
	for i := range len(s) {
		switch c := s[i]; {
		case c == '\'' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c >= ' ' && c < 0x7f:
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, `\x%02x`, c)
		}
	}
	b.WriteByte('\'')
	return b.String()
}

// Align pads the text before the tab of each line.
func Align(text string) string {
	width := 0
	lines := strings.SplitAfter(text, "\n")
	for _, line := range lines {
		if name, _, ok := strings.Cut(line, "\t"); ok {
			width = max(width, len([]rune(name)))
		}
	}
	var b strings.Builder
	for _, line := range lines {
		name, rest, ok := strings.Cut(line, "\t")
		if !ok {
			b.WriteString(line)
			continue
		}
		fmt.Fprintf(&b, "%s%s  %s", name, strings.Repeat(" ", width-len([]rune(name))), rest)
	}
	return b.String()
}

func span(s recent.Seconds) string { return human.Span(time.Duration(s) * time.Microsecond) }
