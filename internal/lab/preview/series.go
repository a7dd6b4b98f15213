package preview

// series counts by step of time.
type series struct {
	from, step     int64 // µs
	all, now, then []uint64
}

// mostSteps bounds a series.
const mostSteps = 120

func newSeries(from, to int64) series {
	steps := [...]int64{1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400}
	step := steps[len(steps)-1]
	for _, s := range steps {
		if (to-from)/(s*1e6) < mostSteps-1 {
			step = s
			break
		}
	}
	step *= 1e6
	from -= from % step
	n := min((to-from)/step+1, mostSteps)
	return series{from: from, step: step, all: make([]uint64, n), now: make([]uint64, n), then: make([]uint64, n)}
}

func (s *series) add(at int64, now, then bool) {
	i := min(max((at-s.from)/s.step, 0), int64(len(s.all)-1))
	s.all[i]++
	if !now {
		s.now[i]++
	}
	if !then {
		s.then[i]++
	}
}
