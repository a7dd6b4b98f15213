package httplimit

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/fstest"
)

// What a handler behind the middleware might read as another path or host does not come to it.
func TestMiddlewareTargets(t *testing.T) {
	const rules = `limits: [{name: login, when: {path: /login, host: shop.example}, allow: 0/min}]`
	open := func(o Options) func(target, host string) (int, string) {
		limit, err := New(newLimiter(t, nil, rules), o)
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewServer(limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, "%s%s", r.Host, r.URL.Path)
		})))
		t.Cleanup(server.Close)
		return func(target, host string) (int, string) {
			r, err := http.NewRequest("GET", server.URL, nil)
			if err != nil {
				t.Fatal(err)
			}
			r.URL.Opaque, r.Host = target, host // which goes into the request line as it is
			resp, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			return resp.StatusCode, string(body)
		}
	}
	ask := open(Options{})
	for _, target := range []string{"/%2Flogin", "/x%2f..%2flogin", "/%5Clogin", "/login%00"} {
		status, body := ask(target, "shop.example")
		if status != 400 || strings.Contains(body,
			"EncodedSlash: httplimit.KeepEncodedSlash") != (target != "/login%00") {
			t.Errorf("%s: %d %s", target, status, body)
		}
	}
	for _, host := range []string{"shop.example..", ".shop.example", "shop.example:http"} {
		if status, body := ask("/login", host); status != 400 {
			t.Errorf("%s: %d %s", host, status, body)
		}
	}
	for _, host := range []string{"shop.example", "shop.example.", "SHOP.example:0"} {
		if status, _ := ask("/login", host); status != 429 {
			t.Errorf("%s: %d", host, status)
		}
	}
	ask = open(Options{EncodedSlash: KeepEncodedSlash})
	if status, body := ask("/a%2Fb", "x"); status != 200 || body != "x/a/b" {
		t.Errorf("kept: %d %s", status, body)
	}
}

// net/http keeps a # in the path, and http.FileServer resolves the .. behind it: such a target
// would be a way round a rule about the file.
func TestMiddlewareTargetHash(t *testing.T) {
	files := http.FileServerFS(fstest.MapFS{"big.txt": {Data: []byte("big")}, "x/small.txt": {Data: []byte("small")}})
	const rules = `limits: [{name: big, when: {path: /big.txt}, allow: 1/hour, algorithm: sliding_log}]`
	for _, slash := range []EncodedSlash{RefuseEncodedSlash, KeepEncodedSlash} {
		limit, err := New(newLimiter(t, nil, rules), Options{EncodedSlash: slash})
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewServer(limit(files))
		t.Cleanup(server.Close)
		for _, c := range []struct {
			target string
			status int
		}{
			{"/x#/../big.txt", 400}, {"/x/#/../../big.txt", 400}, {"/big.txt#", 400}, {"//#/..//big.txt", 400},
			{"http://shop.example/x#/../big.txt", 400}, {"/#/../x/small.txt", 400}, {"/x#/../big.txt?a#b", 400},
			// here all read one path and one query; it is the one that is allowed
			{"/big.txt?a#b", 200},
			{"/big.txt", 429}, {"/x%23/../big.txt", 429}, {"/x/small.txt", 200},
		} {
			conn, err := net.Dial("tcp", server.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n\r\n", c.target)
			answer, err := io.ReadAll(conn)
			conn.Close()
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(string(answer), fmt.Sprintf("HTTP/1.1 %d ", c.status)) {
				t.Errorf("%s: %s, want %d", c.target, answer, c.status)
			}
			if told := strings.Contains(string(answer), "holds #"); told != (c.status == 400) {
				t.Errorf("%s: %s", c.target, answer)
			}
		}
	}
}
