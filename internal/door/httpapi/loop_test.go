package httpapi

import (
	"fmt"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/internal/door/forwardauth"
	"github.com/weir-rl/weir/internal/testkit/doortest"
	"github.com/weir-rl/weir/internal/wire/listen"
)

// unlike is what differs between two servers: the time, and what is drawn at random.
var unlike = regexp.MustCompile(
	`(?i)(Date: )[^\r]*|("decision":"|X-Ratelimit-Decision: )[0-9a-z]+|("slot":"|"reservation":")[^"]+`)

// TestLoop: each answer of the door is, byte for byte, the same on the loop as on net/http alone.
func TestLoop(t *testing.T) {
	handler := func() http.Handler {
		l, _, _ := doortest.NewLimiter(t, doortest.ShopRules)
		return New(l,
			Options{ForwardAuth: forwardauth.New(l,
				forwardauth.Options{ClientIP: httplimit.ClientIP{Trusted: doortest.Loopback}})})
	}
	loop := serveTest(t, listen.NewHTTPServer(handler(), listen.HTTPOptions{}))
	plain := listen.NewHTTPServer(handler(), listen.HTTPOptions{})
	raw2, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error)
	go func() { served <- plain.Serve(raw2) }()
	defer func() {
		_ = plain.Close()
		<-served
	}()

	const host = " HTTP/1.1\r\nHost: shop.example\r\n"
	get := func(target string, fields ...string) string {
		return "GET " + target + host + strings.Join(append(fields, ""), "\r\n") + "\r\n"
	}
	post := func(target, body string, fields ...string) string {
		return "POST " + target + host + strings.Join(append(fields, ""), "\r\n") +
			fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body)
	}
	items := func(n int) string {
		one := `{"attributes":{"user":"bob","path":"/api/x"}}`
		return `{"requests":[` + strings.TrimSuffix(strings.Repeat(one+",", n), ",") + `]}`
	}
	auth := func(path string, fields ...string) string {
		return get(path, append(fields, "X-Original-URI: /api/x?user=a", "X-Forwarded-Uri: /api/x",
			"X-Original-Method: GET", "X-Forwarded-For: 198.51.100.7", "X-User: a", "User-Agent: Mozilla/5.0", "Cookie: a=b")...)
	}
	requests := []string{
		get("/api/v1/limit?user=ada&path=/api/x"), get("/api/v1/limit?user=ada&path=/api/x", "Accept: text/plain"),
		get("/api/v1/limit?user=ada&path=%2Fapi%2Fx&hits=0"), get("/api/v1/limit?user=ada&user=bob"), get(
			"/api/v1/limit?hits=x"), get("/api/v1/limit"),
		post("/api/v1/limit", `{"attributes":{"user":"ada","path":"/api/x"}}`),
		post("/api/v1/limit", `{"attributes":{"user":"ada","path":"/api/x"},"hits":5}`,
			"Content-Type: application/json"), post("/api/v1/limit", `{"hits":2000}`),
		post("/api/v1/limit", `{"attributes":{"kind":"two","user":"ada"}}`),
		post("/api/v1/limit", "{"), post("/api/v1/limit", ""), post("/api/v1/limit", `{"a":1}`, "Accept: text/plain"),
		post("/api/v1/limit", strings.Repeat(" ", 1<<17)+"{}"),
		post("/api/v1/limit/batch", items(1)), post("/api/v1/limit/batch", items(3)),
		post("/api/v1/limit/batch", items(100)), post("/api/v1/limit/batch",
			items(1001)), post("/api/v1/limit/batch", "[]"), get("/api/v1/limit/batch"),
		post("/api/v1/release", `{"slot":"none"}`),
		post("/api/v1/reserve", `{"attributes":{"user":"eve","path":"/api/x"}}`), post("/api/v1/commit",
			`{"reservation":"x","hits":1}`), post("/api/v1/cancel", `{"reservation":"x"}`),
		get("/api/v1/openapi.yaml"), get("/healthcheck"), get("/"), get("/nothing/%C3%A4"), get("/api/v1/limit/"),
		"HEAD /api/v1/openapi.yaml" + host + "\r\n", "PUT /api/v1/limit" + host + "\r\n", "OPTIONS *" + host +
			"\r\n",
		auth("/api/v1/forward-auth"), auth("/api/v1/forward-auth/nginx"),
		auth("/api/v1/forward-auth/nginx/shop", "Connection: close"), auth(
			"/api/v1/forward-auth/forwarded/none"), auth("/api/v1/forward-auth/nothing"),
		get("/api/v1/forward-auth/nginx"), auth("/api/v1/forward-auth", "X-Forwarded-Uri: twice"),
	}
	for range 12 { // until limits refuse
		requests = append(requests, post("/api/v1/limit", `{"attributes":{"user":"joe","path":"/api/x"}}`),
			auth("/api/v1/forward-auth/nginx"), auth("/api/v1/forward-auth", "Accept: text/html"))
	}
	check := func(request string) {
		got, want := unlike.ReplaceAllString(raw(t, loop, []byte(request)), "$1$2$3"),
			unlike.ReplaceAllString(raw(t, raw2.Addr().String(), []byte(request)), "$1$2$3")
		if got != want || got == "" {
			t.Errorf("to %.300q\nthe loop answers     %.3000q\nand net/http answers %.3000q", request, got, want)
		}
	}
	for _, request := range requests {
		check(request)
	}
	check(strings.Join(requests[:6], "") + strings.Join(requests[len(requests)-9:], ""))
}
