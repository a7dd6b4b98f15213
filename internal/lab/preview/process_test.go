package preview

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/record"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
)

// log is the text of a log. What writes it has ended before it is read.
type log struct{ strings.Builder }

// startsWith lets a world's previews be done by another process than usual, and returns their log.
func (w *world) startsWith(args ...string) *log {
	l := &log{}
	w.apart.SetProcess(args, slog.New(slog.NewTextHandler(l, nil)))
	return l
}

func oneRequest(t *testing.T) (*world, insight.PreviewQuery) {
	w := newWorld(t, fmt.Sprintf(perMinute, 4), record.Options{Fresh: true})
	w.ask(&weir.Request{Attributes: rule.Map{"user": "ada"}})
	return w, insight.PreviewQuery{Files: map[string]string{"shop.yaml": fmt.Sprintf(perMinute, 2)}}
}

// What cannot be replayed by another process is replayed in this one, and the log says so once.
func TestNoProcess(t *testing.T) {
	w, q := oneRequest(t)
	for name, c := range map[string]struct {
		args  []string
		rules *rule.Set
		says  string
	}{
		"another program": {args: []string{"-test.run=^$"}, says: "another program"},
		"rules of no files": {args: []string{replayProcess}, rules: func() *rule.Set {
			l, err := algo.New(algo.Config{Algorithm: algo.FixedWindow, N: 4, Window: 60e9})
			if err != nil {
				t.Fatal(err)
			}
			r := &rule.Rule{Name: "search", Per: []rule.Key{{"user"}},
				Windows: []*rule.Window{{Name: "search", Limit: l}}}
			set, problems := rule.Compile([]*rule.File{{Name: "shop.yaml", Domain: rule.DefaultDomain,
				Rules: []*rule.Rule{r}}}, rule.Options{})
			if len(problems) > 0 {
				t.Fatal(problems)
			}
			return set
		}(), says: "not from files"},
	} {
		t.Run(name, func(t *testing.T) {
			log := w.startsWith(c.args...)
			before := w.apart.rules
			defer func() { w.apart.rules = before }()
			if c.rules != nil {
				w.apart.rules = func() *rule.Set { return c.rules }
			}
			for range 2 {
				if res, err := w.apart.Run(t.Context(), q); err != nil || res.Requests != 1 {
					t.Errorf("%+v, %v", res, err)
				}
			}
			if text := log.String(); strings.Count(text, "in this process") != 1 || !strings.Contains(text, c.says) {
				t.Errorf("it logged %s", text)
			}
		})
	}
}

// A process that takes too long in a part without a bound of its own is ended.
func TestTooLong(t *testing.T) {
	if _, ok := processorTime(); !ok {
		t.Skip("on " + runtime.GOOS + " nobody knows how long a process has been on a processor")
	}
	w, q := oneRequest(t)
	log := w.startsWith(replayProcess, "1ms")
	q.Files["shop_test.yaml"] = "tests:\n" +
		strings.Repeat(
			"  - name: many\n    steps: [{ send: { user: ada, times: 10000000 }, expect: { allowed: true } }]\n", 100)
	if _, err := w.apart.Run(t.Context(), q); err == nil ||
		!strings.Contains(err.Error(), "loading and trying the rules took more than 1ms of the processor") {
		t.Error(err)
	}
	if !onlyUnlowered(t, log.String()) {
		t.Errorf("it logged %s", log)
	}
}

// endless is a test of rules that goes on for long.
const endless = "tests:\n  - name: long\n    steps:\n      - send: { user: ada, times: 10000000 }\n" +
	"      - send: { user: ada, times: 10000000 }\n      - send: { user: ada, times: 10000000 }\n"

// Tests of rules that take too long are a problem of their file, wherever they run.
func TestTestsTooLong(t *testing.T) {
	w, q := oneRequest(t)
	defer func(before time.Duration) { mostTested = before }(mostTested)
	mostTested = time.Millisecond
	w.startsWith(replayProcess, "1h", "1ms")
	q.Files["shop_test.yaml"] = endless
	res, err := w.both(t.Context(), q)
	if err != nil || len(res.Problems) != 1 || res.Requests != 0 {
		t.Fatalf("%+v, %v", res, err)
	}
	if p := res.Problems[0]; p.File != "shop_test.yaml" || p.Line != 2 || !strings.Contains(p.Message, "long: ") ||
		!strings.Contains(p.Message, "1ms of the processor") {
		t.Errorf("%+v", p)
	}
}

// A preview that nobody waits for ends in the middle of a test, too.
func TestTestsCalledOff(t *testing.T) {
	w, q := oneRequest(t)
	defer func(before time.Duration) { mostTested = before }(mostTested)
	mostTested = time.Hour
	w.startsWith(replayProcess, "1h", "1h")
	q.Files["shop_test.yaml"] = endless
	for name, p := range map[string]*Preview{"in this process": w.preview, "in another one": w.apart} {
		ctx, cancel := context.WithCancel(t.Context())
		q.Progress = func(p insight.PreviewProgress) {
			if p.Phase == "tests" {
				time.AfterFunc(20*time.Millisecond, cancel) // of seconds that the tests take
			}
		}
		if res, err := p.Run(ctx, q); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %+v, %v", name, res, err)
		}
		cancel()
	}
}

