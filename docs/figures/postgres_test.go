package main

import (
	"bytes"
	"os"
	"testing"
)

// What docs/operating/stores.md says of an hour of load, from its first quarter on.
const (
	postgresSpan   = 55 * 60.0 // s
	postgresGrowth = 1.10      // of table and index, to what they were then
	postgresDead   = 1.0       // dead rows for each live one
	postgresVacuum = 0.05      // of the time, autovacuum is at work
	postgresLeast  = 40_000    // states
)

// TestPostgresFlat: the measurement shows a table and an index that keep their size while states
// come and go, and an autovacuum that is seldom at work.
func TestPostgresFlat(t *testing.T) {
	samples, err := readTable("postgres.csv")
	if err != nil {
		t.Fatal(err)
	}
	first, last := 0, len(samples.rows)-1
	for samples.of(first, "at_s") < samples.of(last, "at_s")/4 {
		first++
	}
	from, to := samples.of(first, "at_s"), samples.of(last, "at_s")
	grew := func(column string) float64 { return samples.of(last, column) - samples.of(first, column) }
	for row := first; row <= last; row++ {
		for _, size := range []string{"table_bytes", "index_bytes"} {
			if was, is := samples.of(first, size), samples.of(row, size); is > postgresGrowth*was {
				t.Errorf("after %.0f s %s is %.0f; after %.0f s it was %.0f", samples.of(row, "at_s"), size, is, from,
					was)
			}
		}
		if live, dead := samples.of(row, "live"), samples.of(row, "dead"); live < postgresLeast ||
			dead > postgresDead*live {
			t.Errorf("after %.0f s %.0f rows are live, and %.0f dead", samples.of(row, "at_s"), live, dead)
		}
	}
	busy := grew("vacuum_ms") / 1000 / (to - from)
	t.Logf(
		"from %.0f s to %.0f s: table %.1f to %.1f MiB, index %.1f to %.1f MiB; %.0f decisions a second, %.1f %% of the updates HOT",
		from, to, samples.of(first, "table_bytes")/(1<<20), samples.of(last, "table_bytes")/(1<<20),
		samples.of(first, "index_bytes")/(1<<20), samples.of(last, "index_bytes")/(1<<20),
		grew("decisions")/(to-from), 100*grew("hot")/grew("updated"))
	t.Logf(
		"%.0f vacuums, at work for %.1f %% of the time, %.2f %% of a processor; the server %.1f %%; %.0f bytes of WAL a decision; %.0f failed",
		grew("vacuums"), 100*busy, grew("vacuum_cpu_ms")/10/(to-from), grew("server_cpu_ms")/10/(to-from),
		grew("wal_bytes")/grew("decisions"), samples.of(last, "failed"))
	switch {
	case to < postgresSpan:
		t.Errorf("it lasted %.0f s, want %.0f", to, postgresSpan)
	case busy > postgresVacuum:
		t.Errorf("autovacuum was at work for %.0f %% of the time", 100*busy)
	case grew("deleted") < 0.95*grew("inserted"):
		t.Errorf("%.0f states were made, and %.0f deleted", grew("inserted"), grew("deleted"))
	case samples.of(last, "failed") > 0:
		t.Errorf("%.0f decisions failed", samples.of(last, "failed"))
	}
}

// The committed picture shows the committed measurement.
func TestPostgresPictureIsCurrent(t *testing.T) {
	samples, err := readTable("postgres.csv")
	if err != nil {
		t.Fatal(err)
	}
	have, err := os.ReadFile("postgres.svg")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, drawPostgres(samples)) {
		t.Error("postgres.svg is out of date: run go -C docs/figures run .")
	}
}
