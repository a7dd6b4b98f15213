package sparselog

import (
	"strconv"
	"unicode/utf8"
)

// maxExcerpt bounds an Excerpt.
const maxExcerpt = 200

// Excerpt returns a text whose length a stranger chose as it may stand in a log: a long one is cut,
// and its length added.
func Excerpt(s string) string {
	if len(s) <= maxExcerpt {
		return s
	}
	end := maxExcerpt
	for end > maxExcerpt-utf8.UTFMax && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + "… (" + strconv.Itoa(len(s)) + " bytes)"
}
