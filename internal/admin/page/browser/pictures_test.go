//go:build pictures

package browser

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// rushRules are the rules of a shop that do their jobs in different ways.
const rushRules = `domain: shop
limits:
  - name: login-attempts
    when: { method: POST, path: /login }
    per: [ip]
    allow: 5/min
  # A guess of last year.
  - name: search
    when: { path: /search }
    per: [ip]
    allow: 20/min
  - name: api
    per: [user]
    allow: 1000/h
  - name: api-tighter
    per: [user]
    allow: 40/min
    on_limit: shadow
  - name: exports
    when: { path: /exports/* }
    per: [user]
    allow: 6/min
  - name: exports-by-address
    when: { path: /exports/* }
    per: [ip]
    allow: 6/min
  - name: bulk-orders
    when: { method: POST, path: /orders }
    per: [user]
    if: int(header["x-items"]) > 20
    allow: 30/h
  - name: legacy-import
    when: { path: /old/* }
    per: [ip]
    allow: 100/min
`

// rush is the traffic of the pictures: it goes through the proxy until it is stopped.
type rush struct {
	proxy string
	began time.Time
	stop  chan struct{}
	all   sync.WaitGroup
}

// shop is the service behind the proxy.
func shop(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path == "/login" && r.Header.Get("X-User-Id") == "":
		w.WriteHeader(http.StatusUnauthorized)
	case strings.HasSuffix(r.URL.Path, "/404"):
		w.WriteHeader(http.StatusNotFound)
	default:
		_, _ = io.WriteString(w, "ok")
	}
}

// send sends a request, and returns how long the client is told to wait; 0 if it passed.
func (r *rush) send(method, path, user, ip string, header ...string) time.Duration {
	q, err := http.NewRequest(method, r.proxy+path, nil)
	if err != nil {
		panic(err)
	}
	q.Header.Set("X-Forwarded-For", ip)
	if user != "" {
		q.Header.Set("X-User-Id", user)
	}
	for i := 0; i < len(header); i += 2 {
		q.Header.Set(header[i], header[i+1])
	}
	a, err := http.DefaultClient.Do(q)
	if err != nil {
		return 0
	}
	_, _ = io.Copy(io.Discard, a.Body)
	a.Body.Close()
	if a.StatusCode != http.StatusTooManyRequests {
		return 0
	}
	s, _ := strconv.Atoi(a.Header.Get("Retry-After"))
	return time.Duration(max(1, s)) * time.Second
}

// client does something again and again, each time after about as long as each says, or as long as
// what it did says.
func (r *rush) client(seed uint64, each time.Duration, what func(rnd *rand.Rand) time.Duration) {
	rnd := rand.New(rand.NewPCG(seed, 7))
	r.all.Go(func() {
		for wait := time.Duration(rnd.Float64() * float64(each)); ; {
			select {
			case <-r.stop:
				return
			case <-time.After(wait):
			}
			if wait = what(rnd); wait == 0 {
				wait = time.Duration((0.4 + 1.2*rnd.Float64()) * float64(each))
			}
		}
	})
}

// start lets the clients go.
func (r *rush) start() {
	get := func(path string, user, ip string) time.Duration { return r.send("GET", path, user, ip) }
	for i := range 60 { // shoppers; every eighth is in a hurry, and waits when told
		user, ip := fmt.Sprintf("user-%02d", i), fmt.Sprintf("203.0.113.%d", i+60)
		each, search := 2500*time.Millisecond, 0.25
		if i%8 == 0 {
			each, search = 700*time.Millisecond, 0.6
		}
		r.client(uint64(i), each, func(rnd *rand.Rand) time.Duration {
			switch x := rnd.Float64(); {
			case x < search:
				return get("/search?q=lamp", user, ip)
			case x < search+0.02:
				return r.send("POST", "/login", user, ip)
			case x < search+0.06:
				return r.send("POST", "/orders", user, ip, "X-Items", fmt.Sprint(1+rnd.IntN(6)))
			}
			return get(fmt.Sprintf("/products/%d", rnd.IntN(500)), user, ip)
		})
	}
	for i := range 3 { // an application that leaves a header out
		r.client(uint64(80+i), 9*time.Second, func(*rand.Rand) time.Duration {
			return r.send("POST", "/orders", fmt.Sprintf("till-%d", i+1), "198.51.100.60")
		})
	}
	for i := range 9 { // nightly jobs; three of them share an address
		ip := fmt.Sprintf("192.0.2.%d", 20+max(i, 3))
		r.client(uint64(100+i), 4*time.Second, func(rnd *rand.Rand) time.Duration {
			return get(fmt.Sprintf("/exports/%d.csv", rnd.IntN(90)), fmt.Sprintf("report-%d", i+1), ip)
		})
	}
	// Who guesses passwords does not wait.
	for i, each := range []time.Duration{300 * time.Millisecond, time.Second, 3 * time.Second} {
		r.client(uint64(200+i), each, func(*rand.Rand) time.Duration {
			r.send("POST", "/login", "", fmt.Sprintf("198.51.100.%d", 7+i))
			return 0
		})
	}
	// A crawler comes in waves.
	r.client(300, 25*time.Millisecond, func(rnd *rand.Rand) time.Duration {
		if at := time.Since(r.began).Seconds(); int(at/25)%3 != 1 {
			return time.Second
		}
		get(fmt.Sprintf("/search?page=%d", rnd.IntN(900)), "", "203.0.113.40")
		return 0
	})
}

