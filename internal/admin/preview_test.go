package admin

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestPreview: one at a time; it is followed by events or asked for as JSON, ends when it is told
// to, or with the port.
func TestPreview(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		w := newWhole(t, func(o *Options) { o.Preview = tried{hold: hold} })
		start := func() (path string) {
			t.Helper()
			a := w.as("operator", "POST", previewPath, `{"files": {"shop.yaml": "domain: shop"}, "over": "2h"}`)
			var got struct{ Preview string }
			if err := json.Unmarshal([]byte(a.Body), &got); err != nil || a.Status != 202 ||
				a.Header.Get("Location") != got.Preview {
				t.Fatalf("%d %s", a.Status, a.Body)
			}
			return got.Preview
		}
		path := start()
		if a := w.as("operator", "POST", previewPath, `{"files": {"a.yaml": ""}}`); a.Status != 409 {
			t.Errorf("a second one: %d", a.Status)
		}
		synctest.Wait() // it has told how far it is
		time.AfterFunc(time.Second, func() { close(hold) })
		a := w.as("operator", "GET", path, "", "Accept", "text/event-stream")
		if !strings.HasPrefix(a.Body, "event: progress\ndata: {\"done\":1,\"of\":2,\"phase\":\"then\"}\n\n") ||
			strings.Count(a.Body, "event: progress") < 5 ||
			!strings.Contains(a.Body, "event: result\ndata: {") ||
			!strings.Contains(a.Body, "shop.yaml: domain: shop") {
			t.Errorf("%s", a.Body)
		}
		if a := w.as("operator", "GET", path, ""); a.Status != 200 || !strings.Contains(a.Body, `"requests": 7`) {
			t.Errorf("as JSON: %d %s", a.Status, a.Body)
		}
		time.Sleep(previewKept + time.Second)
		if a := w.as("operator", "GET", path, ""); a.Status != 404 {
			t.Errorf("after ten minutes: %d", a.Status)
		}
		w.o.Preview = tried{hold: make(chan struct{})}
		path = start()
		if a := w.as("operator", "DELETE", path, ""); a.Status != 204 {
			t.Errorf("ended: %d", a.Status)
		}
		if a := w.as("operator", "GET", path, ""); a.Status != 503 || !strings.Contains(a.Body, "ended before") {
			t.Errorf("one that was ended: %d %s", a.Status, a.Body)
		}
		// One that takes a second to notice: whoever ended it can begin another at once.
		w.o.Preview = tried{hold: make(chan struct{}), slow: time.Second}
		path = start()
		if a := w.as("operator", "DELETE", path, ""); a.Status != 204 {
			t.Errorf("ended: %d", a.Status)
		}
		// Nobody waits for it any more: one of two who did connects again in time, and goes for
		// good.
		path = start()
		_, first := w.open(t, "operator", path, "Accept", "text/event-stream")
		_, second := w.open(t, "operator", path, "Accept", jsonText)
		synctest.Wait()
		first()
		second()
		time.Sleep(previewAlone / 2)
		_, second = w.open(t, "operator", path, "Accept", jsonText)
		time.Sleep(2 * previewAlone)
		if a := w.as("operator", "POST", previewPath, `{"files": {"a.yaml": ""}}`); a.Status != 409 {
			t.Errorf("while one waits: %d", a.Status)
		}
		second()
		time.Sleep(previewAlone - 100*time.Millisecond)
		_, third := w.open(t, "operator", path, "Accept", jsonText)
		synctest.Wait()
		third()
		time.Sleep(previewAlone - 100*time.Millisecond) // from then on, and not from when another one left
		if a := w.as("operator", "POST", previewPath, `{"files": {"a.yaml": ""}}`); a.Status != 409 {
			t.Errorf("before its time is over: %d", a.Status)
		}
		time.Sleep(previewAlone)
		path = start()
		w.Close()
		if a := w.as("operator", "GET", path, "", "Accept", "text/event-stream"); !strings.Contains(a.Body,
			"event: problem") {
			t.Errorf("at shutdown: %d %s", a.Status, a.Body)
		}
		for body, status := range map[string]int{
			``: 400, `{}`: 400, `{"files": {}}`: 400, `{"files": {"a": 1}}`: 400, `{"files": {"a": ""}, "x": 1}`: 400, `{"files": {"a": ""}} {}`: 400,
			`{"files": {"a": ""}, "over": "9d"}`: 400, `{"files": {"a": "` + strings.Repeat("x", maxPreview) + `"}}`: 413,
		} {
			if a := w.as("operator", "POST", previewPath, body); a.Status != status {
				t.Errorf("%.40s: %d %s", body, a.Status, a.Body)
			}
		}
	})
}
