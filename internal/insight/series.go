package insight

// The lanes of a series: what is counted of a rule or a domain over time. Of a domain, refused
// holds those that a ban refused, near those in a soft margin, and soft and alone are empty.
const (
	laneMet = iota
	laneRefused
	laneAlone
	laneNear
	laneSoft
	laneBanned
	laneWould
	lanes
)

// bucket is what was counted in one step of time.
type bucket [lanes]uint32

func (b *bucket) add(x *bucket) {
	for i := range b {
		if b[i] += x[i]; b[i] < x[i] {
			b[i] = 1<<32 - 1
		}
	}
}

// wheel is a ring of buckets of step seconds each. A bucket is found by its number, the Unix time
// by the step.
type wheel struct {
	step    int64
	last    int64 // number of the newest bucket
	buckets []bucket
}

func newWheel(step int64, n int) wheel { return wheel{step: step, buckets: make([]bucket, n)} }

// advance makes the bucket of an instant the newest, if that is later.
func (w *wheel) advance(unix int64) {
	n, size := unix/w.step, int64(len(w.buckets))
	if size == 0 || n <= w.last {
		return
	}
	for i := max(w.last+1, n-size+1); i <= n; i++ {
		w.buckets[i%size] = bucket{}
	}
	w.last = n
}

// add counts at an instant; what is older than the ring is lost.
func (w *wheel) add(unix int64, b *bucket) {
	if len(w.buckets) == 0 {
		return
	}
	w.advance(unix)
	if n := unix / w.step; n > w.last-int64(len(w.buckets)) {
		w.buckets[n%int64(len(w.buckets))].add(b)
	}
}

// each calls f for the buckets from one instant up to now, oldest first, empty ones too.
func (w *wheel) each(from, now int64, f func(unix int64, b *bucket)) {
	size := int64(len(w.buckets))
	var empty bucket
	for n := max(from/w.step, now/w.step-size+1); n <= now/w.step; n++ {
		if n > w.last || n <= w.last-size {
			f(n*w.step, &empty)
			continue
		}
		f(n*w.step, &w.buckets[n%size])
	}
}

// Sizes of the wheels of a series: 5 minutes by the second, a day by the minute, a week by ten
// minutes.
const (
	seconds = 300
	minutes = 1440
	tens    = 1008
)

// series is what was counted over time.
type series struct{ second, minute, ten wheel }

// minutesOf is how many minutes a series has: in a lean one an hour.
func minutesOf(lean bool) int {
	if lean {
		return 60
	}
	return minutes
}

func newSeries(lean bool) *series {
	s := &series{minute: newWheel(60, minutesOf(lean)), ten: newWheel(600, tens)}
	s.second.step = 1
	if !lean {
		s.second = newWheel(1, seconds)
	}
	return s
}

// newSeriesSize is the memory of a new series.
func newSeriesSize(lean bool) int64 {
	n := minutesOf(lean) + tens
	if !lean {
		n += seconds
	}
	return int64(n) * lanes * 4
}

// thin makes a series lean.
func (s *series) thin() {
	s.second = wheel{step: 1}
	old := s.minute
	s.minute = newWheel(60, minutesOf(true))
	old.each(max(old.last-int64(minutesOf(true))+1, 0)*60, old.last*60, func(unix int64, b *bucket) { s.minute.add(unix, b) })
}

func (s *series) add(unix int64, b *bucket) {
	s.second.add(unix, b)
	s.minute.add(unix, b)
	s.ten.add(unix, b)
}

// wheelFor returns the finest wheel that reaches back so many seconds.
func (s *series) wheelFor(over int64) *wheel {
	switch {
	case over <= seconds && len(s.second.buckets) > 0:
		return &s.second
	case over <= int64(len(s.minute.buckets))*60:
		return &s.minute
	}
	return &s.ten
}

// mostSteps bounds the steps in which a time is shown.
const mostSteps = 360

// stepFor returns the step in which a time of so many seconds is shown: up to mostSteps of them.
func stepFor(over int64) int64 {
	if over <= seconds {
		return 1
	}
	for _, step := range [...]int64{60, 300, 600} {
		if over <= mostSteps*step {
			return step
		}
	}
	return 1800
}

// bytes is the memory that the series takes.
func (s *series) bytes() int64 {
	return int64(len(s.second.buckets)+len(s.minute.buckets)+len(s.ten.buckets)) * lanes * 4
}
