package accesslog

import (
	"bytes"
	"fmt"
	"strings"
)

// delimited scans CSV (RFC 4180, but a value cannot hold a line break), TSV (no quoting), and
// columns parted by spaces (spaced.go).
type delimited struct {
	clocked
	comma   byte
	quotes  bool
	spaced  bool
	columns []target // a column beyond them, or with an empty name, is dropped
	last    int      // index of the time's column: a line with fewer columns does not parse
	unescaper
}

// newDelimited finds the meaning of the columns. header reports that the first line names them.
// dated says that each line has a time before it.
func newDelimited(f Format, specs []fieldSpec, mapped, dated bool,
	sample [][]byte) (d *delimited, header bool, err error) {
	d = &delimited{comma: ','}
	switch f {
	case TSV:
		d.comma = '\t'
	case CSV:
		d.quotes = true
	default:
		d.spaced = true
	}
	var rows [][]string
	for _, line := range sample {
		if row, ok := d.split(line); ok {
			rows = append(rows, row)
		}
	}
	if len(specs) > 0 && !mapped {
		for _, s := range specs {
			d.columns = append(d.columns, s.to)
		}
		if d.last = d.find(kindTime); d.last < 0 && !dated {
			var names []string
			for _, s := range specs {
				names = append(names, s.text)
			}
			return nil, false, fmt.Errorf("--fields %s has no time: one of the names must be \"time\"",
				strings.Join(names, ","))
		}
		// A first line is a header if its time column is not a time and begins with no digit.
		header = len(rows) > 0 && d.last >= 0 && d.last < len(rows[0]) && !startsWithDigit(rows[0][d.last]) &&
			!d.isTime(rows[0][d.last])
		return d, header, nil
	}
	if len(rows) == 0 {
		return d, false, nil
	}
	header = !d.spaced
	for _, cell := range rows[0] {
		if d.isTime(cell) {
			header = false
		}
	}
	if header {
		for _, cell := range rows[0] {
			d.columns = append(d.columns, lookup(strings.TrimSpace(cell)))
		}
		// The common log format calls the client "host".
		if i := d.find(kindHost); i >= 0 && d.find(kindIP) < 0 && strings.EqualFold(d.columns[i].name, "host") {
			d.columns[i].kind = kindIP
		}
		rows = rows[1:]
	} else {
		d.columns = make([]target, len(rows[0]))
	}
	for _, s := range specs {
		i := s.column
		if i < 0 {
			if i = columnNamed(d.columns, s.key, header); i < 0 {
				return nil, false, fmt.Errorf("--fields %s=%s: the log has no column of that name", s.to.name, s.key)
			}
		}
		for len(d.columns) <= i {
			d.columns = append(d.columns, target{})
		}
		d.columns[i] = s.to
	}
	d.guessColumns(rows, header)
	if d.last = d.find(kindTime); d.last < 0 && !dated {
		return nil, false, fmt.Errorf(
			"cannot tell which column of %q is the time: name the columns with --fields time,ip,method,path", clip(
				sample))
	}
	return d, header, nil
}

func columnNamed(columns []target, name string, header bool) int {
	for i := range columns {
		if header && strings.EqualFold(columns[i].name, name) {
			return i
		}
	}
	return -1
}

func startsWithDigit(s string) bool { return s != "" && s[0]-'0' <= 9 }

func (d *delimited) isTime(cell string) bool {
	t, ok := d.time.parse([]byte(cell))
	return ok && t >= 1e8*second // a smaller number is more likely a size than the early seventies
}

// find returns the column for a kind; -1 if there is none.
func (d *delimited) find(k kind) int {
	best := -1
	for i, c := range d.columns {
		if c.kind == k && (best < 0 || c.rank < d.columns[best].rank) {
			best = i
		}
	}
	return best
}

