package admin

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir/internal/host/load"
	"github.com/weir-rl/weir/internal/testkit/doortest"
)

// signalsOf is a registry as the admin API wants it.
type signalsOf struct{ *load.Registry }

func (s signalsOf) List() []SignalState {
	var out []SignalState
	for _, i := range s.Registry.List() {
		state := SignalState{Name: i.Name, Kind: string(i.Kind), Used: i.Used, Stale: i.Stale, Error: i.Error,
			Errors: i.Errors}
		if i.Seen {
			age := i.Age.Seconds()
			state.Raw, state.Age = &i.Raw, &age
		}
		if !i.Stale {
			state.Value = &i.Value
		}
		out = append(out, state)
	}
	return out
}

const elasticRules = `
domain: shop
limits:
  - {name: all, allow: 100/s, throttle: {elastic: {signal: queue, curve: {50%: 200%, 80%: 100%, 95%: 25%}}}}
  - {name: busy, allow: 100/s, throttle: {elastic: {signal: cpu, curve: {50%: 200%, 80%: 100%}}}}
`

func TestAdminSignals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, err := load.New(load.Options{Root: fstest.MapFS{}})
		if err != nil {
			t.Fatal(err)
		}
		r.SetUsed([]string{"queue", "cpu"})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { r.Run(ctx) })
		defer func() { cancel(); running.Wait() }()
		l, store, _ := doortest.NewLimiter(t, elasticRules)
		h := New(l, Options{Signals: signalsOf{r}})
		_ = store
		asJSON := []string{"Content-Type", "application/json"}
		put := func(name, body string) doortest.Answer {
			return onAdmin(h, "PUT", "/api/v1/signals/"+name, body, asJSON...)
		}
		list := func() map[string]SignalState {
			a := onAdmin(h, "GET", "/api/v1/signals", "")
			var got struct{ Signals []SignalState }
			if err := json.Unmarshal([]byte(a.Body), &got); err != nil || a.Status != 200 {
				t.Fatalf("%d %s: %v", a.Status, a.Body, err)
			}
			out := map[string]SignalState{}
			for _, s := range got.Signals {
				out[s.Name] = s
			}
			return out
		}
		time.Sleep(time.Second)
		synctest.Wait()
		got := list()
		if len(got) != 6 || !got["cpu"].Stale || got["cpu"].Error == "" || got["cpu"].Errors == 0 ||
			got["cpu"].Value != nil || got["cpu"].Raw != nil || got["cpu"].Limits[0].Share != 1 {
			t.Errorf("%+v", got)
		}
		if a := put("queue", `{"value": 65, "ttl": 30}`); a.Status != 204 || a.Body != "" {
			t.Errorf("%d %s", a.Status, a.Body)
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		q := list()["queue"]
		if q.Value == nil || *q.Value != 65 || *q.Raw != 65 || *q.Age != 20 || q.Stale || !q.Used ||
			q.Kind != "pushed" ||
			len(q.Limits) != 1 || q.Limits[0] != (ElasticState{"shop", "all", 1.5}) {
			t.Errorf("%+v", q)
		}
		if a := onAdmin(h, "GET", "/api/v1/signals/queue", ""); a.Status != 200 ||
			!strings.Contains(a.Body, `"value": 65`) {
			t.Errorf("%d %s", a.Status, a.Body)
		}
		time.Sleep(11 * time.Second)
		synctest.Wait()
		if q := list()["queue"]; !q.Stale || q.Value != nil || q.Limits[0].Share != 1 {
			t.Errorf("%+v", q)
		}
		for _, c := range []struct {
			method, name, body string
			status             int
			says               string
		}{
			{"PUT", "queue", `{"value": 101}`, 400, "0 to 100"}, {"PUT", "queue", `{"value": -1}`, 400, "0 to 100"},
			{"PUT", "queue", `{}`, 400, "value: is missing"}, {"PUT", "queue", `{"value": null}`, 400, "value: is missing"},
			{"PUT", "queue", `{"value": "80"}`, 400, "the body is"}, {"PUT", "queue", `{"value": 80, "x": 1}`, 400, "the body is"},
			{"PUT", "queue", `{"value": 80} {}`, 400, "goes on"}, {"PUT", "queue", ``, 400, "it is empty"},
			{"PUT", "queue", `{"value": 80, "ttl": -1}`, 400, "ttl"}, {"PUT", "queue", `{"value": 80, "ttl": 1e300}`, 400, "ttl"},
			{"PUT", "queue", `{"value": 80, "a": "` + strings.Repeat("x", 5000) + `"}`, 413, "4 KiB"},
			{"PUT", "cpu", `{"value": 80}`, 400, "measured"}, {"PUT", "a%20b", `{"value": 80}`, 400, "no name"},
			{"PUT", "a/b", `{"value": 80}`, 404, "path"}, {"PUT", "", `{"value": 80}`, 404, "path"}, {"GET", "none", ``, 404, "PUT makes one"},
			{"DELETE", "queue", ``, 405, "PUT"},
		} {
			a := onAdmin(h, c.method, "/api/v1/signals/"+c.name, c.body, asJSON...)
			if a.Status != c.status || !strings.Contains(a.Body+a.Header.Get("Allow"), c.says) {
				t.Errorf("%s %s %.40s: %d %s", c.method, c.name, c.body, a.Status, a.Body)
			}
		}
		if a := onAdmin(h, "PUT", "/api/v1/signals/queue", `{"value": 80}`, "Content-Type", "text/plain"); a.Status != 415 {
			t.Errorf("from a form of a web page: %d %s", a.Status, a.Body)
		}
	})
}
