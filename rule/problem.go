package rule

import (
	"fmt"
	"strings"
)

// DefaultDomain is the domain of a native rule file that names none.
const DefaultDomain = "default"

// CommandDomain stands where a domain does for commands that bring their limit along, and so meet
// no rule (CL.THROTTLE of the Redis protocol). No rule file can have it.
const CommandDomain = "_command"

// Problem is an error or a warning at a place in a file.
type Problem struct {
	Pos     Position
	Rule    string // the rule's name, if known; of a warning about several rules the first one's
	Name    string // the short name of the warning, one of file.Warnings; "" of an error
	Message string // the fault, and the expectation
	Hint    string // how to mend it, such as `did you mean "algorithm"?`; may be empty
	Quote   string // the quoted line with a caret under the column; may be empty
}

// Error formats p as "file:line:column: message (hint) [name]" followed by the quote.
func (p Problem) Error() string {
	var b strings.Builder
	if p.Pos.File != "" {
		b.WriteString(p.Pos.File)
		b.WriteByte(':')
	}
	if p.Pos.Line > 0 {
		fmt.Fprintf(&b, "%d:", p.Pos.Line)
		if p.Pos.Column > 0 {
			fmt.Fprintf(&b, "%d:", p.Pos.Column)
		}
	}
	if b.Len() > 0 {
		b.WriteByte(' ')
	}
	b.WriteString(p.Message)
	if p.Hint != "" {
		fmt.Fprintf(&b, " (%s)", p.Hint)
	}
	if p.Name != "" {
		fmt.Fprintf(&b, " [%s]", p.Name)
	}
	if p.Quote != "" {
		b.WriteByte('\n')
		b.WriteString(p.Quote)
	}
	return b.String()
}

// Problems is an error that holds all that is wrong with a set of files, in order.
type Problems []Problem

// Error implements error: one problem after the other.
func (p Problems) Error() string {
	var b strings.Builder
	for i := range p {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(p[i].Error())
	}
	return b.String()
}

// Unwrap gives the single problems to errors.As.
func (p Problems) Unwrap() []error {
	errs := make([]error, len(p))
	for i := range p {
		errs[i] = p[i]
	}
	return errs
}