// guessColumns finds columns by their contents if no name identifies them: the time always, others
// only in a log without a header.
func (d *delimited) guessColumns(rows [][]string, header bool) {
	claim := func(k kind, fits func(string) bool) {
		if d.find(k) >= 0 {
			return
		}
		for i := range d.columns {
			if d.columns[i].kind != kindNone || !header && d.columns[i].name != "" {
				continue
			}
			n, bad := 0, 0
			for _, row := range rows {
				switch {
				case i >= len(row) || row[i] == "" || row[i] == "-":
				case fits(row[i]):
					n++
				default:
					bad++
				}
			}
			if n > 9*bad { // a few damaged lines do no harm
				name := d.columns[i].name
				if name == "" {
					name = kindFields[k]
				}
				d.columns[i] = target{name: name, kind: k}
				return
			}
		}
	}
	claim(kindTime, d.isTime)
	if header {
		return
	}
	claim(kindMethod, isMethod)
	claim(kindPath, func(s string) bool { return s[0] == '/' || strings.Contains(s, "://") })
	claim(kindRequest, func(s string) bool { m, _, ok := strings.Cut(s, " "); return ok && isMethod(m) })
	d.claimClient(rows)
	claim(kindStatus, func(s string) bool { return len(s) == 3 && isStatus([]byte(" "+s)) && s < "600" })
	claim(kindBytes, func(s string) bool { return strings.Trim(s, "0123456789") == "" })
	if !d.spaced {
		claim(kindIP, func(s string) bool { return !strings.ContainsAny(s, " \"") })
	}
	for i := range d.columns {
		if d.columns[i].name == "" {
			d.columns[i].name = fmt.Sprintf("column%d", i+1)
		}
	}
}

// claimClient finds the column of the clients. Among the columns of addresses it has the most
// different ones: the address of the server is the same in each line.
func (d *delimited) claimClient(rows [][]string) {
	if d.find(kindIP) >= 0 {
		return
	}
	best, most := -1, 0
	for i := range d.columns {
		if d.columns[i].kind != kindNone || d.columns[i].name != "" {
			continue
		}
		bad, seen := 0, map[string]bool{}
		n := 0
		for _, row := range rows {
			switch {
			case i >= len(row) || row[i] == "" || row[i] == "-":
			case isAddressOrList(row[i]):
				n++
				seen[string(client([]byte(row[i])))] = true
			default:
				bad++
			}
		}
		if n > 9*bad && len(seen) > most { // a few damaged lines do no harm
			best, most = i, len(seen)
		}
	}
	if best >= 0 {
		d.columns[best] = target{name: kindFields[kindIP], kind: kindIP}
	}
}

func isMethod(s string) bool {
	switch strings.ToUpper(s) {
	case "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE", "PROPFIND":
		return true
	}
	return false
}

// isAddressOrList reports whether s is an address, with or without a port, or a list of some.
func isAddressOrList(s string) bool {
	for one := range strings.SplitSeq(s, ",") {
		if !isAddr(client([]byte(strings.TrimSpace(one)))) {
			return false
		}
	}
	return true
}

// split cuts a line of the sample into cells.
func (d *delimited) split(line []byte) ([]string, bool) {
	var row []string
	d.scratch = d.scratch[:0]
	for rest, more := line, true; more; {
		var cell []byte
		var ok bool
		if cell, rest, more, ok = d.cell(rest); !ok || len(row) == maxFields {
			return row, ok
		}
		row = append(row, string(cell))
	}
	return row, true
}

// cell cuts the first cell off a line; more says that another follows, ok that its quotes are
// right.
func (d *delimited) cell(b []byte) (cell, rest []byte, more, ok bool) {
	if d.spaced {
		cell, rest, ok = d.word(b)
		return cell, rest, len(rest) > 0, ok
	}
	if !d.quotes || len(b) == 0 || b[0] != '"' {
		i := bytes.IndexByte(b, d.comma)
		if i < 0 {
			return b, nil, false, true
		}
		return b[:i], b[i+1:], true, true
	}
	b = b[1:]
	i := bytes.IndexByte(b, '"')
	if i < 0 {
		return nil, nil, false, false
	}
	cell = b[:i]
	if i+1 < len(b) && b[i+1] == '"' {
		from := len(d.scratch)
		for i+1 < len(b) && b[i+1] == '"' {
			d.scratch = append(d.scratch, b[:i+1]...)
			b = b[i+2:]
			if i = bytes.IndexByte(b, '"'); i < 0 {
				return nil, nil, false, false
			}
		}
		d.scratch = append(d.scratch, b[:i]...)
		cell = d.scratch[from:len(d.scratch):len(d.scratch)]
	}
	b = b[i+1:]
	if len(b) == 0 {
		return cell, nil, false, true
	}
	if b[0] != d.comma {
		return nil, nil, false, false
	}
	return cell, b[1:], true, true
}

func (d *delimited) scan(line []byte, e *Entry) bool {
	d.scratch = d.scratch[:0]
	g := gather{scratch: &d.scratch}
	n := 0
	for rest, more := line, true; more; n++ {
		var cell []byte
		var ok bool
		if cell, rest, more, ok = d.cell(rest); !ok {
			return false
		}
		if n < len(d.columns) && d.columns[n].name != "" {
			g.add(e, &d.columns[n], cell)
		}
	}
	return n > d.last && g.finish(e, &d.time)
}
