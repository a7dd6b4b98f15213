package judge

import (
	"math"
	"slices"
)

// Demand measures how much one key asks of one window, admitted or not: the most units within a
// window, counted as by a sliding window of one bucket, ⌊previous × overlap⌋ + current. With a
// limit of that size the key would never have been refused; with a smaller one it would. The zero
// value has seen nothing. Not safe for concurrent use.
type Demand struct {
	index             int64 // of the current window
	current, previous int64
	peak              int64
}

// Add counts n units at an instant. Instants and the window, which is the same each time, are in
// µs; an instant before the current window counts as its beginning. It returns the units within the
// window that ends now.
func (d *Demand) Add(now, window, n int64) int64 {
	i := now / window
	switch {
	case i == d.index+1:
		d.index, d.previous, d.current = i, d.current, 0
	case i > d.index:
		d.index, d.previous, d.current = i, 0, 0
	case i < d.index:
		now = d.index * window
	}
	d.current += n
	units := d.current
	if d.previous > 0 {
		units += mulDiv(d.previous, window-now%window, window)
	}
	d.peak = max(d.peak, units)
	return units
}

// Peak returns the most units within a window so far.
func (d *Demand) Peak() int64 { return d.peak }

// Last returns the number of the latest window with units, and how many units it has.
func (d *Demand) Last() (index, units int64) { return d.index, d.current }

// mulDiv returns ⌊a × b ÷ c⌋ for b ≤ c, even if a × b overflows.
func mulDiv(a, b, c int64) int64 {
	if a <= math.MaxInt64/max(b, 1) {
		return a * b / c
	}
	return a/c*b + int64(float64(a%c)*float64(b)/float64(c))
}

// Histogram returns how many of all keys reached which peak use of their limit: [0,10) … [90,100]
// percent, and above 100. The sample stands for total keys.
func Histogram(sample []KeyFacts, total float64) [11]uint64 {
	var counts [11]float64
	for i := range sample {
		counts[fillBin(sample[i].Fill)]++
	}
	var out [11]uint64
	for i, n := range counts {
		if n > 0 {
			out[i] = uint64(math.Round(total * n / float64(len(sample))))
		}
	}
	return out
}

// fillBin returns the place of a fill in Histogram.
func fillBin(fill float64) int {
	switch {
	case fill > 1:
		return 10
	case fill > 0:
		return min(int(fill*10), 9)
	}
	return 0
}

// Affected returns how many of all keys a limit of that size would have refused at least once, with
// its bounds at 95 %. These are the keys that asked for more in the window of that number in
// Facts.Windows. Keys with numbers of their own stay out. The sample stands for total keys; if it
// holds them all, plusMinus is 0.
func Affected(sample []KeyFacts, total float64, window int, limit int64) (keys, plusMinus float64) {
	if len(sample) == 0 {
		return 0, 0
	}
	n := 0
	for i := range sample {
		if k := &sample[i]; !k.Own && window < len(k.Demand) && k.Demand[window] > limit {
			n++
		}
	}
	share := float64(n) / float64(len(sample))
	if total > float64(len(sample))+0.5 {
		plusMinus = 1.96 * total * math.Sqrt(share*(1-share)/float64(len(sample)))
	}
	return total * share, plusMinus
}

// Needed returns the limit at which a share of all keys is never refused, for one of Facts.Windows:
// the smallest that at least that share of the sample does not exceed. 0 if the sample is empty.
func Needed(sample []KeyFacts, window int, share float64) int64 {
	var demands []int64
	for i := range sample {
		if window < len(sample[i].Demand) {
			demands = append(demands, sample[i].Demand[window])
		}
	}
	if len(demands) == 0 {
		return 0
	}
	slices.Sort(demands)
	return demands[max(int(math.Ceil(float64(len(demands))*share-1e-9)), 1)-1]
}

// Wilson returns the bounds at 95 % of a share, if x of n were seen to have the property (E. B.
// Wilson, Probable inference, the law of succession, and statistical inference, 1927). For n = 0
// they are 0 and 1.
func Wilson(x, n float64) (low, high float64) {
	if n <= 0 {
		return 0, 1
	}
	const z = 1.959964
	p := x / n
	middle := p + z*z/(2*n)
	spread := z * math.Sqrt(p*(1-p)/n+z*z/(4*n*n))
	low, high = max((middle-spread)/(1+z*z/n), 0), min((middle+spread)/(1+z*z/n), 1)
	if x == 0 {
		low = 0 // exactly
	}
	if x == n {
		high = 1
	}
	return low, high
}
