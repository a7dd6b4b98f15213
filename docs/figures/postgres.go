package main

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
)

// The picture of docs/stores.md: an hour of load on PostgreSQL. postgres.csv holds what
// scripts/soak-postgres found.

// table is a CSV of whole numbers.
type table struct {
	columns map[string]int
	rows    [][]int64
}

// of returns a cell.
func (t *table) of(row int, column string) float64 { return float64(t.rows[row][t.columns[column]]) }

// rate returns by how much a column grew a second, from the row before.
func (t *table) rate(row int, column string) float64 {
	if row == 0 {
		return t.of(0, column) / t.of(0, "at_s")
	}
	return (t.of(row, column) - t.of(row-1, column)) / (t.of(row, "at_s") - t.of(row-1, "at_s"))
}

// grow makes a column one that never shrinks: processor time is that of many processes, and of one
// that was just about to end it may have been missed.
func (t *table) grow(column string) {
	at := t.columns[column]
	for row := 1; row < len(t.rows); row++ {
		t.rows[row][at] = max(t.rows[row][at], t.rows[row-1][at])
	}
}

func readTable(path string) (*table, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	rows, err := csv.NewReader(bytes.NewReader(data)).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(rows) < 2 {
		return nil, fmt.Errorf("%s holds no samples", path)
	}
	t := &table{columns: map[string]int{}}
	for i, name := range rows[0] {
		t.columns[name] = i
	}
	for _, cells := range rows[1:] {
		row := make([]int64, len(cells))
		for i, cell := range cells {
			if row[i], err = strconv.ParseInt(cell, 10, 64); err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
		}
		t.rows = append(t.rows, row)
	}
	t.grow("server_cpu_ms")
	return t, nil
}

// panel is a chart of the picture: curves over the same time.
type panel struct {
	title  string
	curves []curve
}

type curve struct {
	name, color string
	value       func(t *table, row int) float64
}

var postgresPanels = []panel{
	{"size, MiB", []curve{
		{"table", "#1f6feb", func(t *table, row int) float64 { return t.of(row, "table_bytes") / (1 << 20) }},
		{"index", "#2a9d6f", func(t *table, row int) float64 { return t.of(row, "index_bytes") / (1 << 20) }},
	}},
	{"rows, in thousands", []curve{
		{"live", "#1f6feb", func(t *table, row int) float64 { return t.of(row, "live") / 1000 }},
		{"dead", "#c62f3b", func(t *table, row int) float64 { return t.of(row, "dead") / 1000 }},
	}},
	{"processor, in % of one", []curve{
		{"PostgreSQL", "#1f6feb", func(t *table, row int) float64 { return t.rate(row, "server_cpu_ms") / 10 }},
		{"autovacuum", "#c62f3b", func(t *table, row int) float64 { return t.rate(row, "vacuum_cpu_ms") / 10 }},
	}},
}

// drawPostgres draws what was sampled.
func drawPostgres(t *table) []byte {
	const (
		width, left, right = 800, 60, 110
		top, high, gap     = 74, 110, 36
		ink, grey, pale    = "#16324f", "#5b6b7b", "#e6ebf0"
	)
	bottom := func(i int) float64 { return float64(top + (i+1)*high + i*gap) }
	last := len(t.rows) - 1
	span := t.of(last, "at_s")
	x := func(s float64) float64 { return left + s/span*(width-left-right) }
	var b bytes.Buffer
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	title := fmt.Sprintf("PostgreSQL under load for %.0f minutes", span/60)
	caption := fmt.Sprintf("%.0f decisions a second of two nodes; %.0f states made and %.0f deleted a second",
		t.of(last, "decisions")/span, t.of(last, "inserted")/span, t.of(last, "deleted")/span)
	p(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %.0f" font-family="system-ui, sans-serif" font-size="12">`, width, bottom(len(postgresPanels)-1)+34)
	p(`<title>%s: table and index keep their size, and autovacuum is seldom at work</title>`, title)
	p(`<rect width="%d" height="%.0f" rx="6" fill="#ffffff"/>`, width, bottom(len(postgresPanels)-1)+34)
	p(`<text x="%d" y="22" font-size="15" font-weight="600" fill="%s">%s</text>`, left, ink, title)
	p(`<text x="%d" y="42" fill="%s">%s</text>`, left, grey, caption)
	for i, panel := range postgresPanels {
		highest := 0.0
		for _, c := range panel.curves {
			for row := range t.rows {
				highest = max(highest, c.value(t, row))
			}
		}
		step := stepOf(highest)
		full := step * math.Ceil(max(highest, step)/step)
		y := func(v float64) float64 { return bottom(i) - v/full*high }
		for v := 0.0; v <= full; v += step {
			p(`<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="%s"/>`, left, y(v), width-right, y(v), pale)
			p(`<text x="%d" y="%.1f" text-anchor="end" fill="%s">%g</text>`, left-6, y(v)+4, grey, v)
		}
		p(`<text x="%d" y="%.1f" fill="%s">%s</text>`, left, bottom(i)-high-6, grey, panel.title)
		for j, c := range panel.curves {
			var at bytes.Buffer
			for row := range t.rows {
				fmt.Fprintf(&at, "%.1f,%.1f ", x(t.of(row, "at_s")), y(c.value(t, row)))
			}
			p(`<polyline points="%s" fill="none" stroke="%s" stroke-width="1.6"/>`, bytes.TrimSpace(at.Bytes()), c.color)
			p(`<text x="%d" y="%.1f" fill="%s">%s</text>`, width-right+10, bottom(i)-high+14+18*float64(j), c.color, c.name)
		}
	}
	foot := bottom(len(postgresPanels) - 1)
	for s := 0.0; s <= span; s += 600 {
		p(`<text x="%.1f" y="%.1f" text-anchor="middle" fill="%s">%.0f min</text>`, x(s), foot+18, grey, s/60)
	}
	p(`</svg>`)
	return b.Bytes()
}

// stepOf returns how far apart the lines of a chart are that reaches up to v: 1, 2 or 5 times a
// power of ten, two to five of them.
func stepOf(v float64) float64 {
	step := math.Pow(10, math.Floor(math.Log10(max(v, 1e-9))))
	switch {
	case v/step < 2:
		return step / 2
	case v/step < 5:
		return step
	}
	return 2 * step
}

// drawPostgresIn draws what postgres.csv in dir holds.
func drawPostgresIn(dir string) error {
	t, err := readTable(filepath.Join(dir, "postgres.csv"))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "postgres.svg"), drawPostgres(t), 0o644)
}
