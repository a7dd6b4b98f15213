package human

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// Printable makes text from clients harmless for a terminal.
func Printable(s string) string {
	if quoted := strconv.QuoteToGraphic(s); quoted != `"`+s+`"` {
		return quoted
	}
	return s
}

// PrintableLines makes each line of a text harmless for a terminal. It escapes only where needed,
// and leaves quotes alone: the text is prose, not a name.
func PrintableLines(s string) string {
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		if !utf8.ValidString(line) || strings.ContainsFunc(line, func(r rune) bool { return !strconv.IsGraphic(r) }) {
			lines[i] = strconv.QuoteToGraphic(line)
		}
	}
	return strings.Join(lines, "\n")
}

// ShellQuote makes s one word of a POSIX shell.
func ShellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
