package accesslog

import (
	"bytes"
	"errors"
	"fmt"
)

// maxWraps bounds the nested wrappings that are looked for.
const maxWraps = 3

// score says how well lines are read: how many parse, and how many of these have a client.
type score struct{ clients, parsed int }

func (s score) better(t score) bool {
	return s.clients > t.clients || s.clients == t.clients && s.parsed > t.parsed
}

// makePlan finds out how to read a log from its first lines: the way in which most of them have a
// client. Among equally good ways it takes the first and plainest. sure is false if no line has a
// client.
func makePlan(sample [][]byte, o *Options) (p plan, sure bool) {
	p.format = o.Format
	if len(sample) == 0 {
		if p.format == Guess { // nothing to read: any format that fits the fields will do
			if p.format = Common; len(o.Fields) > 0 {
				p.format = JSON
			}
		}
		return p, true
	}
	if o.Format != Guess {
		if found, s := search(sample, o, []Format{o.Format}, nil, false); s.parsed > 0 {
			return found, s.clients > 0
		}
		return p, false
	}
	found, s := search(sample, o, textFormats, nil, false)
	if 2*s.clients > len(sample) {
		return found, true
	}
	byContents, t := search(sample, o, []Format{columns}, nil, false)
	switch {
	case t.clients > 2*s.clients:
		return byContents, true
	case s.parsed > 0:
		return found, s.clients > 0
	case len(o.Fields) > 0:
		plain := *o
		plain.Fields = nil
		if found, s = search(sample, &plain, textFormats, nil, false); s.parsed > 0 {
			return found, false // NewReader says why fields do not fit
		}
	}
	return plan{format: looksLike(sample, o)}, false
}

// textFormats are the formats to try, in order. For lines of JSON only JSON is tried.
var textFormats = []Format{
	Vhost, Forwarded, Common, {styleTemplate, envoyTemplate}, {styleTemplate, istioTemplate},
	{styleTemplate, haproxyTemplate}, {styleTemplate, albTemplate}, {styleTemplate, elbTemplate}, W3C, TSV, CSV,
}

// search finds the best way to read the lines of a sample: one of the formats, in any further
// wrapping. dated says that the wrappings so far gave a time.
func search(sample [][]byte, o *Options, formats []Format, wraps []wrapKind, dated bool) (best plan, s score) {
	inJSON := 0
	for _, line := range sample {
		if bytes.TrimLeft(line, " \t")[0] == '{' {
			inJSON++
		}
	}
	isJSON := 2*inJSON > len(sample)
	if isJSON && o.Format == Guess && formats[0] != columns {
		formats = []Format{JSON}
	}
	for _, f := range formats {
		p := plan{wraps, f}
		if found := try(sample, o, p, dated); found.better(s) {
			if best, s = p, found; s.clients == len(sample) {
				break
			}
		}
	}
	if 10*s.clients >= 9*len(sample) || len(wraps) == maxWraps {
		return best, s
	}
	for _, w := range wrapKinds {
		if w.json != isJSON {
			continue
		}
		var inner [][]byte
		one, wrapped, times := w.make(), 0, 0
		for _, line := range sample {
			rest, when, ok := one.unwrap(line)
			if ok {
				wrapped++
			}
			if ok && when != nil {
				times++
			}
			if ok && len(bytes.TrimSpace(rest)) > 0 {
				inner = append(inner, bytes.Clone(rest))
			}
		}
		if 2*wrapped <= len(sample) || len(inner) == 0 {
			continue
		}
		more := append(wraps[:len(wraps):len(wraps)], w)
		if p, found := search(inner, o, formatsIn(o, formats), more, dated || 2*times > wrapped); found.better(s) {
			best, s = p, found
		}
	}
	return best, s
}

// formatsIn returns the formats to try within a wrapping.
func formatsIn(o *Options, formats []Format) []Format {
	if o.Format == Guess && formats[0] == JSON {
		return textFormats
	}
	return formats
}

