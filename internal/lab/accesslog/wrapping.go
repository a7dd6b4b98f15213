package accesslog

import (
	"bytes"
	"strings"
)

// wrapping removes what a logger has put around the line of a server: a prefix, or a JSON object
// that holds the line as a text.
type wrapping interface {
	// unwrap returns the line of the server, and the logger's time, nil if there is none. ok is
	// false if the line has no such wrapping. The values are valid until the next call.
	unwrap(line []byte) (rest, when []byte, ok bool)
}

// wrapKind is a kind of wrapping.
type wrapKind struct {
	name string
	json bool
	make func() wrapping
}

// wrapKinds are in the order in which they are tried.
var wrapKinds = func() []wrapKind {
	var list []wrapKind
	for _, p := range []struct {
		name string
		cut  prefix
	}{
		{"the prefix of a container's log (CRI)", cutCRI},
		{"the prefix of syslog", cutSyslog},
		{"a time of the logger", cutTime},
		{"a time and a name of the logger", cutStream},
		{"the prefix of docker compose or kubectl", cutName},
	} {
		list = append(list, wrapKind{p.name, false, func() wrapping { return p.cut }})
	}
	for _, key := range []string{"log", "message", "msg", "textPayload", "MESSAGE", "line", "@message", "_raw", "event",
		"body", "text", "short_message", "event.original", "jsonPayload.message", "jsonPayload.log"} {
		list = append(list, wrapKind{"a logger's JSON, which holds the line as " + key, true, func() wrapping {
			return newJSONWrapping(key)
		}})
	}
	return list
}()

// prefix removes a logger's prefix from a line.
type prefix func(line []byte) (rest, when []byte, ok bool)

func (p prefix) unwrap(line []byte) (rest, when []byte, ok bool) { return p(line) }

// cutStamp cuts off a time as in RFC 3339, and the spaces after it.
func cutStamp(b []byte) (rest, when []byte, ok bool) {
	if len(b) < 21 || b[4] != '-' || b[7] != '-' || b[10] != 'T' || b[13] != ':' {
		return nil, nil, false
	}
	when, rest = word(b)
	if len(rest) == 0 || len(when) > 40 {
		return nil, nil, false
	}
	return bytes.TrimLeft(rest, " \t"), when, true
}

// cutCRI removes the prefix of Kubernetes from a container's line: 2016-10-06T00:17:09.669794202Z
// stdout F
func cutCRI(line []byte) (rest, when []byte, ok bool) {
	rest, when, ok = cutStamp(line)
	if !ok || !bytes.HasPrefix(rest, []byte("stdout ")) && !bytes.HasPrefix(rest, []byte("stderr ")) {
		return nil, nil, false
	}
	_, rest = word(rest)
	tag, rest := word(rest)
	if len(tag) == 0 || tag[0] != 'F' && tag[0] != 'P' {
		return nil, nil, false
	}
	return rest, when, true
}

// cutTime cuts off a time, as kubectl logs --timestamps and docker logs -t write it.
func cutTime(line []byte) (rest, when []byte, ok bool) { return cutStamp(line) }

// cutStream cuts off a time and the name of a stream, as aws logs tail writes them.
func cutStream(line []byte) (rest, when []byte, ok bool) {
	if rest, when, ok = cutStamp(line); ok {
		_, rest = word(rest)
	}
	return rest, when, len(rest) > 0
}

// cutName cuts off the name that docker compose logs ("web-1  | ") or kubectl logs --prefix
// ("[pod/web/nginx] ") writes.
func cutName(line []byte) (rest, when []byte, ok bool) {
	if bytes.HasPrefix(line, []byte("[pod/")) {
		name, rest := word(line)
		return rest, nil, len(rest) > 0 && name[len(name)-1] == ']'
	}
	name, rest, found := bytes.Cut(line, []byte(" | "))
	name = bytes.TrimRight(name, " ")
	if !found || len(name) == 0 || !isToken(name) {
		return nil, nil, false
	}
	return rest, nil, true
}

