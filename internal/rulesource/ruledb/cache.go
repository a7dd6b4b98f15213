package ruledb

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"

	"github.com/weir-rl/weir/internal/rulesource"
	"github.com/weir-rl/weir/internal/util/atomicfile"
)

// cached is the file from which a node starts while the database is away.
type cached struct {
	Format  int               `json:"format"`
	Space   string            `json:"space"`
	Version int64             `json:"version"`
	Digest  string            `json:"digest"` // of all files, in hexadecimal
	Files   map[string]string `json:"files"`
}

// writeCache writes a version to a file, which is the old or the new one at any time.
func writeCache(path, space string, v *Version) error {
	files := make(map[string]string, len(v.Files))
	for _, s := range v.Files {
		files[s.Name] = string(s.Data)
	}
	raw, err := json.Marshal(cached{Format: 1, Space: space, Version: v.Number, Digest: hex.EncodeToString(v.Digest[:]),
		Files: files})
	if err != nil {
		return err
	}
	return atomicfile.Write(path, func(f *os.File) error {
		_, err := f.Write(raw)
		return err
	})
}

// readCache reads what writeCache wrote.
func readCache(path, space string) (*Version, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var c struct {
		cached
		Files json.RawMessage `json:"files"`
	}
	if err := json.Unmarshal(raw, &c); err != nil || c.Format != 1 {
		return nil, fmt.Errorf("%s: is no cache of rules that this version of weir knows", path)
	}
	if c.Space != space {
		return nil, fmt.Errorf("%s: holds rules of the space %q", path, c.Space)
	}
	v := &Version{Number: c.Version}
	if v.Files, err = decode(c.Files); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if v.Digest = rulesource.Digest(v.Files); hex.EncodeToString(v.Digest[:]) != c.Digest {
		return nil, fmt.Errorf("%s: is damaged", path)
	}
	return v, nil
}

// sameFiles reports whether two versions are the same, by number and content: after a failover that
// lost the last versions their numbers are given again.
func sameFiles(a, b *Version) bool { return a.Number == b.Number && a.Digest == b.Digest }
