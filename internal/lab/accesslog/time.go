package accesslog

import "bytes"

// timeParser parses instants into µs since the Unix epoch. It remembers the last minute, because
// neighbours in a log mostly share it.
type timeParser struct {
	clfMinute [17]byte // "02/Jan/2006:15:04"
	clfZone   [5]byte  // "-0700"; zero is UTC
	// µs at the start of that minute, zone applied; valid if clfMinute is not zero
	clfBase   int64
	rfcMinute [16]byte // "2006-01-02T15:04"
	rfcBase   int64    // µs at the start of that minute, in UTC
	// before is the time before a line that has none of its own.
	before    int64
	hasBefore bool
}

// clocked is a part of every scanner: it reads the times of lines.
type clocked struct{ time timeParser }

func (c *clocked) clock() *timeParser { return &c.time }

const (
	second = 1_000_000
	minute = 60 * second
	// maxTime is the last plausible instant: the year 2200. A time beyond it means a damaged line.
	maxTime = 7_258_118_400 * second
)

// parse parses epoch seconds (with or without a fraction), milliseconds, microseconds or
// nanoseconds; RFC 3339 (also with a space for the T, and without a zone, which means UTC); and the
// log's own 02/Jan/2006:15:04:05 -0700, also with a fraction, with a space for the first colon, and
// without a zone.
func (p *timeParser) parse(b []byte) (int64, bool) {
	if n := len(b); n > 1 && b[0] == '[' && b[n-1] == ']' {
		b = b[1 : n-1]
	}
	var t int64
	var ok bool
	switch {
	case len(b) >= 20 && b[2] == '/':
		t, ok = p.clf(b)
	case len(b) >= 19 && (b[4] == '-' || b[4] == '/'):
		t, ok = p.rfc3339(b)
	default:
		t, ok = epoch(b)
	}
	if !ok || t < 0 || t >= maxTime {
		return 0, false
	}
	return t, true
}

func (p *timeParser) clf(b []byte) (int64, bool) {
	rest, us := b[20:], int64(0)
	if len(rest) > 0 && (rest[0] == '.' || rest[0] == ',') {
		n := 0
		if us, n = fraction(rest[1:]); n == 0 {
			return 0, false
		}
		rest = rest[1+n:]
	}
	if len(rest) == 6 && rest[0] == ' ' {
		rest = rest[1:]
	}
	var digits [5]byte // of the zone; zero is UTC
	if len(rest) == 5 {
		digits = [5]byte(rest)
	} else if len(rest) > 1 || len(rest) == 1 && rest[0] != 'Z' {
		return 0, false
	}
	if [17]byte(b) != p.clfMinute || digits != p.clfZone {
		day, ok1 := two(b[0:])
		month := monthOf(b[3:6])
		year, ok2 := four(b[7:])
		hour, ok3 := two(b[12:])
		min, ok4 := two(b[15:])
		if !ok1 || !ok2 || !ok3 || !ok4 || month == 0 || b[6] != '/' || b[11] != ':' && b[11] != ' ' || b[14] != ':' ||
			!validDate(year, month, day) || hour > 23 || min > 59 {
			return 0, false
		}
		offset, ok := int64(0), true
		if len(rest) == 5 {
			if offset, ok = zone(rest); !ok {
				return 0, false
			}
		}
		p.clfBase = (days(year, month, day)*1440+int64(hour)*60+int64(min))*minute - offset
		copy(p.clfMinute[:], b)
		p.clfZone = digits
	}
	sec, ok := two(b[18:])
	if !ok || sec > 60 || b[17] != ':' {
		return 0, false
	}
	return p.clfBase + int64(sec)*second + us, true
}

