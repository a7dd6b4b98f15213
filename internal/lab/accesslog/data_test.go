package accesslog

import (
	"io"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/traffic"
)

// Every line of the real logs parses, and its client, method and path are found, in whatever format
// they come.
func TestRealLogs(t *testing.T) {
	type row struct {
		name    string
		format  Format
		lines   int64
		clients int
		methods int64 // lines that have a method
		late    int64 // at 15 minutes
	}
	rows := []row{
		{"nasa_19950801/trace.tsv.gz", TSV, 33996, 2582, 33996, 0},
		{"nasa_19950801/19950801.tsv.gz", TSV, 33996, 2582, 33996, 0},
		{"secrepo_202110/access.log.gz", Common, 5854, 578, 5854, 0},
		{"basjes_hackers/access.log.gz", Common, 3456, 520, 3456, 0},
		{"elastic_apache_logs/access.log.gz", Common, 10000, 1753, 10000, 0},
		{"azure_llm/code.csv.gz", CSV, 8819, 0, 0, 0},
	}
	if !traffic.Full() {
		rows = []row{
			{"nasa_19950801/trace.tsv.gz", TSV, 6000, 527, 6000, 0},
			{"nasa_19950801/19950801.tsv.gz", TSV, 1500, 142, 1500, 0},
			{"secrepo_202110/access.log.gz", Common, 5854, 578, 5854, 0},
			{"basjes_hackers/access.log.gz", Common, 3456, 520, 3456, 0},
			{"elastic_apache_logs/access.log.gz", Common, 2000, 422, 2000, 0},
			{"azure_llm/code.csv.gz", CSV, 1966, 0, 0, 0},
		}
	}
	for _, tt := range rows {
		t.Run(tt.name, func(t *testing.T) {
			l, err := Open([]string{traffic.File(t, tt.name)}, nil, Options{Reorder: 15 * minute})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			if f := l.Formats(); len(f) != 1 || f[0] != tt.format {
				t.Errorf("formats %v, want %v", f, tt.format)
			}
			clients := make(map[string]bool)
			var lines, methods, last int64
			for {
				e, err := l.Next()
				if err == io.EOF {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				if e.Time < last {
					t.Fatalf("time runs backwards at line %d", lines)
				}
				last = e.Time
				lines++
				if e.Get(FieldMethod) != nil && e.Get(FieldPath) != nil {
					methods++
				}
				if ip := e.Get(FieldIP); ip != nil {
					clients[string(ip)] = true
				}
			}
			if lines != tt.lines || len(clients) != tt.clients || methods != tt.methods {
				t.Errorf("lines %d, clients %d, lines with method and path %d; want %d, %d, %d", lines, len(clients),
					methods, tt.lines, tt.clients, tt.methods)
			}
			if s := l.Stats(); s.Entries != tt.lines || s.Skipped != 0 || s.Late != tt.late {
				t.Errorf("stats %+v", s)
			}
		})
	}
}
