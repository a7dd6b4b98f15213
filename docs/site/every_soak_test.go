//go:build soak

package site

import (
	"strings"
	"testing"
)

// TestEveryPage opens each page of the site in both themes and at both widths.
func TestEveryPage(t *testing.T) {
	pages := []string{""}
	for _, page := range docsPages(t) {
		pages = append(pages, strings.TrimSuffix(sitePath(page), ".md")+".html")
	}
	inBrowser(t, built(t), pages, true)
}
