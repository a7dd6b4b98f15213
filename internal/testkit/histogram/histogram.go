// Package histogram counts times, so that quantiles of any number of them take little memory.
package histogram

import (
	"math"
	"time"
)

// Histogram counts times in classes. Each class is as wide as 1/32 of a doubling, which is 2.2 %.
// The zero value is empty. It is not safe for concurrent use.
type Histogram struct {
	classes [64 * steps]float64
	total   float64
	sum     float64 // ns
	longest time.Duration
}

const steps = 32

// Add counts a time, which is not below 0, with a weight: 1 for one.
func (h *Histogram) Add(d time.Duration, weight float64) {
	h.classes[class(d)] += weight
	h.total += weight
	h.sum += weight * float64(d)
	h.longest = max(h.longest, d)
}

func class(d time.Duration) int {
	if d <= 0 {
		return 0
	}
	return int(math.Log2(float64(d)) * steps)
}

// Merge adds all that another one has counted.
func (h *Histogram) Merge(other *Histogram) {
	for i, n := range other.classes {
		h.classes[i] += n
	}
	h.total += other.total
	h.sum += other.sum
	h.longest = max(h.longest, other.longest)
}

// Total is the sum of the weights.
func (h *Histogram) Total() float64 { return h.total }

// Longest is the longest time, exactly; 0 if there is none.
func (h *Histogram) Longest() time.Duration { return h.longest }

// Mean is the mean of all times, exactly; 0 if there is none.
func (h *Histogram) Mean() time.Duration {
	if h.total == 0 {
		return 0
	}
	return time.Duration(h.sum / h.total)
}

// Quantile returns a time that a share q of all does not exceed, rounded up to the end of its
// class; 0 if there is none.
func (h *Histogram) Quantile(q float64) time.Duration {
	left := h.total * q
	for i, n := range h.classes {
		if left -= n; n > 0 && left <= h.total*1e-12 {
			if i == 0 {
				return 0
			}
			return time.Duration(math.Exp2(float64(i+1) / steps))
		}
	}
	return 0
}

// Between is the weight of the times from one to another, to the nearest bounds of classes.
func (h *Histogram) Between(from, to time.Duration) (weight float64) {
	for _, n := range h.classes[class(from):class(to)] {
		weight += n
	}
	return weight
}
