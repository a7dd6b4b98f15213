package httplimit

import "strings"

// nodeList reads those whom a request has passed through from the lines of X-Forwarded-For or
// Forwarded, beginning at the last one. What stands to the left of an element has no influence on
// it: a client can have written that.
type nodeList struct {
	lines     []string
	forwarded bool

	line string // the rest of the last of lines, if open
	open bool
}

// last returns the last node that was not returned yet, as X-Forwarded-For has it; "" if the list
// hides it. ok is false if there is none.
func (l *nodeList) last() (node string, ok bool) {
	if !l.open {
		if len(l.lines) == 0 {
			return "", false
		}
		at := len(l.lines) - 1
		l.line, l.lines = l.lines[at], l.lines[:at]
	}
	comma := -1
	if l.forwarded {
		comma = lastOutside(l.line, ',')
	} else {
		comma = strings.LastIndexByte(l.line, ',')
	}
	element := l.line[comma+1:]
	if l.open = comma >= 0; l.open {
		l.line = l.line[:comma]
	}
	element = strings.Trim(element, " \t")
	if l.forwarded {
		return forOf(element), true
	}
	return element, true
}

// lastOutside returns the index of the last c in s that stands outside of quotes, -1 if there is
// none. It reads from the right: a quote that was never closed hides the text to its left.
func lastOutside(s string, c byte) int {
	quoted := false
	for i := len(s) - 1; i >= 0; i-- {
		switch {
		case s[i] == '"' && !(quoted && escaped(s, i)):
			quoted = !quoted
		case s[i] == c && !quoted:
			return i
		}
	}
	return -1
}

// escaped reports whether an odd number of backslashes stands before s[i].
func escaped(s string, i int) bool {
	n := 0
	for i--; i >= 0 && s[i] == '\\'; i-- {
		n++
	}
	return n%2 == 1
}

// forOf returns the node of the parameter "for" of an element of Forwarded: for=192.0.2.60,
// for="[2001:db8::1]:4711". It is "" if there is none, or two.
func forOf(element string) (node string) {
	found := false
	for more := true; more; {
		pair := element
		if at := lastOutside(element, ';'); at >= 0 {
			element, pair = element[:at], element[at+1:]
		} else {
			more = false
		}
		name, value, _ := strings.Cut(pair, "=")
		if !strings.EqualFold(strings.Trim(name, " \t"), "for") {
			continue
		}
		if found {
			return ""
		}
		found = true
		value = strings.Trim(value, " \t")
		if n := len(value); n >= 2 && value[0] == '"' && value[n-1] == '"' {
			value = value[1 : n-1] // an address needs no escapes
		}
		node = value
	}
	return node
}