// try reads the lines of a sample, whose wrappings were removed.
func try(sample [][]byte, o *Options, p plan, dated bool) (s score) {
	if p.format == CSV || p.format == TSV {
		comma, with := byte(','), 0
		if p.format == TSV {
			comma = '\t'
		}
		for _, line := range sample {
			if bytes.IndexByte(line, comma) >= 0 {
				with++
			}
		}
		if 2*with <= len(sample) && len(o.Fields) != 1 && o.Format == Guess {
			return s
		}
	}
	scan, _, _, err := build(p.format, o.Fields, dated, sample)
	if err != nil {
		return s
	}
	if dated {
		c := scan.clock()
		c.before, c.hasBefore = 0, true
	}
	var e Entry
	var who clients
	for _, line := range sample {
		e.Fields = e.Fields[:0]
		if w, ok := scan.(*w3cScanner); ok && line[0] == '#' {
			w.directive(line, nil)
			continue
		}
		if !scan.scan(line, &e) {
			continue
		}
		s.parsed++
		if p.format == columns && e.Get(FieldIP) == nil && e.Get(FieldPath) == nil {
			s.parsed-- // whatever that is
			continue
		}
		who.settle(&e)
		if p.format == Vhost && !likeVhost(line, e.Get(FieldIP)) {
			continue
		}
		if ip := e.Get(FieldIP); isClient(ip) || ip == nil && e.Get(FieldUser) != nil {
			s.clients++
		}
	}
	return s
}

// likeVhost reports whether a line with this client may begin with the name of the requested host:
// it has a port there, or it is no address and the client is one.
func likeVhost(line, client []byte) bool {
	first, _ := word(line)
	return len(withoutPort(first)) < len(first) ||
		!isAddr(bytes.TrimSuffix(first, []byte(","))) && isAddr(client)
}

// build makes the scanner of a format. header says that the first line names the columns.
func build(f Format, fields []string, dated bool,
	sample [][]byte) (s scanner, specs []fieldSpec, header bool, err error) {
	specs, mapped, err := parseFields(fields)
	if err != nil {
		return nil, nil, false, err
	}
	switch f.style {
	case styleCommon, styleVhost, styleForwarded:
		if len(fields) > 0 {
			return nil, nil, false, errors.New(
				"--fields names columns or JSON keys: it does not fit the common and combined formats, " +
					"whose fields are fixed (a --format in nginx's or Apache's words names its own)")
		}
		return &commonScanner{lead: f.style}, specs, false, nil
	case styleJSON:
		return newJSONScanner(specs, mapped), specs, false, nil
	case styleW3C, styleTemplate:
		if len(specs) > 0 && !mapped {
			return nil, nil, false, fmt.Errorf(
				"--fields: the format names its own values: name others as field=value, as in ip=NAME")
		}
		if f.style == styleW3C {
			return &w3cScanner{}, specs, false, nil
		}
		if !f.template.dated && !dated {
			return nil, nil, false, fmt.Errorf("--format %q has no time, such as $time_local or %%t", f.template.text)
		}
		t, err := newTemplateScanner(f.template, specs)
		return t, specs, false, err
	}
	d, header, err := newDelimited(f, specs, mapped, dated, sample)
	return d, specs, header, err
}

// looksLike names the format of lines that no scanner reads, for a message about what is missing.
func looksLike(sample [][]byte, o *Options) Format {
	json, tabs, commas := 0, 0, 0
	for _, line := range sample {
		switch {
		case bytes.TrimLeft(line, " \t")[0] == '{':
			json++
		case bytes.IndexByte(line, '\t') >= 0:
			tabs++
		case bytes.IndexByte(line, ',') >= 0:
			commas++
		}
	}
	switch {
	case json > 0 && json >= tabs && json >= commas:
		return JSON
	case tabs > 0 && tabs >= commas:
		return TSV
	case commas > 0, len(o.Fields) == 1:
		return CSV
	}
	return Guess
}
