package main

import (
	"fmt"
	"os"
)

// The picture of a soak: what scripts/soak sampled of a server over Redis and of one with its own
// store. It is of no document.

// ofServer returns a column's values of one of the two servers, whose samples take turns.
func ofServer(server int, column string, scale float64) func(t *table, row int) float64 {
	return func(t *table, row int) float64 {
		for step := -1; t.of(row, "server") != float64(server); row += step {
			if row == 0 {
				step = 1
			}
		}
		return t.of(row, column) / scale
	}
}

// ofBoth is a chart of a column, with a curve for each server.
func ofBoth(title, column string, scale float64) panel {
	return panel{title, []curve{
		{"over Redis", "#1f6feb", ofServer(0, column, scale)},
		{"embedded", "#2a9d6f", ofServer(1, column, scale)},
	}}
}

var soakPanels = []panel{
	ofBoth("memory (RSS), MiB", "rss_bytes", 1<<20),
	ofBoth("goroutines", "goroutines", 1),
	ofBoth("open files", "files", 1),
	ofBoth("connections of doors", "connections", 1),
	ofBoth("p99, ms", "p99_us", 1000),
	{"failed requests", []curve{
		{"in faults", "#5b6b7b", func(t *table, row int) float64 { return t.of(row, "failed_in_faults") }},
		{"beside them", "#c62f3b", func(t *table, row int) float64 { return t.of(row, "failed") }},
	}},
}

// drawSoak draws the samples in one file into another.
func drawSoak(from, to string) error {
	t, err := readTable(from)
	if err != nil {
		return err
	}
	last := len(t.rows) - 1
	span := t.of(last, "at_s")
	p := picture{
		title: fmt.Sprintf("A soak of %.0f minutes", span/60),
		caption: fmt.Sprintf("%.0f decisions a second through three doors of two servers, and %.0f reloads, bans, grants and restarts of Redis",
			t.of(last, "decisions")/span, t.of(last, "faults")),
		about:  "memory, goroutines, files and connections of two servers under load",
		panels: soakPanels,
	}
	return os.WriteFile(to, p.draw(t), 0o644)
}
