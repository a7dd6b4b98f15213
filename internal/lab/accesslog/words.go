package accesslog

import (
	"fmt"
	"regexp"
	"strings"
)

// newTemplate compiles a format in the words of nginx ($remote_addr), Apache (%h), Envoy
// (%START_TIME%) or HAProxy (%ci). A directive of a configuration file is taken as it stands there:
// log_format NAME '…' '…'; and LogFormat "…" NAME.
func newTemplate(text string) (*template, error) {
	words := directive(strings.TrimSpace(text))
	m := &templateMaker{}
	var err error
	switch {
	case nginxWord.MatchString(words):
		m.nginx(words)
	case envoyWord.MatchString(words):
		err = m.envoy(words)
	case haproxyWord.MatchString(words):
		m.haproxy(words)
	default:
		err = m.apache(words)
	}
	if err != nil {
		return nil, err
	}
	return m.finish(text)
}

var (
	nginxDirective  = regexp.MustCompile(`^log_format\s+\S+\s+(?:escape=\w+\s+)?`)
	apacheDirective = regexp.MustCompile(`^(?i:LogFormat|CustomLog\s+\S+)\s+"((?:[^"\\]|\\.)*)"`)
	quotedPart      = regexp.MustCompile(`'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)"`)

	nginxWord   = regexp.MustCompile(`\$\{?[a-zA-Z]`)
	envoyWord   = regexp.MustCompile(`%[A-Z][A-Z_]{2,}(?:\(|:\d|%)`)
	haproxyWord = regexp.MustCompile(`%ci|%ST|%HM|%\[|%\{\+`)
)

// directive returns the format in a directive of a configuration file.
func directive(s string) string {
	if head := nginxDirective.FindString(s); head != "" {
		var b strings.Builder
		for _, part := range quotedPart.FindAllStringSubmatch(s[len(head):], -1) {
			b.WriteString(part[1] + part[2])
		}
		return strings.ReplaceAll(b.String(), `\'`, "'")
	}
	if m := apacheDirective.FindStringSubmatch(s); m != nil {
		return m[1]
	}
	return s
}

