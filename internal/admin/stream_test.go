package admin

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir/internal/door/auth"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/recent"
	"github.com/weir-rl/weir/internal/testkit/doortest"
	"github.com/weir-rl/weir/rule"
)

// client reads a stream within a bubble of synctest: a ResponseWriter whose writes wait for a turn.
type client struct {
	header http.Header
	status int

	mu   sync.Mutex
	text strings.Builder
	hold chan struct{} // writes wait until it is closed; nil is never
}

func (c *client) Header() http.Header { return c.header }
func (c *client) WriteHeader(s int)   { c.status = s }
func (c *client) FlushError() error   { return nil }
func (c *client) Write(p []byte) (int, error) {
	c.mu.Lock()
	hold := c.hold
	c.mu.Unlock()
	if hold != nil {
		<-hold
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text.Write(p)
}

// event is one that came.
type event struct{ name, id, data string }

// events are those that came so far, and comments.
func (c *client) events() (list []event, comments int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for block := range strings.SplitSeq(c.text.String(), "\n\n") {
		var e event
		for line := range strings.Lines(block) {
			line = strings.TrimSuffix(line, "\n")
			switch name, value, _ := strings.Cut(line, ": "); name {
			case "event":
				e.name = value
			case "id":
				e.id = value
			case "data":
				e.data = value
			case "":
				comments++
			}
		}
		if e.name != "" {
			list = append(list, e)
		}
	}
	return list, comments
}

func (c *client) of(name string) (list []event) {
	all, _ := c.events()
	for _, e := range all {
		if e.name == name {
			list = append(list, e)
		}
	}
	return list
}

// follow opens the stream of decisions as a role; what it returns ends it.
func (w *whole) follow(t *testing.T, role, query string, headers ...string) (*client, func()) {
	t.Helper()
	return w.open(t, role, streamPath+query, headers...)
}

// open opens a stream as a role; what it returns ends it.
func (w *whole) open(t *testing.T, role, target string, headers ...string) (*client, func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := httptest.NewRequestWithContext(ctx, "GET", "http://127.0.0.1:6070"+target, nil)
	r.Header.Set("Authorization", "Bearer "+role+"-token")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	c := &client{header: http.Header{}}
	done := make(chan struct{})
	w.followed = done
	go func() { defer close(done); w.ServeHTTP(c, r) }()
	return c, func() { cancel(); <-done }
}

// TestStreamOutlivesNoToken: a stream ends within two seconds after its token went from the file or
// got another role, or its login ended; the others go on, and none of that is a guess.
func TestStreamOutlivesNoToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tokens := doortest.Tokens[auth.Tokens](t, tokenLines()...)
		login := func(role string) string {
			r := httptest.NewRequest("POST", "http://127.0.0.1:6070/login", nil)
			_, cookie, verdict := tokens.Login(r, role+"-token")
			if verdict != auth.Right {
				t.Fatal(verdict)
			}
			return cookie.Name + "=" + cookie.Value
		}
		early := login("operator")
		time.Sleep(auth.LoginTime / 2)
		late, gone := login("operator"), login("viewer")
		time.Sleep(auth.LoginTime/2 - 5*time.Second)
		w := newWhole(t, func(o *Options) { o.Tokens = tokens })

		open := map[string]<-chan struct{}{}
		follow := func(name, role string, headers ...string) {
			_, end := w.follow(t, role, "", headers...)
			open[name] = w.followed
			t.Cleanup(end)
		}
		follow("admin", "admin")
		follow("viewer", "viewer")
		follow("support", "support")
		follow("early login", "", "Authorization", "", "Cookie", early)
		follow("late login", "", "Authorization", "", "Cookie", late)
		follow("login of viewer", "", "Authorization", "", "Cookie", gone)
		ended := func() (list []string) {
			synctest.Wait()
			for name, done := range open {
				select {
				case <-done:
					list = append(list, name)
				default:
				}
			}
			slices.Sort(list)
			return list
		}
		time.Sleep(2 * time.Second)
		if got := ended(); got != nil {
			t.Fatalf("ended too soon: %q", got)
		}
		time.Sleep(5 * time.Second) // the early login is over
		if got := ended(); !slices.Equal(got, []string{"early login"}) {
			t.Errorf("after the end of a login ended %q", got)
		}
		var lines []string
		for _, line := range tokenLines() {
			switch {
			case strings.HasPrefix(line, "viewer-"):
				continue
			case strings.HasPrefix(line, "support-"):
				line = strings.Replace(line, "role=support", "role=viewer", 1)
			}
			lines = append(lines, line)
		}
		path := filepath.Join(t.TempDir(), "tokens")
		if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := tokens.Load(path); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		if got, want := ended(), []string{"early login", "login of viewer", "support", "viewer"}; !slices.Equal(got,
			want) {
			t.Errorf("after the tokens changed ended %q, want %q", got, want)
		}
		if s := tokens.Stats(); s != (auth.TokenStats{}) {
			t.Errorf("counted as guesses: %+v", s)
		}
	})
}