// What a process writes to its standard error is in the log, and no more than the beginning of it.
func TestHead(t *testing.T) {
	var h head
	for range 3 {
		if n, err := fmt.Fprint(&h, strings.Repeat("x", mostHead-5)); n != mostHead-5 || err != nil {
			t.Error(n, err)
		}
	}
	if len(h.text) != mostHead {
		t.Errorf("it keeps %d bytes", len(h.text))
	}
}

// Records are after their way the same, and what ends too early is an error.
func TestSend(t *testing.T) {
	g := &record.Gathered{Nodes: insight.Nodes{Asked: 3, Answered: 2, Remark: "one is away"}, Records: []*record.Record{
		{Node: "a", Seed: 1, Level: 3, Since: [record.Strata]int64{3: 1, 16: 2}, First: 4, Fresh: true, To: 5, Gaps: []record.Gap{{From: 6, To: 7}}, Changes: []int64{8},
			Chunks: []record.Chunk{{Stratum: 3, Data: []byte{0, 255}, From: 8, To: 9, Requests: 10, Size: -1}, {Stratum: 16, Data: []byte("x"), Size: 11}}},
		{Node: "b"},
	}}
	var b bytes.Buffer
	if err := send(gob.NewEncoder(&b), g); err != nil {
		t.Fatal(err)
	}
	sent := b.Bytes()
	if got, err := receive(gob.NewDecoder(bytes.NewReader(sent))); err != nil || !reflect.DeepEqual(got, g) {
		t.Errorf("%+v, %v; want %+v", got, err, g)
	}
	for n := range sent {
		if got, err := receive(gob.NewDecoder(bytes.NewReader(sent[:n]))); err == nil {
			t.Fatalf("of %d of %d bytes: %+v", n, len(sent), got)
		}
	}
}

// What a process says is an error that names what is wrong with it. That it has ended is said only
// if it has.
func TestTalk(t *testing.T) {
	version := fmt.Sprintf("{\"version\":%d}\n", wireVersion)
	noRecord := errors.New("nothing is recorded")
	for text, c := range map[string]struct {
		is   error
		says string
	}{
		"":                                   {errNotBegun, "another program"},
		"PASS\n":                             {errNotBegun, "another program"},
		"{\"version\":0}\n":                  {errNotBegun, "another version"},
		version:                              {errEnded, ""},
		version + "{\"progress\":{\"done\"":  {errEnded, ""},
		version + "panic: no\n":              {nil, "cannot be read: invalid character 'p'"},
		version + "{}\n":                     {nil, "a line that says nothing"},
		version + "{\"error\":\"enough\"}\n": {nil, "enough"},
		version + "{\"window\":1}\n":         {noRecord, ""},
		version + "{\"error\":\"" + strings.Repeat("x", 1<<10):         {nil, "more than the 128 MiB"},
		version + strings.Repeat("{\"progress\":{\"done\":1}}\n", 100): {nil, "more than the 128 MiB"},
	} {
		out := &io.LimitedReader{R: strings.NewReader(text), N: 1 << 10}
		res, err := talk(io.Discard, out, &task{}, func(int64) (*record.Gathered, error) { return nil, noRecord },
			newTeller(nil))
		if err == nil || !strings.Contains(err.Error(), c.says) || c.is != nil && !errors.Is(err, c.is) ||
			errors.Is(err, errEnded) != (c.is == errEnded) {
			t.Errorf("%.60q: %v, %v", text, res, err)
		}
	}
	// It ends before it has read the task, for which a pipe has no room.
	in, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	in.Close()
	out := &io.LimitedReader{R: strings.NewReader(version), N: mostSaid}
	if res, err := talk(to, out, &task{}, nil, newTeller(nil)); err == nil ||
		runtime.GOOS != "windows" && !errors.Is(err, errEnded) {
		t.Errorf("%v, %v", res, err)
	}
}

// What is no task is an error, and nothing at all is the end.
func TestServe(t *testing.T) {
	for text, fails := range map[string]bool{"": false, "what?": true} {
		var out bytes.Buffer
		if err := serve(t.Context(), strings.NewReader(text), &out); err != nil != fails ||
			out.String() != fmt.Sprintf("{\"version\":%d}\n", wireVersion) {
			t.Errorf("%q: %v, %s", text, err, &out)
		}
	}
	// What it was about to do when its input ended does not matter.
	for range 2000 {
		if err := serve(t.Context(), strings.NewReader(""), io.Discard); err != nil {
			t.Fatal(err)
		}
	}
	// As long as nothing comes, it waits.
	in, to := io.Pipe()
	ended := make(chan error)
	go func() { ended <- serve(t.Context(), in, io.Discard) }()
	to.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// Settings and secrets stay here.
func TestEnvironment(t *testing.T) {
	got := environment([]string{"WEIR_REDIS_PASSWORD=x", "TZ=Europe/Berlin", "PATH=/bin", "TZX=y", "GODEBUG=a=1"})
	if want := []string{"TZ=Europe/Berlin", "GODEBUG=a=1", "GOMAXPROCS=1", "GOMEMLIMIT=560MiB"}; !slices.Equal(got,
		want) {
		t.Errorf("%q", got)
	}
}

// The rules in force are the same in another process.
func TestInForce(t *testing.T) {
	set := load(t, fmt.Sprintf(perMinute, 4))
	sources, ok := file.Sources(set)
	if !ok || len(sources) != 1 || sources[0].Name != "shop.yaml" ||
		string(sources[0].Data) != fmt.Sprintf(perMinute, 4) {
		t.Errorf("%q, %t", sources, ok)
	}
}
