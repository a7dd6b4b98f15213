package accesslog

import (
	"fmt"
	"regexp"
	"strings"
)

// apacheWord is a word of mod_log_config: a status condition, < or >, an argument, and the
// letters; or %%.
var apacheWord = regexp.MustCompile(`%(?:%|!?[\d,]*[<>]?(?:\{([^}]*)\})?(\^t[io]|[a-zA-Z]))`)

// apacheKinds are the words whose meaning is known without an argument.
var apacheKinds = map[string]target{
	"h": {name: FieldIP, kind: kindIP, rank: 2},
	"a": {name: FieldIP, kind: kindIP, rank: 1},
	"l": {name: FieldIdent},
	"u": {name: FieldUser, kind: kindUser, rank: 1},
	"t": {name: "time", kind: kindTime, rank: 1},
	"r": {name: "request", kind: kindRequest, rank: 1},
	"s": {name: FieldStatus, kind: kindStatus, rank: 1},
	"b": {name: FieldBytes, kind: kindBytes, rank: 1},
	"B": {name: FieldBytes, kind: kindBytes, rank: 1},
	"O": {name: FieldBytes, kind: kindBytes, rank: 2},
	"v": {name: FieldHost, kind: kindHost, rank: 2},
	"V": {name: FieldHost, kind: kindHost, rank: 3},
	"m": {name: FieldMethod, kind: kindMethod, rank: 1},
	"U": {name: FieldPath, kind: kindPath, rank: 1},
	"q": {name: "query", kind: kindQuery, rank: 1},
	"H": {name: FieldProtocol, kind: kindProtocol, rank: 1},
}

// apacheOthers are the other words; their values are passed over.
const apacheOthers = "ACDefIkLnopPRSTxX"

func (m *templateMaker) apache(words string) error {
	at := 0
	for _, v := range apacheWord.FindAllStringSubmatchIndex(words, -1) {
		m.text(unescaped.Replace(words[at:v[0]]))
		at = v[1]
		whole := words[v[0]:v[1]]
		if whole == "%%" {
			m.text("%")
			continue
		}
		argument, word := "", words[v[4]:v[5]]
		if v[2] >= 0 {
			argument = words[v[2]:v[3]]
		}
		t, spaces, err := apacheTarget(word, argument)
		if err != nil {
			return err
		}
		switch {
		case word == "t" && argument == "":
			m.text("[") // written with its brackets
			m.value(whole, said(t, whole), 1)
			m.text("]")
			continue
		case word == "s" && strings.Contains(whole, "<"):
			t.rank = 2
		}
		m.value(whole, said(t, whole), spaces)
	}
	rest := unescaped.Replace(words[at:])
	m.text(rest)
	if strings.Contains(rest, "%") {
		return fmt.Errorf("--format: cannot read %q as words of Apache", rest)
	}
	return nil
}

// apacheTarget returns the target of a word, and how many spaces its value holds.
func apacheTarget(word, argument string) (t target, spaces int, err error) {
	known, ok := apacheKinds[word]
	switch {
	case word == "i":
		return header(argument), 0, nil
	case word == "t" && argument != "":
		return apacheTime(argument)
	case word == "a" && argument == "c":
		known.rank = 3 // the peer of the connection; %a and %h may be a client that it names
	case !ok && (strings.Contains(apacheOthers, word) || word[0] == '^'):
		return target{}, 0, nil
	case !ok:
		return target{}, 0, fmt.Errorf("--format: %%%s is no word of Apache that is known", word)
	}
	return known, 0, nil
}

// apacheTime reads the argument of %{…}t: a format of strftime, or sec, msec or usec since the
// epoch, or the fraction of a second.
func apacheTime(argument string) (target, int, error) {
	argument = strings.TrimPrefix(strings.TrimPrefix(argument, "begin:"), "end:")
	t := target{name: "time", kind: kindTime, rank: 1}
	switch argument {
	case "sec", "msec", "usec", "msec_frac", "usec_frac", "begin", "end":
		return t, 0, nil
	}
	// The words that take a space of their own: %c, and %r with its AM.
	if strings.Contains(argument, "%c") || strings.Contains(argument, "%r") {
		return t, 0, fmt.Errorf("--format: times such as %%{%s}t are not read: "+
			"the log must have %%t, %%{%%Y-%%m-%%dT%%H:%%M:%%S}t or seconds", argument)
	}
	return t, strings.Count(argument, " "), nil
}
