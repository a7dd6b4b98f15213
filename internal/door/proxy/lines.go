package proxy

import (
	"strconv"
	"strings"
	"time"

	"github.com/weir-rl/weir/internal/util/sparselog"
)

// lines are the log lines that clients can cause. Each is written once a minute at most, and
// says how many there would have been.
type lines struct {
	failed, late, brokeOff, full  sparselog.Line // of the upstream
	dawdling, unread              sparselog.Line // of bodies and answers that nobody sends or reads
	reverse                       sparselog.Line // of net/http/httputil
	notDeferred, noRoom, ticket   sparselog.Line // of deferred requests
	slotsKept, costsStayEstimates sparselog.Line
}

// warn writes a line, unless one of its kind was written within the last minute. Texts whose length
// a client or the upstream chooses must be excerpts.
func (p *Proxy) warn(line *sparselog.Line, format string, args ...any) {
	n := line.Due(time.Minute)
	if n == 0 {
		return
	}
	if n > 1 {
		format += " (" + strconv.Itoa(n) + " of these since the last such line)"
	}
	p.o.Logf(format, args...)
}

// warnOf is warn for a request.
func (p *Proxy) warnOf(line *sparselog.Line, method, path, what string, err error) {
	p.warn(line, "proxy: %s %q: %s: %s", sparselog.Excerpt(method), sparselog.Excerpt(path), what,
		sparselog.Excerpt(err.Error()))
}

// logWriter takes the lines that net/http/httputil writes.
type logWriter struct{ p *Proxy }

// Write implements io.Writer.
func (w logWriter) Write(line []byte) (int, error) {
	w.p.warn(&w.p.lines.reverse, "proxy: %s", sparselog.Excerpt(strings.TrimRight(string(line), "\n")))
	return len(line), nil
}
