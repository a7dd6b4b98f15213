package observe

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"unicode/utf8"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
)

// HiddenMark precedes the digits that stand for a secret value.
const HiddenMark = "hidden:"

// ShownDigits is how many digits people see in place of a secret value. KeptDigits is for where the
// digits stand in for the value, so that hardly ever two values share them; they begin alike.
const (
	ShownDigits = 8
	KeptDigits  = 16
)

// Hide replaces a secret value, dst[at:], by HiddenMark and digits of a hash under the seed of a
// Tally. Equal values look alike wherever they are shown, on all nodes that share the seed, and
// nobody without the seed can test a guess.
func Hide(dst []byte, at int, seed uint64, digits int) []byte {
	secret := dst[at:]
	dst = binary.LittleEndian.AppendUint64(dst, seed)
	sum := sha256.Sum256(dst[at:])
	clear(secret) // which dst may have left behind
	clear(dst[at:])
	return hex.AppendEncode(append(dst[:at], HiddenMark...), sum[:digits/2])
}

// CutMark ends a text that was cut.
const CutMark = "…"

// CutAt returns where to cut text so that it has at most most bytes with CutMark, without cutting a
// character in two.
func CutAt[T string | []byte](text T, most int) int {
	n := most - len(CutMark)
	for i := 0; i < utf8.UTFMax-1 && n > 0 && !utf8.RuneStart(text[n]); i++ {
		n--
	}
	return n
}

// Asked returns how many units a request asked of d.Limits[i].
func Asked(r *weir.Request, d *weir.Decision, i int) int64 {
	hits := r.Cost()
	if at := d.Limits[i].Descriptor; at >= 0 && at < len(r.Descriptors) && r.Descriptors[at].HasHits {
		hits = r.Descriptors[at].Hits
	}
	if i >= len(d.Matches.Hits) { // a ban that covers the domain
		return hits
	}
	return algo.Cost(hits, d.Matches.Hits[i].Cost)
}