// pictured is a Reader whose overview is as large as one wants; it counts how often it was asked.
type pictured struct {
	named
	points, verdicts int
	asked            func()
}

func (p pictured) Overview(context.Context, string, time.Duration) (*insight.Overview, error) {
	if p.asked != nil {
		p.asked()
	}
	o := &insight.Overview{Requests: 7, Step: 60}
	for i := range p.points {
		o.Series.T = append(o.Series.T, int64(60*i))
		o.Series.Admitted = append(o.Series.Admitted, uint32(i))
		o.Series.Near = append(o.Series.Near, 0)
		o.Series.Refused = append(o.Series.Refused, 1)
	}
	for i := range p.verdicts {
		o.NeedsALook = append(o.NeedsALook, insight.Verdict{Verdict: "strict", Rule: fmt.Sprint(i),
			Sentence: strings.Repeat("long ", 500)})
	}
	return o, nil
}

// TestStream: figures come each second, decisions as they are made, comments each 15 s; after the
// first overview only the last steps of the series come.
func TestStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWhole(t, nil)
		w.o.Insight = pictured{named: named{w.insight}, points: 360}
		c, end := w.follow(t, "operator", "?views=overview,keys,decisions")
		time.Sleep(3*time.Second + 10*time.Millisecond)
		synctest.Wait()
		overviews := c.of("overview")
		if len(overviews) != 4 || len(c.of("keys")) != 4 ||
			c.header.Get("Content-Type") != "text/event-stream; charset=utf-8" {
			t.Fatalf("%d overviews, %d keys, %v", len(overviews), len(c.of("keys")), c.header)
		}
		for i, e := range overviews {
			var o streamedOverview
			if err := json.Unmarshal([]byte(e.data), &o); err != nil {
				t.Fatal(err)
			}
			if want := 360; i == 0 && (len(o.Series.T) != want || o.Partial) {
				t.Errorf("the first has %d steps, partial %v", len(o.Series.T), o.Partial)
			}
			if i > 0 && (len(o.Series.T) != 3 || !o.Partial || o.Series.T[2] != 359*60 || o.Requests != 7) {
				t.Errorf("event %d: %s", i, e.data)
			}
		}
		d := w.decide(t, rule.Map{"user": "ada", "path": "/api/x"})
		for d.Allowed {
			d = w.decide(t, rule.Map{"user": "ada", "path": "/api/x"})
		}
		time.Sleep(decisionsEvery)
		synctest.Wait()
		decisions := c.of("decisions")
		if len(decisions) != 1 || !strings.Contains(decisions[0].data, d.ID.String()) ||
			!strings.Contains(decisions[0].data, `"shown":"all"`) ||
			!strings.Contains(decisions[0].data, `"node":"n1"`) {
			t.Errorf("%+v", decisions)
		}
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if _, comments := c.events(); comments != 2 {
			t.Errorf("%d comments in half a minute", comments)
		}
		end()

		// Who comes back gets what it has missed, and nothing twice.
		missed := w.decide(t, rule.Map{"user": "ada", "path": "/api/x"})
		for _, last := range []string{decisions[0].id, "", "other-0", "nonsense",
			strings.Split(decisions[0].id, "-")[0] + "-99999999"} {
			c, end := w.follow(t, "operator", "?views=decisions", "Last-Event-ID", last)
			time.Sleep(time.Second)
			synctest.Wait()
			var text strings.Builder
			for _, e := range c.of("decisions") {
				text.WriteString(e.data)
			}
			if strings.Contains(text.String(), missed.ID.String()) != (last == decisions[0].id) ||
				strings.Contains(text.String(), d.ID.String()) {
				t.Errorf("behind %q: %s", last, &text)
			}
			end()
		}
		// Streams are masked, too, except for support that names the key.
		for role, sees := range map[string]bool{"viewer": false, "support": false, "operator": true} {
			c, end := w.follow(t, role, "?views=keys,decisions")
			synctest.Wait()
			w.decide(t, rule.Map{"user": "ada.lovelace", "path": "/api/orders/of-ada", "ip": "198.51.100.7"})
			w.refuse(t)
			time.Sleep(time.Second)
			synctest.Wait()
			text := c.text.String()
			if len(c.of("decisions")) == 0 || strings.Contains(text, "lovelace") != sees {
				t.Errorf("%s: %s", role, text)
			}
			if !sees {
				tellsNothing(t, role+" in a stream", text)
			}
			end()
		}
		c, end = w.follow(t, "support", "?views=decisions&key=user=ada.lovelace")
		synctest.Wait()
		w.refuse(t)
		time.Sleep(time.Second)
		synctest.Wait()
		if text := c.text.String(); !strings.Contains(text, "user=ada.lovelace") || strings.Contains(text, "adams") ||
			strings.Contains(text, "bob") {
			t.Errorf("support, by key: %s", text)
		}
		end()
	})
}