// unescaped resolves \" and \t of a format.
var unescaped = strings.NewReplacer(`\"`, `"`, `\t`, "\t", `\\`, `\`)

var nginxVariable = regexp.MustCompile(`\$(?:\{([a-zA-Z]\w*)\}|([a-zA-Z]\w*))`)

func (m *templateMaker) nginx(words string) {
	at := 0
	for _, v := range nginxVariable.FindAllStringSubmatchIndex(words, -1) {
		m.text(unescaped.Replace(words[at:v[0]]))
		at = v[1]
		from, to := v[2], v[3]
		if from < 0 {
			from, to = v[4], v[5]
		}
		name := words[from:to]
		m.value("$"+name, said(nginxTarget(name), name), nginxSpaces[name])
	}
	m.text(unescaped.Replace(words[at:]))
}

// nginxSpaces has the variables whose values hold spaces, with the number of these.
var nginxSpaces = map[string]int{"time_local": 1}

// nginxTarget returns the target of an nginx variable.
func nginxTarget(name string) target {
	lower := strings.ToLower(name)
	if t := lookup(lower); t.kind != kindNone {
		return t
	}
	switch {
	case strings.HasPrefix(lower, "http_"):
		return header(strings.ReplaceAll(lower[len("http_"):], "_", "-"))
	case strings.HasPrefix(lower, "arg_"):
		return target{name: "query." + name[len("arg_"):]}
	case lower == "is_args":
		return target{}
	}
	return target{name: name}
}

// header returns the target of a request header field.
func header(name string) target {
	name = strings.ToLower(name)
	if name == "host" {
		return target{name: FieldHost, kind: kindHost, rank: 1}
	}
	return lookup("header." + name)
}

func said(t target, words string) target {
	t.said = words
	return t
}

// envoyOperator is a command operator of Envoy: %NAME%, %NAME(ARGUMENT)%, %NAME(ARGUMENT):LENGTH%.
var envoyOperator = regexp.MustCompile(`%([A-Z][A-Z0-9_]*)(?:\(([^)]*)\))?(?::\d+)?%`)

var envoyKinds = map[string]kind{
	"START_TIME": kindTime, "EMIT_TIME": kindTime,
	"DOWNSTREAM_REMOTE_ADDRESS": kindIP, "DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT": kindIP,
	"DOWNSTREAM_DIRECT_REMOTE_ADDRESS": kindIP, "DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT": kindIP,
	"PROTOCOL": kindProtocol, "RESPONSE_CODE": kindStatus, "BYTES_SENT": kindBytes,
}

func (m *templateMaker) envoy(words string) error {
	at := 0
	for _, v := range envoyOperator.FindAllStringSubmatchIndex(words, -1) {
		m.text(strings.ReplaceAll(words[at:v[0]], "%%", "%"))
		at = v[1]
		whole, name, argument := words[v[0]:v[1]], words[v[2]:v[3]], ""
		if v[4] >= 0 {
			argument = words[v[4]:v[5]]
		}
		t, spaces := target{name: strings.ToLower(name)}, 0
		switch {
		case name == "REQ" || name == "REQUEST_HEADER":
			t = envoyHeader(argument)
		case name == "RESP" || name == "RESPONSE_HEADER" || name == "TRAILER":
			t = target{}
		case envoyKinds[name] != kindNone:
			k := envoyKinds[name]
			t = target{name: kindFields[k], kind: k, rank: 1}
			if strings.Contains(name, "DIRECT") || name == "EMIT_TIME" {
				t.rank = 2
			}
			if k == kindTime {
				spaces = strings.Count(argument, " ")
			}
		}
		m.value(whole, said(t, whole), spaces)
	}
	m.text(strings.ReplaceAll(words[at:], "%%", "%"))
	if strings.IndexByte(m.literal.String(), '%') >= 0 {
		return fmt.Errorf("--format: cannot read %q as words of Envoy", strings.TrimSpace(m.literal.String()))
	}
	return nil
}

// envoyHeader returns the target of %REQ(X?Y)%: X, or Y if a request lacks X.
func envoyHeader(argument string) target {
	first, second, _ := strings.Cut(argument, "?")
	name := strings.ToLower(first)
	if second != "" && name != "x-forwarded-for" {
		name = strings.ToLower(second)
	}
	switch name {
	case ":method":
		return target{name: FieldMethod, kind: kindMethod, rank: 1}
	case ":path", "x-envoy-original-path":
		return target{name: FieldPath, kind: kindPath, rank: 1}
	case ":authority":
		return target{name: FieldHost, kind: kindHost, rank: 1}
	case ":scheme":
		return target{name: "scheme"}
	}
	return header(name)
}

// haproxyVariable is a variable of HAProxy's log-format: flags, and a name or an expression.
var haproxyVariable = regexp.MustCompile(`%(?:\{([^}]*)\})?(?:([a-zA-Z]+)|\[([^\]]*)\])|%%|\\(.)`)

var haproxyKinds = map[string]kind{
	"ci": kindIP, "tr": kindTime, "t": kindTime, "T": kindTime, "Tl": kindTime, "Ts": kindTime, "trg": kindTime,
	"r": kindRequest, "ST": kindStatus, "B": kindBytes, "HM": kindMethod, "HP": kindPath, "HPO": kindPath,
	"HU": kindPath, "HQ": kindQuery, "HV": kindProtocol, "src": kindIP, "path": kindPath, "pathq": kindPath,
	"url": kindPath, "method": kindMethod, "status": kindStatus,
}

func (m *templateMaker) haproxy(words string) {
	at := 0
	for _, v := range haproxyVariable.FindAllStringSubmatchIndex(words, -1) {
		m.text(words[at:v[0]])
		at = v[1]
		whole := words[v[0]:v[1]]
		switch {
		case whole == "%%":
			m.text("%")
			continue
		case v[8] >= 0: // \" and "\ "
			m.text(words[v[8]:v[9]])
			continue
		}
		name := ""
		if v[4] >= 0 {
			name = words[v[4]:v[5]]
		} else {
			name, _, _ = strings.Cut(words[v[6]:v[7]], ",")
		}
		t := target{}
		if k := haproxyKinds[name]; k != kindNone {
			t = target{name: kindFields[k], kind: k, rank: 1}
		} else if h, ok := haproxyHeader(name); ok {
			t = header(h)
		}
		spaces := 0
		if name == "trg" || name == "T" || name == "Tl" {
			spaces = 1
		}
		quotes := v[2] >= 0 && strings.Contains(words[v[2]:v[3]], "+Q")
		if quotes {
			m.text(`"`)
		}
		m.value(whole, said(t, whole), spaces)
		if quotes {
			m.text(`"`)
		}
	}
	m.text(words[at:])
}

// haproxyHeader returns the field that an expression reads from the request's header.
func haproxyHeader(expression string) (name string, ok bool) {
	for _, head := range []string{"req.hdr(", "req.fhdr(", "hdr("} {
		if rest, found := strings.CutPrefix(expression, head); found {
			return strings.TrimSuffix(rest, ")"), true
		}
	}
	return "", false
}
