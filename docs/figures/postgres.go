package main

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// The picture of docs/operating/stores.md: an hour of load on PostgreSQL. postgres.csv holds what
// scripts/soak postgres found.

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

// grow makes a column one that never shrinks. Processor time is summed over many processes, and a
// reading may miss one that was about to end.
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
	if _, there := t.columns["server_cpu_ms"]; there {
		t.grow("server_cpu_ms")
	}
	return t, nil
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

// drawPostgres draws the samples.
func drawPostgres(t *table) []byte {
	last := len(t.rows) - 1
	span := t.of(last, "at_s")
	p := picture{
		title: fmt.Sprintf("PostgreSQL under load for %.0f minutes", span/60),
		caption: fmt.Sprintf("%.0f decisions a second of two nodes; %.0f states made and %.0f deleted a second",
			t.of(last, "decisions")/span, t.of(last, "inserted")/span, t.of(last, "deleted")/span),
		about:  "table and index keep their size, and autovacuum is seldom at work",
		panels: postgresPanels,
	}
	return p.draw(t)
}

// drawPostgresIn draws what postgres.csv in dir holds.
func drawPostgresIn(dir string) error {
	t, err := readTable(filepath.Join(dir, "postgres.csv"))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "postgres.svg"), drawPostgres(t), 0o644)
}