// TestStreamShare: at most 50 decisions a second are shown, and of how many is said.
func TestStreamShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWhole(t, nil)
		c, end := w.follow(t, "operator", "?views=decisions&outcome=denied")
		defer end()
		time.Sleep(time.Second)
		synctest.Wait()
		const all = 400
		for i := range all {
			for range 3 {
				w.decide(t, rule.Map{"user": fmt.Sprint(i), "path": "/api/x"})
			}
		}
		time.Sleep(decisionsEvery)
		synctest.Wait()
		got := c.of("decisions")
		if len(got) != 1 {
			t.Fatalf("%d events", len(got))
		}
		var e StreamedDecisions
		if err := json.Unmarshal([]byte(got[0].data), &e); err != nil {
			t.Fatal(err)
		}
		if n := len(e.Decisions); n == 0 || n > decisionsPerSecond || len(got[0].data) > mostEvent ||
			e.LeftOut != all-n || e.Shown != fmt.Sprintf("1 in %d", (all+n-1)/n) {
			t.Errorf("%d decisions in %d bytes, %d left out, %s", n, len(got[0].data), e.LeftOut, e.Shown)
		}
		if e.Decisions[len(e.Decisions)-1].Attributes["user"] != fmt.Sprint(all-1) {
			t.Error("the newest is not shown")
		}
	})
}

// TestStreamSize: an overview that is too large is shortened, not lost.
func TestStreamSize(t *testing.T) {
	for _, p := range []pictured{{points: 10_000}, {verdicts: 1000}, {points: 10_000, verdicts: 1000}, {verdicts: 3}} {
		synctest.Test(t, func(t *testing.T) {
			w := newWhole(t, nil)
			p.named = named{w.insight}
			w.o.Insight = p
			c, end := w.follow(t, "viewer", "")
			defer end()
			synctest.Wait()
			got := c.of("overview")
			var o streamedOverview
			if len(got) != 1 || json.Unmarshal([]byte(got[0].data), &o) != nil || o.Requests != 7 ||
				len(got[0].data) > mostEvent {
				t.Fatalf("%+v: %d events", p, len(got))
			}
			if want := p.points+p.verdicts > 10; o.Shortened != want || p.points > 0 && len(o.Series.T) == 0 ||
				p.verdicts > 0 && len(o.NeedsALook) == 0 {
				t.Errorf("%d and %d: shortened %v, %d steps, %d verdicts", p.points, p.verdicts, o.Shortened,
					len(o.Series.T), len(o.NeedsALook))
			}
		})
	}
}

// TestSlowReader: for a client that takes nothing no events are made, and the next one says how
// many it missed; others go on.
func TestSlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWhole(t, nil)
		var asked atomic.Int64
		w.o.Insight = pictured{named: named{w.insight}, points: 10, asked: func() { asked.Add(1) }}
		slow, end := w.follow(t, "viewer", "")
		defer end()
		time.Sleep(1500 * time.Millisecond)
		synctest.Wait()
		slow.mu.Lock()
		slow.hold = make(chan struct{})
		slow.mu.Unlock()
		before := asked.Load()
		time.Sleep(100 * time.Second)
		synctest.Wait()
		if asked.Load() > before+1 {
			t.Errorf("%d events were made for a client that takes none", asked.Load()-before)
		}
		quick, endQuick := w.follow(t, "viewer", "")
		defer endQuick()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if n := len(quick.of("overview")); n != 3 {
			t.Errorf("another client got %d events in 2 s", n)
		}
		slow.mu.Lock()
		close(slow.hold)
		slow.hold = nil
		slow.mu.Unlock()
		time.Sleep(3 * time.Second)
		synctest.Wait()
		var left uint64
		for _, e := range slow.of("overview") {
			var o streamedOverview
			if err := json.Unmarshal([]byte(e.data), &o); err != nil {
				t.Fatal(err)
			}
			left += o.LeftOut
		}
		if left < 99 || left > 102 {
			t.Errorf("%d events were left out in 102 s", left)
		}
	})
}

