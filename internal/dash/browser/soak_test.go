//go:build soak

package browser

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// TestSoak keeps the page open for WEIR_SOAK (10m by default) with 1,000 rules and traffic: the heap
// stays below 60 MB and does not grow.
// It measures, so it wants a machine of its own (scripts/soak-page).
func TestSoak(t *testing.T) {
	long := 10 * time.Minute
	if text := os.Getenv("WEIR_SOAK"); text != "" {
		var err error
		if long, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	var text strings.Builder
	text.WriteString("domain: shop\nlimits:\n")
	for i := range 1000 {
		fmt.Fprintf(&text, "  - { name: rule-%03d, when: { path: /p%d }, per: [ip], allow: 5/min }\n", i, i)
	}
	d := chromium(t)
	s := serve(t, map[string]string{"rules/shop.yaml": text.String()})
	b := d.open(t, s.admin, desktop)
	b.visit("/")
	heap := func() (bytes float64) {
		b.do(&bytes, "heap")
		return bytes / 1e6
	}
	begun, next, warm := time.Now(), time.Now(), 0.0
	for n := 0; time.Since(begun) < long; n++ {
		s.ask("path", fmt.Sprintf("/p%d", n%1000), "ip", fmt.Sprintf("192.0.2.%d", n/7%50))
		time.Sleep(5 * time.Millisecond)
		if time.Now().After(next) {
			at := time.Since(begun)
			now := heap()
			t.Logf("%v: %.1f MB", at.Round(time.Second), now)
			if now > 60 {
				t.Errorf("the heap has %.1f MB after %v", now, at)
			}
			if warm == 0 && at > long/3 {
				warm = now
			}
			next = time.Now().Add(long / 12)
		}
	}
	if end := heap(); warm > 0 && end > warm*1.1+1 { // 1 MB: what lists and charts hold by chance
		t.Errorf("the heap grew from %.1f MB to %.1f MB", warm, end)
	}
	b.clean("soak")
}
