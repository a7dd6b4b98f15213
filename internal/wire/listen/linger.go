package listen

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// Lingers reads connections on for a moment after their last answer, while their clients are still
// sending: a connection that is closed with bytes that nobody has read is reset, and the client,
// which may look for an answer only when it has sent all, loses it.
//
// It is bounded in time and bytes, and by the number of connections: an address (an IPv6 /64) never
// has more of them than are left for all others, so alone half, the next one half of the rest. All
// count as open connections meanwhile, and none holds anything beside itself. Safe for concurrent
// use. Make one with NewLingers.
type Lingers struct {
	most  int
	pause time.Duration // the longest without a byte
	long  time.Duration // the longest in all
	bytes int64         // the most
	over  atomic.Bool   // End was called

	mu   sync.Mutex
	used int
	of   map[netip.Addr]int
}

// Bounds of reading on.
const (
	mostLingers = 1024
	lingerPause = 2 * time.Second
	lingerAfter = 500 * time.Millisecond // once all has come, as in net/http
	lingerLong  = 30 * time.Second
	lingerBytes = 64 << 20
)

// NewLingers returns one without connections.
func NewLingers() *Lingers {
	return &Lingers{most: mostLingers, pause: lingerPause, long: lingerLong, bytes: lingerBytes,
		of: map[netip.Addr]int{}}
}

// Bound changes the bounds, before the first use: for tests. 0 leaves one as it is.
func (l *Lingers) Bound(most int, pause, long time.Duration, bytes int64) {
	if most > 0 {
		l.most = most
	}
	if pause > 0 {
		l.pause = pause
	}
	if long > 0 {
		l.long = long
	}
	if bytes > 0 {
		l.bytes = bytes
	}
}

// End ends the reading of all connections within the longest pause, and of those to come at once.
func (l *Lingers) End() { l.over.Store(true) }

// Read reads the bytes that still come over a connection whose answer is sent, into buf, and drops
// them, until the client ends its side or a bound is met. Once the awaited left bytes have come,
// the client has little time for that. ended is asked after each change of the read deadline, and
// may be nil. Read returns false at once if there is no room.
func (l *Lingers) Read(nc net.Conn, left int64, buf []byte, ended func() bool) bool {
	of := Client(nc.RemoteAddr(), nil)
	if !l.enter(of) {
		return false
	}
	defer l.leave(of)
	last := time.Now().Add(l.long)
	for read := int64(0); read < l.bytes; {
		pause := l.pause
		if read >= left {
			pause = min(pause, lingerAfter)
		}
		by := time.Now().Add(pause)
		if by.After(last) {
			by = last
		}
		if nc.SetReadDeadline(by) != nil || l.over.Load() || ended != nil && ended() {
			break
		}
		n, err := nc.Read(buf)
		if read += int64(n); err != nil {
			break
		}
	}
	return true
}

// enter takes room for a connection of an address; the zero Addr is a client that has none, and is
// not told apart from others.
func (l *Lingers) enter(of netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	free := l.most - l.used
	if l.over.Load() || free <= 0 || of.IsValid() && l.of[of]+1 > free {
		return false
	}
	l.used++
	l.of[of]++
	return true
}

func (l *Lingers) leave(of netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.used--
	if l.of[of]--; l.of[of] == 0 {
		delete(l.of, of)
	}
}

// Len is how many connections are being read on.
func (l *Lingers) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.used
}