func (p *timeParser) rfc3339(b []byte) (int64, bool) {
	if [16]byte(b) != p.rfcMinute {
		year, ok1 := four(b[0:])
		month, ok2 := two(b[5:])
		day, ok3 := two(b[8:])
		hour, ok4 := two(b[11:])
		min, ok5 := two(b[14:])
		if !ok1 || !ok2 || !ok3 || !ok4 || !ok5 || b[7] != b[4] || b[13] != ':' ||
			b[10] != 'T' && b[10] != 't' && b[10] != ' ' ||
			!validDate(year, month, day) || hour > 23 || min > 59 {
			return 0, false
		}
		p.rfcBase = (days(year, month, day)*1440 + int64(hour)*60 + int64(min)) * minute
		copy(p.rfcMinute[:], b)
	}
	sec, ok := two(b[17:])
	if !ok || sec > 60 || b[16] != ':' {
		return 0, false
	}
	t := p.rfcBase + int64(sec)*second
	b = b[19:]
	if len(b) > 0 && (b[0] == '.' || b[0] == ',') {
		us, n := fraction(b[1:])
		if n == 0 {
			return 0, false
		}
		t += us
		b = b[1+n:]
	}
	switch {
	case len(b) == 0 || len(b) == 1 && (b[0] == 'Z' || b[0] == 'z'):
		return t, true
	case string(b) == " UTC" || string(b) == " +0000 UTC":
		return t, true
	}
	if b[0] == ' ' {
		b = b[1:]
	}
	offset, ok := zone(b)
	return t - offset, ok
}

// epoch parses seconds, milliseconds, microseconds or nanoseconds, told apart by their size.
func epoch(b []byte) (int64, bool) {
	var n int64
	i := 0
	for ; i < len(b) && i < 19 && b[i]-'0' <= 9; i++ {
		n = n*10 + int64(b[i]-'0')
	}
	if i == 0 || n < 0 {
		return 0, false
	}
	var us int64
	if i < len(b) {
		if b[i] != '.' {
			return 0, false
		}
		frac, k := fraction(b[i+1:])
		if k == 0 || i+1+k != len(b) {
			return 0, false
		}
		us = frac
	}
	switch {
	case n < 1e11:
		return n*second + us, true
	case n < 1e14:
		return n*1000 + us/1000, true
	case n < 1e17:
		return n, true
	}
	return n / 1000, true
}

// fraction reads the digits after a decimal point as µs, truncated. It returns how many digits
// there were.
func fraction(b []byte) (us int64, n int) {
	for n < len(b) && b[n]-'0' <= 9 {
		if n < 6 {
			us = us*10 + int64(b[n]-'0')
		}
		n++
	}
	for k := n; k < 6; k++ {
		us *= 10
	}
	return us, n
}

// zone parses -0700 and -07:00 into µs east of UTC.
func zone(b []byte) (int64, bool) {
	if len(b) == 6 && b[3] == ':' {
		b = []byte{b[0], b[1], b[2], b[4], b[5]}
	}
	if len(b) != 5 || b[0] != '+' && b[0] != '-' {
		return 0, false
	}
	h, ok1 := two(b[1:])
	m, ok2 := two(b[3:])
	if !ok1 || !ok2 || h > 23 || m > 59 {
		return 0, false
	}
	offset := (int64(h)*60 + int64(m)) * minute
	if b[0] == '-' {
		offset = -offset
	}
	return offset, true
}

func two(b []byte) (int, bool) {
	x, y := b[0]-'0', b[1]-'0'
	return int(x)*10 + int(y), x <= 9 && y <= 9
}

func four(b []byte) (int, bool) {
	x, ok1 := two(b)
	y, ok2 := two(b[2:])
	return x*100 + y, ok1 && ok2
}

func monthOf(b []byte) int {
	i := bytes.Index([]byte("JanFebMarAprMayJunJulAugSepOctNovDec"), b)
	if i < 0 || i%3 != 0 {
		return 0
	}
	return i/3 + 1
}

func validDate(year, month, day int) bool {
	if month < 1 || month > 12 || day < 1 {
		return false
	}
	last := [...]int{31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31}[month-1]
	if month == 2 && (year%4 == 0 && year%100 != 0 || year%400 == 0) {
		last = 29
	}
	return day <= last
}

// days counts the days from the Unix epoch (Howard Hinnant, days_from_civil).
func days(year, month, day int) int64 {
	if month <= 2 {
		year--
	}
	era := year / 400
	if year < 0 {
		era = (year - 399) / 400
	}
	yoe := year - era*400
	doy := (153*((month+9)%12)+2)/5 + day - 1
	doe := yoe*365 + yoe/4 - yoe/100 + doy
	return int64(era)*146097 + int64(doe) - 719468
}
