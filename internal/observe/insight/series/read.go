package series

import "github.com/weir-rl/weir/internal/observe/insight/snapshot"

// Strip reads a series; count is the sum of it.
func (s *Series) Strip(from, to, step int64) (strip snapshot.Strip, count snapshot.Counts) {
	strip = make(snapshot.Strip, (to-from)/step+1)
	wheel := s.wheelFor(to - from)
	wheel.each(from, to, func(unix int64, b *snapshot.Bucket) {
		if unix < from {
			return
		}
		count.AddBucket(b)
		spreadBucket(strip, int((unix-from)/step), int(max(wheel.step/step, 1)), b)
	})
	return strip, count
}

// Sum counts what came from an instant on.
func (s *Series) Sum(from, to int64) (count snapshot.Counts) {
	s.wheelFor(to-from).each(from, to, func(unix int64, b *snapshot.Bucket) {
		if unix >= from {
			count.AddBucket(b)
		}
	})
	return count
}

// spreadBucket adds a bucket to n steps in equal parts, for a series whose steps are longer than
// the steps shown.
func spreadBucket(strip snapshot.Strip, at, n int, b *snapshot.Bucket) {
	n = min(n, len(strip)-at)
	for i := range n {
		for lane, v := range b {
			part := v / uint32(n)
			if i < int(v%uint32(n)) {
				part++
			}
			strip[at+i][lane] += part
		}
	}
}

// Recent sums the last 10 full seconds. Without counts by the second, it returns a sixth of the
// last full minute.
func (s *Series) Recent(now int64) (count snapshot.Counts) {
	w, from, to, part := &s.second, now-snapshot.RecentSeconds, now-1, uint64(1)
	if len(w.buckets) == 0 {
		w, from, to, part = &s.minute, now/60*60-60, now/60*60-1, 60/snapshot.RecentSeconds
	}
	w.each(from, to, func(_ int64, b *snapshot.Bucket) {
		for i, v := range b {
			count[i] += uint64(v) / part
		}
	})
	return count
}

// Oldest returns when the oldest ten minutes with counts begin; the end of time if there are none.
func (s *Series) Oldest() int64 { return s.ten.oldest() }

// Within sums the counts from one instant to before another, by parts of ten minutes.
func (s *Series) Within(from, to int64) snapshot.Counts { return s.ten.within(from, to) }

// Each calls f for the steps from one instant up to another, oldest first, empty ones too, at the
// finest resolution that reaches back over seconds.
func (s *Series) Each(over, from, to int64, f func(unix int64, b *snapshot.Bucket)) {
	s.wheelFor(over).each(from, to, f)
}

// EachMinute calls f for the minutes from one instant up to another, oldest first, empty ones too.
func (s *Series) EachMinute(from, to int64, f func(unix int64, b *snapshot.Bucket)) {
	s.minute.each(from, to, f)
}

// LastMinute returns the number of the newest minute: its Unix time divided by 60.
func (s *Series) LastMinute() int64 { return s.minute.last }

// AppendPast appends the counts of a series between two instants: by the minute, with their states,
// as far back as minutes are known, and by ten minutes before. Nothing is appended for no counts.
func (s *Series) AppendPast(list []Past, name Name, states []Minute, from, to int64) []Past {
	p := Past{Name: name}
	begin := (s.minute.last - int64(len(s.minute.buckets)) + 1) * 60
	begin = (begin + 599) / 600 * 600 // no step counts twice
	if from < begin {
		s.ten.each(from, min(begin-1, to), func(unix int64, b *snapshot.Bucket) {
			if *b != (snapshot.Bucket{}) {
				p.Steps = append(p.Steps, Step{Unix: unix, Length: 600, Count: *b})
			}
		})
	}
	s.minute.each(max(from, begin), to, func(unix int64, b *snapshot.Bucket) {
		if *b == (snapshot.Bucket{}) {
			return
		}
		step := Step{Unix: unix, Length: 60, Count: *b}
		if len(states) > 0 {
			step.State = states[unix/60%int64(len(states))]
		}
		p.Steps = append(p.Steps, step)
	})
	if len(p.Steps) == 0 {
		return list
	}
	return append(list, p)
}

// Restore puts counts of a file into the series, and their states into states. It returns when they
// begin; 0 if there are none.
func (s *Series) Restore(steps []Step, states []Minute) (begin int64) {
	for i := range steps {
		x := &steps[i]
		if begin == 0 || x.Unix < begin {
			begin = x.Unix
		}
		if x.Length == 60 {
			s.minute.add(x.Unix, &x.Count)
			if len(states) > 0 {
				states[x.Unix/60%int64(len(states))] = x.State
			}
		}
		s.ten.add(x.Unix, &x.Count)
	}
	return begin
}
