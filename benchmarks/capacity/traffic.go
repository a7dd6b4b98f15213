package capacity

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
)

// Stratum is a set of keys that are alike: each gets Rate requests a second over all nodes, by
// chance (Poisson).
type Stratum struct {
	Name string
	Keys int64
	Rate float64
	// Sample is how many of the keys are simulated; each stands for Keys / Sample. 0 means all.
	Sample int64
}

func (s *Stratum) sampled() int64 {
	if s.Sample == 0 {
		return s.Keys
	}
	return s.Sample
}

// weight returns how many keys a simulated one stands for.
func (s *Stratum) weight() float64 { return float64(s.Keys) / float64(s.sampled()) }

// maxSampled bounds the keys of a stratum, whose number must fit the names of keys (see keyFor).
const maxSampled = 1 << 32

func checkStrata(strata []Stratum) error {
	if len(strata) == 0 || len(strata) >= 1<<11 {
		return errors.New("capacity: a scenario needs strata of keys, up to 2047")
	}
	for i := range strata {
		s := &strata[i]
		if s.Keys < 1 || s.Sample < 0 || s.Sample > s.Keys || s.sampled() > maxSampled || !(s.Rate > 0) ||
			math.IsInf(s.Rate, 1) {
			return fmt.Errorf(
				"capacity: stratum %d has %d keys of %v a second, %d of them simulated; all must be above 0, and no more simulated than there are", i, s.Keys, s.Rate, s.Sample)
		}
	}
	return nil
}

// Zipf returns the strata of keys whose rates fall as 1/rank^s, with a total rate. Each of the
// first hot ranks is a stratum of its own. Each later stratum reaches from a rank to grow times
// that, and all its keys have its mean rate. At most share of a stratum's keys are simulated, but
// at least one.
func Zipf(keys int64, s, total float64, hot int64, grow, share float64) []Stratum {
	whole := harmonic(1, keys, s)
	var out []Stratum
	for from := int64(1); from <= keys; {
		to, sample := from, int64(1)
		if from > hot {
			to = min(keys, max(from, int64(float64(from)*grow)))
		}
		n := to - from + 1
		if from > hot {
			sample = max(1, int64(float64(n)*share))
		}
		name := fmt.Sprint(from)
		if n > 1 {
			name = fmt.Sprintf("%d to %d", from, to)
		}
		out = append(out, Stratum{Name: name, Keys: n, Rate: total * harmonic(from, to, s) / whole / float64(n),
			Sample: sample})
		from = to + 1
	}
	return out
}

// harmonic returns the sum of 1/k^s for k from one rank to another: term by term at first, then by
// the formula of Euler and Maclaurin, which is exact to ten digits there.
func harmonic(from, to int64, s float64) float64 {
	var sum float64
	for ; from <= to && from < 1000; from++ {
		sum += math.Pow(float64(from), -s)
	}
	if from > to {
		return sum
	}
	a, b := float64(from), float64(to)
	integral := math.Log(b / a)
	if s != 1 {
		integral = (math.Pow(b, 1-s) - math.Pow(a, 1-s)) / (1 - s)
	}
	fa, fb := math.Pow(a, -s), math.Pow(b, -s)
	return sum + integral + (fa+fb)/2 + s*(fa/a-fb/b)/12
}

// source draws requests: the sum of all keys' Poisson processes.
type source struct {
	rng    *rand.Rand
	gap    float64 // mean time between two requests, in ns
	strata []Stratum
	accept []float64 // Walker's alias method over the strata
	alias  []int32
}

func newSource(rng *rand.Rand, strata []Stratum) *source {
	n := len(strata)
	s := &source{rng: rng, strata: strata, accept: make([]float64, n), alias: make([]int32, n)}
	var total float64
	for i := range strata {
		s.accept[i] = strata[i].Rate * float64(strata[i].sampled())
		total += s.accept[i]
	}
	s.gap = 1e9 / total
	var small, large []int32
	for i := range s.accept {
		s.accept[i] *= float64(n) / total
		s.alias[i] = int32(i)
		if s.accept[i] < 1 {
			small = append(small, int32(i))
		} else {
			large = append(large, int32(i))
		}
	}
	for len(small) > 0 && len(large) > 0 {
		a, b := small[len(small)-1], large[len(large)-1]
		small = small[:len(small)-1]
		s.alias[a] = b
		if s.accept[b] += s.accept[a] - 1; s.accept[b] < 1 {
			large = large[:len(large)-1]
			small = append(small, b)
		}
	}
	for _, i := range append(small, large...) { // what is left misses 1 by rounding only
		s.accept[i] = 1
	}
	return s
}

// next returns the time to the next request, in ns, and its key.
func (s *source) next() (after float64, stratum int, key int64) {
	after = s.rng.ExpFloat64() * s.gap
	stratum = s.rng.IntN(len(s.strata))
	if s.rng.Float64() >= s.accept[stratum] {
		stratum = int(s.alias[stratum])
	}
	return after, stratum, s.rng.Int64N(s.strata[stratum].sampled())
}
