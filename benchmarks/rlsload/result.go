package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// result is one measurement. Times are in µs; processor times are per decision.
type result struct {
	Name        string             `json:"name"`
	Pattern     string             `json:"pattern"`
	Callers     int                `json:"callers"`
	Connections int                `json:"connections"`
	Keys        int                `json:"keys"`
	Round       int                `json:"round"`
	Seconds     float64            `json:"seconds"`
	Decisions   int                `json:"decisions"`
	PerSecond   float64            `json:"decisions_per_second"`
	P50         float64            `json:"p50_us"`
	P99         float64            `json:"p99_us"`
	CPU         map[string]float64 `json:"cpu_us"`        // by the name of the process
	ClientCPU   float64            `json:"client_cpu_us"` // rlsload's own
	Refused     float64            `json:"refused"`       // share of the decisions
}

// cpuSum is the processor time of all the target's processes.
func (r result) cpuSum() float64 {
	var sum float64
	for _, t := range r.CPU {
		sum += t
	}
	return sum
}

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// percentile is the smallest value that p % of the sorted list do not exceed.
func percentile(sorted []time.Duration, p int) time.Duration {
	return sorted[(len(sorted)*p+99)/100-1]
}

// median is the upper one of an even number.
func median[T any, N cmp.Ordered](list []T, number func(T) N) N {
	var numbers []N
	for _, v := range list {
		numbers = append(numbers, number(v))
	}
	slices.Sort(numbers)
	return numbers[len(numbers)/2]
}

// writeTable writes a row for each server, pattern and number of callers, with the median of each
// figure.
func writeTable(w io.Writer, processes []string, results []result) error {
	var rows [][]result
	for _, r := range results {
		i := slices.IndexFunc(rows, func(row []result) bool {
			return row[0].Name == r.Name && row[0].Pattern == r.Pattern && row[0].Callers == r.Callers
		})
		if i < 0 {
			i = len(rows)
			rows = append(rows, nil)
		}
		rows[i] = append(rows[i], r)
	}
	header := []string{"server", "pattern", "callers", "decisions/s", "p50 µs", "p99 µs"}
	for _, name := range processes {
		header = append(header, name+" CPU µs")
	}
	if len(processes) > 0 {
		header = append(header, "sum")
	}
	header = append(header, "refused")
	var b strings.Builder
	fmt.Fprintf(&b, "| %s |\n|%s\n", strings.Join(header, " | "), strings.Repeat(" --- |", len(header)))
	for _, row := range rows {
		figure := func(format string, of func(result) float64) { fmt.Fprintf(&b, " "+format+" |", median(row, of)) }
		first := row[0]
		fmt.Fprintf(&b, "| %s | %s | %d |", first.Name, first.Pattern, first.Callers)
		figure("%.0f", func(r result) float64 { return r.PerSecond })
		figure("%.0f", func(r result) float64 { return r.P50 })
		figure("%.0f", func(r result) float64 { return r.P99 })
		for _, name := range processes {
			if _, found := first.CPU[name]; found {
				figure("%.1f", func(r result) float64 { return r.CPU[name] })
			} else {
				b.WriteString(" |")
			}
		}
		if len(processes) > 0 {
			figure("%.1f", result.cpuSum)
		}
		figure("%.1f %%", func(r result) float64 { return 100 * r.Refused })
		b.WriteString("\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}
