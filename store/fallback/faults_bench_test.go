package fallback_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// BenchmarkFaults measures what clients notice of faults: three nodes with eight clients each, who
// rest 4 ms between two decisions on average. It prints a table of its own:
//
//	go test ./store/fallback -run xxx -bench Faults -benchtime 1x
//
// Its figures are for a machine that does nothing else. TestFaults holds the claims for any
// machine.
func BenchmarkFaults(b *testing.B) {
	lasts := faultLasts(b, longTime)
	var table strings.Builder
	fmt.Fprintf(&table, "\n%d nodes, deadline %v, each fault for %v:\n\n", nodes, deadline, lasts)
	table.WriteString(
		"| Redis | decisions/s before / during / after | p99 before | p99 during | max during | p99 after | away on all after | its decisions again after |\n")
	table.WriteString("| --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for _, f := range faults {
		b.Run(f.name, func(b *testing.B) {
			c := runFault(b, f, faultLoad(), lasts)
			p99 := func(at phase) time.Duration { return quantile(c.latencies[at], 0.99) }
			rate := func(at phase) string { return perSecond(len(c.latencies[at]), c.lasted[at]) }
			b.ReportMetric(float64(p99(during).Microseconds())/1e3, "p99-ms")
			b.ReportMetric(float64(c.returned.Milliseconds()), "return-ms")
			fmt.Fprintf(&table, "| %s | %s / %s / %s | %s | %s | %s | %s | %s | %s |\n", f.name, rate(before),
				rate(during), rate(after),
				ms(p99(before)), ms(p99(during)), ms(quantile(c.latencies[during], 1)), ms(p99(after)), ms(c.opened),
				ms(c.returned))
		})
	}
	fmt.Println(table.String())
}

// quantile returns the value below which a part of sorted lies; 0 of none.
func quantile(sorted []time.Duration, part float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(part*float64(len(sorted))), len(sorted)-1)]
}

func perSecond(n int, d time.Duration) string {
	if n == 0 {
		return "–"
	}
	return fmt.Sprintf("%.0f", float64(n)/d.Seconds())
}

func ms(d time.Duration) string {
	switch {
	case d == 0:
		return "–"
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.2f ms", d.Seconds()*1e3)
	}
	return fmt.Sprintf("%.0f ms", d.Seconds()*1e3)
}

func TestQuantile(t *testing.T) {
	list := make([]time.Duration, 100)
	for i := range list {
		list[i] = time.Duration(i + 1)
	}
	if got := []time.Duration{quantile(list, 0.5), quantile(list, 0.99), quantile(list, 1), quantile(nil, 1)}; !slices.Equal(got, []time.Duration{51, 100, 100, 0}) {
		t.Error(got)
	}
}