// picture draws what a tab shows, up to a height, in a file that is small enough for a page.
func (b *tab) picture(out, name string, height int) {
	b.t.Helper()
	file := filepath.Join(out, name)
	b.do(nil, "picture", "file", file+".png", "height", height)
	for _, how := range [][]string{{"-lossless"}, {"-near_lossless", "40"}, {"-near_lossless", "0"}, {"-q", "60"}} {
		if msg, err := exec.Command("cwebp", append(how, "-quiet", "-m", "6", file+".png", "-o", file+".webp")...).CombinedOutput(); err != nil {
			b.t.Fatalf("%v: %s (Debian's package webp)", err, msg)
		}
		if i, err := os.Stat(file + ".webp"); err != nil || i.Size() <= 60_000 {
			break
		}
	}
	if err := os.Remove(file + ".png"); err != nil {
		b.t.Fatal(err)
	}
}

// TestPictures makes the pictures of the documentation (scripts/measure pictures) in the folder
// that WEIR_PICTURES names. It is no test: what it draws is for people to look at. With
// WEIR_PICTURES_ALL=1 it draws each view on the phone, too.
func TestPictures(t *testing.T) {
	out := os.Getenv("WEIR_PICTURES")
	d := chromium(t)
	behind := httptest.NewServer(http.HandlerFunc(shop))
	t.Cleanup(behind.Close)
	s := serve(t, map[string]string{"rules/shop.yaml": rushRules}, "--listen-proxy", "127.0.0.1:0", "--proxy-upstream",
		behind.URL,
		"--identity", "user=header:X-User-Id", "--client-ip-trusted-proxies", "127.0.0.0/8")
	r := &rush{proxy: s.proxy, began: time.Now(), stop: make(chan struct{})}
	t.Cleanup(func() { close(r.stop); r.all.Wait() })
	r.start()
	// The rules are judged each minute, and the charts get a shape.
	for end := time.Now().Add(200 * time.Second); time.Now().Before(end); time.Sleep(time.Second) {
	}
	var id string
	for range 6 {
		_, id = s.ask("path", "/login", "ip", "192.0.2.95", "method", "POST")
	}
	if status, body := s.api("POST", "/api/v1/bans", `{"domain":"shop","limit":"search","key":["ip=203.0.113.40"],"for":"1h","reason":"reads the whole catalogue"}`); status != 200 {
		t.Fatal(body)
	}
	if status, body := s.api("POST", "/api/v1/grants", `{"domain":"shop","limit":"api","key":["user=user-07"],"allow":"5000/h","for":"6h","reason":"moves house"}`); status != 200 {
		t.Fatal(body)
	}
	all := append(views[:len(views):len(views)], struct{ name, path string }{"decision", "/decisions/" + id})
	for theme, l := range map[string]look{"light": {"light", 1200, 800}, "dark": {"dark", 1200, 800},
		"phone": {"light", 390, 844}} {
		b := d.open(t, s.admin, l)
		for _, v := range all {
			if theme == "phone" && v.name != "overview" && v.name != "rule" && v.name != "key" &&
				v.name != "decisions" && os.Getenv("WEIR_PICTURES_ALL") == "" {
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
				b.until("there is a result",
					`() => document.querySelector('.versus') || document.querySelector('main .error')`, nil)
			}
			b.picture(out, v.name+"-"+theme, 1500)
			b.clean(v.name + ", " + theme)
		}
	}
	tokens := serve(t, map[string]string{"rules/shop.yaml": rules,
		"tokens": "0123456789abcdef0123456789abcdef name=ada role=admin\n"}, "--auth-tokens-file", "tokens")
	b := d.open(t, tokens.admin, look{"light", 1200, 500})
	b.visit("/")
	b.picture(out, "login-light", 500)
}
