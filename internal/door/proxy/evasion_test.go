package proxy

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
)

// A protocol that carries requests of its own is not tunnelled past the limits; WebSocket is.
func TestNoUpgradeToHTTP(t *testing.T) {
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		protocol := r.Header.Get("Upgrade")
		if protocol == "" {
			fmt.Fprintf(w, "Connection: %q", r.Header["Connection"])
			return
		}
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", protocol)
		w.WriteHeader(http.StatusSwitchingProtocols)
	})
	addr := newProxy(t, up.URL, noLimits)
	for offer, want := range map[string]int{
		"h2c": 200, "H2C": 200, "websocket, h2c": 200, "HTTP/2.0": 200, "TLS/1.3": 200,
		"websocket": 101, "h2cx": 101,
	} {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = fmt.Fprintf(conn,
			"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: %s\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n", offer)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != want {
			t.Errorf("Upgrade: %s: %d, want %d", offer, resp.StatusCode, want)
		}
		_ = conn.Close()
	}
}

// The upstream reads the same host as the rules did, or nothing at all.
func TestHostEvasion(t *testing.T) {
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s", r.Host, r.Header.Get("X-Forwarded-Host"))
	})
	addr := newProxy(t, up.URL, `limits: [{name: shop, when: {host: shop.example}, allow: 0/min}]`)
	for target, want := range map[string]string{
		"/ shop.example":                  "429",
		"/ SHOP.example:80":               "429",
		"/ shop.example.":                 "429",
		"/ Shop.Example.:80":              "429",
		"/ shop.example:":                 "429",
		"/ shop.example:x":                "400",
		"/ shop.example:80:80":            "400",
		"/ shop.example/":                 "400",
		"/ x@shop.example":                "400",
		"/ [shop.example]":                "400",
		"/ [::1":                          "400",
		"http://shop.example/ x":          "429",
		"http://u@shop.example x":         "429",
		"http://b%C3%BCcher.example/ x":   "400",
		"http://[fe80::1%25eth0]:80/ x":   "400",
		"http://other.example.:80/ x":     "other.example:80 other.example:80",
		"/ [2001:db8::1]:8080":            "[2001:db8::1]:8080 [2001:db8::1]:8080",
		"/ shop.example..":                "400",
		"/ shop.example..:80":             "400",
		"/ .shop.example":                 "400",
		"/ shop..example":                 "400",
		"/ .":                             "400",
		"/ :80":                           "400",
		"/ shop.example:0":                "429",
		"/ shop.example:65536":            "400",
		"/ shop.example:http":             "400",
		"/ shop%2Eexample":                "400",
		"/ [abc.de]":                      "400",
		"/ [fe80::1%25eth0]":              "400",
		"http://shop.example../ x":        "400",
		"http://other.example/ shop..x":   "other.example other.example",
		"http://xn--bcher-kva.example/ x": "xn--bcher-kva.example xn--bcher-kva.example",
	} {
		uri, host, _ := strings.Cut(target, " ")
		answer := raw(t, addr, "GET "+uri+" HTTP/1.1\r\nHost: "+host+"\r\nConnection: close\r\n\r\n")
		head, body, _ := strings.Cut(answer, "\r\n\r\n")
		if status, _, _ := strings.Cut(strings.TrimPrefix(head, "HTTP/1.1 "), " "); status != want && body != want {
			t.Errorf("%q: %s %q, want %s", target, status, body, want)
		}
	}
	r, err := http.NewRequest("GET", "http://"+addr+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Host = "shop.example:x"
	resp, err := client(t, true).Do(r)
	read(t, resp, err)
	if resp.StatusCode != 400 {
		t.Errorf("over HTTP/2: %d", resp.StatusCode)
	}
}

// What would end the query in a request line, or at some servers, goes on escaped.
func TestQueryStaysOne(t *testing.T) {
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s key=%s", r.RequestURI, r.URL.Query().Get("key"))
	})
	addr := newProxy(t, up.URL, noLimits)
	r, err := http.NewRequest("GET", "http://"+addr+"/a", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.URL.RawQuery = "key=1 HTTP/1.1#x"
	resp, err := client(t, true).Do(r)
	if got := read(t, resp, err); got != "/a?key=1%20HTTP/1.1%23x key=1 HTTP/1.1#x" {
		t.Errorf("the upstream saw %q", got)
	}
}

func TestTwoAuthorizations(t *testing.T) {
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) { t.Error("the request came through") })
	addr := newProxy(t, up.URL, noLimits)
	answer := raw(t, addr,
		"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n")
	if !strings.HasPrefix(answer, "HTTP/1.1 400 ") {
		t.Errorf("%.80q", answer)
	}
}
