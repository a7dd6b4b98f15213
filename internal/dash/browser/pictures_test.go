//go:build pictures

package browser

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// TestPictures makes the pictures of the documentation (scripts/pictures) in the folder that
// WEIR_PICTURES names. It is no test: what it draws is for people to look at.
func TestPictures(t *testing.T) {
	out := os.Getenv("WEIR_PICTURES")
	d := chromium(t)
	s := serve(t, nil)
	var id string
	for range 6 {
		_, id = s.ask("path", "/login", "ip", "192.0.2.95", "method", "POST")
	}
	for range 24 { // a minute, so that the charts have a shape
		s.traffic()
		time.Sleep(2500 * time.Millisecond)
	}
	if status, body := s.api("POST", "/api/v1/bans", `{"domain":"shop","limit":"search","key":["ip=203.0.113.40"],"for":"1h","reason":"reads the whole catalogue"}`); status != 200 {
		t.Fatal(body)
	}
	if status, body := s.api("POST", "/api/v1/grants", `{"domain":"shop","limit":"api","key":["user=user-07"],"allow":"5000/h","for":"6h","reason":"moves house"}`); status != 200 {
		t.Fatal(body)
	}
	s.traffic()
	all := append(views[:len(views):len(views)], struct{ name, path string }{"decision", "/decisions/" + id})
	take := func(b *tab, name string, height int) {
		t.Helper()
		file := filepath.Join(out, name)
		b.do(nil, "picture", "file", file+".png", "height", height)
		for _, how := range [][]string{{"-lossless"}, {"-near_lossless", "40"}, {"-near_lossless", "0"}, {"-q", "60"}} {
			if msg, err := exec.Command("cwebp", append(how, "-quiet", "-m", "6", file+".png", "-o", file+".webp")...).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s (Debian's package webp)", err, msg)
			}
			if i, err := os.Stat(file + ".webp"); err != nil || i.Size() <= 60_000 {
				break
			}
		}
		if err := os.Remove(file + ".png"); err != nil {
			t.Fatal(err)
		}
	}
	for theme, l := range map[string]look{"light": {"light", 1200, 800}, "dark": {"dark", 1200, 800}, "phone": {"light", 390, 844}} {
		b := d.open(t, s.admin, l)
		for _, v := range all {
			if theme == "phone" && v.name != "overview" && v.name != "rule" && v.name != "key" && v.name != "decisions" {
				continue
			}
			path := v.path
			if v.name == "overview" || v.name == "rule" {
				path += "?over=15m"
			}
			b.visit(path)
			if v.name == "overview" || v.name == "rule" {
				b.until("the chart is drawn", `() => document.querySelector('.chart canvas')`, nil)
			}
			if v.name == "try" {
				b.do(nil, "click", "selector", "text=/^Try$/")
				b.until("there is a result", `() => document.querySelector('.versus') || document.querySelector('main .error')`, nil)
			}
			take(b, v.name+"-"+theme, 1500)
		}
	}
	tokens := serve(t, map[string]string{"rules/shop.yaml": rules, "tokens": "0123456789abcdef0123456789abcdef name=ada role=admin\n"}, "--auth-tokens-file", "tokens")
	b := d.open(t, tokens.admin, look{"light", 1200, 500})
	b.visit("/")
	take(b, "login-light", 500)
}