// cutSyslog removes the header of syslog: a priority, a time, the names of the machine and the
// program, and a colon (RFC 3164, also with a time as in RFC 3339), or a header as in RFC 5424.
func cutSyslog(line []byte) (rest, when []byte, ok bool) {
	b := line
	if b[0] == '<' {
		end := bytes.IndexByte(b, '>')
		if end < 2 || end > 4 {
			return nil, nil, false
		}
		if b = b[end+1:]; bytes.HasPrefix(b, []byte("1 ")) {
			return cutSyslog5424(b[2:])
		}
	}
	if len(b) > 16 && b[3] == ' ' && b[6] == ' ' && b[9] == ':' && b[12] == ':' && b[15] == ' ' && monthOf(b[:3]) > 0 {
		b = b[16:] // this time has no year
	} else if b, when, ok = cutStamp(b); !ok {
		return nil, nil, false
	}
	for range 4 {
		var tag []byte
		if tag, b = word(b); len(tag) == 0 || len(b) == 0 {
			break
		}
		if tag[len(tag)-1] == ':' {
			return bytes.TrimLeft(b, " "), when, true
		}
	}
	return nil, nil, false
}

// cutSyslog5424 removes the rest of a header as in RFC 5424: time, machine, program, process,
// message, and structured data.
func cutSyslog5424(b []byte) (rest, when []byte, ok bool) {
	when, b = word(b)
	for range 4 {
		_, b = word(b)
	}
	for len(b) > 0 && b[0] == '[' {
		end := 1
		for quoted := false; end < len(b) && (quoted || b[end] != ']'); end++ {
			switch b[end] {
			case '\\':
				end++
			case '"':
				quoted = !quoted
			}
		}
		if end >= len(b) {
			return nil, nil, false
		}
		b = b[end+1:]
	}
	b = bytes.TrimPrefix(b, []byte("-"))
	if len(b) < 2 || b[0] != ' ' {
		return nil, nil, false
	}
	return bytes.TrimPrefix(b[1:], []byte("\xef\xbb\xbf")), when, true
}

// jsonWrapping extracts the line of the server from an object, as docker's json-file driver and
// many collectors write it.
type jsonWrapping struct {
	json  *jsonScanner
	key   string
	entry Entry
}

func newJSONWrapping(key string) *jsonWrapping {
	w := &jsonWrapping{json: newJSONScanner(nil, false), key: key}
	w.json.asked[key] = &target{name: key}
	return w
}

func (w *jsonWrapping) unwrap(line []byte) (rest, when []byte, ok bool) {
	w.entry.Fields = w.entry.Fields[:0]
	if !w.json.parse(line, &w.entry) {
		return nil, nil, false
	}
	if i := w.json.gather.at[kindTime]; i > 0 {
		when = w.entry.Fields[i-1].Value
	}
	rest = bytes.TrimRight(w.entry.Get(w.key), "\r\n")
	if rest = bytes.TrimLeft(rest, " \t"); len(rest) < 2 {
		return nil, nil, false
	}
	return rest, when, true
}

// wrappings are the wrappings of the lines of a log, the outermost first.
type wrappings []wrapping

// unwrap returns the line of the server, and the time of the innermost logger, nil if there is
// none. A line without a wrapping is returned unchanged.
func (w wrappings) unwrap(line []byte) (rest, when []byte) {
	for _, one := range w {
		inner, t, ok := one.unwrap(line)
		if !ok || len(inner) == 0 {
			break
		}
		if line = inner; t != nil {
			when = t
		}
	}
	return line, when
}

// plan says how to read the lines of a log.
type plan struct {
	wraps  []wrapKind // from the outermost on
	format Format
}

// String describes the plan in words.
func (p plan) String() string {
	var b strings.Builder
	b.WriteString(p.format.String())
	for i := len(p.wraps) - 1; i >= 0; i-- {
		b.WriteString(", after " + p.wraps[i].name)
	}
	return b.String()
}

func (p plan) wrappings() wrappings {
	var list wrappings
	for _, w := range p.wraps {
		list = append(list, w.make())
	}
	return list
}
