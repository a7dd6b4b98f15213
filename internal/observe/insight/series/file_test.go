package series

import (
	"bytes"
	"testing"

	"github.com/weir-rl/weir/internal/observe/insight/snapshot"
)

// FuzzFile: whatever lies in the file, what is good of it is read, and read again alike.
func FuzzFile(f *testing.F) {
	good := appendRecord([]byte(magic), []Past{
		{Name: Name{"shop", "a", 7}, Steps: []Step{{Unix: 60, Length: 60, Count: snapshot.Bucket{1, 2, 3}}, {Unix: 600, Length: 600, Count: snapshot.Bucket{snapshot.LaneWould: 4}}}},
		{Name: Name{Domain: "shop"}},
	})
	f.Add(good)
	f.Add(good[:len(good)-1])
	f.Add(append(bytes.Clone(good), good[len(magic):]...))
	f.Fuzz(func(t *testing.T, data []byte) {
		var list []Past
		n := readRecords(data, func(p *Past) { list = append(list, *p) })
		if n > len(data) {
			t.Fatalf("%d of %d bytes are good", n, len(data))
		}
		if n == 0 {
			return
		}
		var again []Past
		written := appendRecord([]byte(magic), list)
		if readRecords(written, func(p *Past) { again = append(again, *p) }) != len(written) ||
			len(again) != len(list) {
			t.Fatalf("%d were read, and %d when they were written again", len(list), len(again))
		}
	})
}
