// Package suggest finds the word that somebody meant, for "did you mean". Begin with Nearest.
package suggest

import "fmt"

// Nearest returns the word of known that word was most likely meant to be, or "" if none is near.
// It is for programs that read rules or settings and answer with "did you mean".
func Nearest(word string, known []string) string {
	if len(word) > 64 {
		return ""
	}
	best, least := "", 1+max(1, min(3, len(word)/3))
	for _, k := range known {
		if d := Distance(word, k, least); d < least {
			best, least = k, d
		}
	}
	return best
}

// DidYouMean suggests word at the end of an error about an unknown word; "" if word is empty.
func DidYouMean(word string) string {
	if word == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", word)
}

// Distance is the number of insertions, deletions, substitutions and swaps of neighbours that turn
// a into b (optimal string alignment; letters compared without case); at least limit if it is not
// below that.
func Distance(a, b string, limit int) int {
	if abs(len(a)-len(b)) >= limit {
		return limit
	}
	lower := func(c byte) byte {
		if 'A' <= c && c <= 'Z' {
			return c + 'a' - 'A'
		}
		return c
	}
	before := make([]int, len(b)+1)
	row := make([]int, len(b)+1)
	next := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		next[0] = i
		for j := 1; j <= len(b); j++ {
			x, y := lower(a[i-1]), lower(b[j-1])
			d := row[j-1]
			if x != y {
				d++
			}
			d = min(d, row[j]+1, next[j-1]+1)
			if i > 1 && j > 1 && x == lower(b[j-2]) && lower(a[i-2]) == y {
				d = min(d, before[j-2]+1)
			}
			next[j] = d
		}
		before, row, next = row, next, before
	}
	return row[len(b)]
}

func abs(n int) int {
	if n < 0 {
		return -n
	}
	return n
}
