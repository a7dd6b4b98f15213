package rulesource

import (
	"crypto/sha256"
	"fmt"

	"github.com/weir-rl/weir/rule/file"
)

// Digest returns the SHA-256 of rule files: of the names, the lengths and the contents, in their
// order. Nodes with the same files have the same digest.
func Digest(sources []file.Source) [sha256.Size]byte {
	h := sha256.New()
	for _, s := range sources {
		// With lengths nothing is ambiguous.
		fmt.Fprintf(h, "%d %s %d ", len(s.Name), s.Name, len(s.Data))
		h.Write(s.Data)
	}
	return [sha256.Size]byte(h.Sum(nil))
}
