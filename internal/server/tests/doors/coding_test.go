package doors

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// A body with a content coding is a 415 that says so and what is taken instead, at every door that
// reads bodies.
func TestContentCodings(t *testing.T) {
	servertest.InFolder(t, "domain: shop\nlimits: [{ name: api, per: [user], allow: 9/day }]\n")
	p := servertest.Start(t, "serve", "--rules=rules.yaml")
	decisions, admin := "http://"+p.Addr("http"), "http://"+p.Addr("admin")
	send := func(url, coding, body string) (*http.Response, string) {
		t.Helper()
		var b bytes.Buffer
		if strings.Contains(coding, "gzip") {
			z := gzip.NewWriter(&b)
			if _, err := io.WriteString(z, body); err != nil || z.Close() != nil {
				t.Fatal("cannot compress")
			}
		} else {
			b.WriteString(body)
		}
		method := http.MethodPost
		if strings.Contains(url, "/signals/") {
			method = http.MethodPut
		}
		r, err := http.NewRequestWithContext(t.Context(), method, url, &b)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		if coding != "" {
			r.Header.Set("Content-Encoding", coding)
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer, string(text)
	}
	const question = `{"attributes": {"user": "ada"}}`
	for url, body := range map[string]string{
		decisions + "/api/v1/limit":       question,
		decisions + "/api/v1/limit/batch": `{"requests": [` + question + `]}`,
		decisions + "/api/v1/reserve":     question,
		decisions + "/api/v1/commit":      `{"reservation": "x", "hits": 1}`,
		decisions + "/api/v1/cancel":      `{"reservation": "x"}`,
		decisions + "/api/v1/release":     `{"slot": "x"}`,
		decisions + "/json":               `{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "ada"}]}]}`,
		admin + "/api/v1/bans":            `{"limit": "api", "key": "ada", "for": "1h"}`,
		admin + "/api/v1/signals/x":       `{"value": 1}`,
	} {
		for _, coding := range []string{"gzip", "gzip, br"} {
			answer, text := send(url, coding, body)
			if answer.StatusCode != http.StatusUnsupportedMediaType ||
				answer.Header.Get("Accept-Encoding") != "identity" {
				t.Errorf("%s with %s: %d, Accept-Encoding %q: %s", url, coding, answer.StatusCode,
					answer.Header.Get("Accept-Encoding"), text)
			}
			if !strings.HasSuffix(url, "/json") && !strings.Contains(text,
				coding+", which is not read here: send it as it is, without Content-Encoding") {
				t.Errorf("%s with %s: %s", url, coding, text)
			}
		}
		for _, coding := range []string{"", "identity"} {
			if answer, text := send(url, coding, body); answer.StatusCode == http.StatusUnsupportedMediaType ||
				answer.StatusCode == http.StatusBadRequest {
				t.Errorf("%s with %q: %d %s", url, coding, answer.StatusCode, text)
			}
		}
	}
	// A body that is no object for another reason is a 400, as one that is too large is a 413.
	if answer, text := send(decisions+"/api/v1/limit", "", "[1]"); answer.StatusCode != http.StatusBadRequest {
		t.Errorf("%d %s", answer.StatusCode, text)
	}
	if answer, text := send(decisions+"/api/v1/limit", "br", strings.Repeat("x", 2<<20)); answer.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("%d %s", answer.StatusCode, text)
	}
}