// TestStreams: the 33rd stream is refused, one that ends makes room, and all end with the port.
func TestStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWhole(t, nil)
		w.o.Insight = pictured{named: named{w.insight}}
		var ends []func()
		for range mostStreams {
			_, end := w.follow(t, "viewer", "")
			ends = append(ends, end)
		}
		synctest.Wait()
		if a := w.as("viewer", "GET", streamPath, ""); a.Status != 503 || a.Header.Get("Retry-After") == "" {
			t.Errorf("the 33rd: %d", a.Status)
		}
		ends[0]()
		c, end := w.follow(t, "viewer", "")
		ends[0] = end
		synctest.Wait()
		if len(c.of("overview")) != 1 {
			t.Error("a place that was left is not given")
		}
		w.Close()
		synctest.Wait()
		if a := w.as("viewer", "GET", streamPath, ""); a.Status != 503 || a.Header.Get("Retry-After") == "" ||
			!strings.Contains(a.Body, "going away") {
			t.Errorf("a stream of a server that goes away: %d %s", a.Status, a.Body)
		}
		if a := w.as("operator", "POST", previewPath, `{"files": {"a.yaml": "x"}}`); a.Status != 503 ||
			!strings.Contains(a.Body, "going away") {
			t.Errorf("a preview of a server that goes away: %d %s", a.Status, a.Body)
		}
		if a := w.as("viewer", "GET", "/api/v1/session", ""); a.Status != 200 {
			t.Errorf("all else: %d %s", a.Status, a.Body)
		}
		w.streams.mu.Lock()
		open := w.streams.open
		w.streams.mu.Unlock()
		if open != 0 {
			t.Errorf("%d streams outlive the port", open)
		}
		for _, end := range ends {
			end()
		}
	})
}

// TestStreamOverHTTP: a real client hears of a refusal over a real connection, of all nodes.
func TestStreamOverHTTP(t *testing.T) {
	w := newWhole(t, nil)
	s := httptest.NewServer(w)
	defer s.Close()
	defer w.Close()
	r, err := http.NewRequestWithContext(t.Context(), "GET", s.URL+streamPath+"?views=decisions&nodes=all", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer operator-token")
	answer, err := s.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	lines := bufio.NewScanner(answer.Body)
	if !lines.Scan() || lines.Text() != "retry: 1000" {
		t.Fatalf("%d %q", answer.StatusCode, lines.Text())
	}
	id := ""
	for range 3 {
		id = w.decide(t, rule.Map{"user": "ada", "path": "/api/x"}).ID.String()
	}
	for lines.Scan() {
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			if !strings.Contains(data, id) || !strings.Contains(data, `"nodes":{"asked":1,"answered":1}`) {
				t.Errorf("%s is not in %s", id, data)
			}
			return
		}
	}
	t.Errorf("the stream ended: %v", lines.Err())
}

var _ DecisionLog = (*recent.Buffer)(nil)

// TestStreamClocks: the decisions of all nodes are dated by the store, whose clock may be off: a
// stream of them shows each, once, all the same.
func TestStreamClocks(t *testing.T) {
	for _, behind := range []time.Duration{0, 15 * time.Second, 3 * time.Hour, -15 * time.Second, -3 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			w := newWholeBehind(t, behind, nil)
			refuse := func(user string) {
				for range 3 {
					w.decide(t, rule.Map{"user": user, "path": "/api/x"})
				}
			}
			refuse("early")
			time.Sleep(time.Minute)
			c, end := w.follow(t, "operator", "?views=decisions&nodes=all&outcome=denied")
			time.Sleep(1500 * time.Millisecond)
			for i := range 3 {
				refuse(fmt.Sprint("u", i))
				time.Sleep(20 * time.Second)
			}
			synctest.Wait()
			var users []string
			for _, e := range c.of("decisions") {
				var d StreamedDecisions
				if err := json.Unmarshal([]byte(e.data), &d); err != nil {
					t.Fatal(err)
				}
				for _, x := range d.Decisions {
					users = append(users, x.Attributes["user"])
				}
			}
			if !slices.Equal(users, []string{"u0", "u1", "u2"}) {
				t.Errorf("the store is %v behind: %q", behind, users)
			}
			end()
		})
	}
}
