package deferred

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/rueidis"
	"pgregory.net/rapid"

	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/pgtest"
	"github.com/weir-rl/weir/internal/testkit/redistest"
)

func TestMain(m *testing.M) {
	if !effort.All() { // else 100, or what -rapid.checks says
		if err := flag.Set("rapid.checks", "20"); err != nil {
			panic(err)
		}
	}
	os.Exit(pgtest.Main(m))
}

// queues runs a test on all kinds of queue.
func queues(t *testing.T, test func(t *testing.T, open func(Bounds) Queue)) {
	t.Parallel()
	t.Run("file", func(t *testing.T) {
		n := 0
		test(t, func(b Bounds) Queue {
			n++
			q, err := OpenFile(filepath.Join(t.TempDir(), fmt.Sprint("queue", n)), b)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { q.Close() })
			return q
		})
	})
	t.Run("postgres", func(t *testing.T) {
		server := pgtest.Shared(t)
		pool, err := pgxpool.New(t.Context(), server.URL())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		n := 0
		test(t, func(b Bounds) Queue {
			n++
			q, err := NewPostgres(pool, fmt.Sprint("t", n), b)
			if err != nil {
				t.Fatal(err)
			}
			return q
		})
	})
	t.Run("redis", func(t *testing.T) {
		server := redistest.Start(t)
		client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr()}, DisableCache: true,
			ForceSingleClient: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(client.Close)
		n := 0
		test(t, func(b Bounds) Queue {
			n++
			q, err := NewRedis(func() (rueidis.Client, error) { return client, nil }, fmt.Sprintf("t%d:", n), b)
			if err != nil {
				t.Fatal(err)
			}
			return q
		})
	})
}

func job(line string) *Job {
	return &Job{ID: NewID(), Queue: "later", Line: line, Queued: time.Now(), Method: "POST", URI: "/orders",
		Body: []byte("body"), Attributes: map[string]string{"user": line}}
}

func put(t *testing.T, q Queue, j *Job) *Job {
	t.Helper()
	if err := q.Put(t.Context(), j); err != nil {
		t.Fatal(err)
	}
	return j
}

// next returns the head that is due, or nil.
func next(t *testing.T, q Queue) *Job {
	t.Helper()
	j, _, err := q.Next(t.Context(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func state(t *testing.T, q Queue, id string, want State) Ticket {
	t.Helper()
	ticket, err := q.Ticket(t.Context(), id)
	if err != nil || ticket.State != want {
		t.Fatalf("ticket %+v, %v; want state %s", ticket, err, want)
	}
	return ticket
}

func TestQueue(t *testing.T) {
	queues(t, func(t *testing.T, open func(Bounds) Queue) {
		ctx := t.Context()
		q := open(Bounds{Jobs: 4, Dead: 2})
		if j := next(t, q); j != nil {
			t.Fatalf("an empty queue has %+v", j)
		}
		a1, b1, a2 := put(t, q, job("a")), put(t, q, job("b")), put(t, q, job("a"))

		// The head of a line, while the line is kept; then the other line's; then none.
		first := next(t, q)
		if first == nil || first.ID != a1.ID || string(first.Body) != "body" || first.Attributes["user"] != "a" {
			t.Fatalf("got %+v, want %s", first, a1.ID)
		}
		second := next(t, q)
		if second == nil || second.ID != b1.ID {
			t.Fatalf("got %+v, want %s", second, b1.ID)
		}
		if j := next(t, q); j != nil {
			t.Fatalf("both lines are kept, got %s", j.ID)
		}
		// The next one of a line goes when the head that was taken has been sent; a line that was
		// put off stays so.
		if err := q.Postpone(ctx, second, time.Hour); err != nil {
			t.Fatal(err)
		}
		if ok, err := q.Take(ctx, first, time.Minute); !ok || err != nil {
			t.Fatal(ok, err)
		}
		if ok, err := q.Take(ctx, first, time.Minute); ok || err != nil {
			t.Fatal("taken twice", err)
		}
		state(t, q, a1.ID, Active)
		if j := next(t, q); j != nil {
			t.Fatalf("got %s, while %s is being sent", j.ID, a1.ID)
		}
		if err := q.Sent(ctx, second); err != nil { // which is in its line: nothing happens
			t.Fatal(err)
		}
		if err := q.Sent(ctx, first); err != nil {
			t.Fatal(err)
		}
		third := next(t, q)
		if third == nil || third.ID != a2.ID {
			t.Fatalf("got %+v, want %s", third, a2.ID)
		}
		if ok, err := q.Keep(ctx, first, time.Minute); !ok || err != nil {
			t.Fatal(ok, err)
		}
		if ok, err := q.Keep(ctx, second, time.Minute); ok || err != nil {
			t.Fatal("a job in its line has a lease", err)
		}
		if err := q.Drop(ctx, a1.ID); err == nil {
			t.Fatal("a job that is being forwarded was dropped")
		}
		if err := q.Done(ctx, first, 201); err != nil {
			t.Fatal(err)
		}
		if done := state(t, q, a1.ID, Done); done.Status != 201 || done.Attempts != 1 || done.Ended.IsZero() {
			t.Fatalf("%+v", done)
		}
		if err := q.Done(ctx, first, 201); !errors.Is(err, ErrGone) {
			t.Fatal(err)
		}

		// An attempt that failed comes back at the end of its line.
		if ok, err := q.Take(ctx, third, time.Minute); !ok || err != nil {
			t.Fatal(ok, err)
		}
		a3 := put(t, q, job("a"))
		if err := q.Again(ctx, third, 0, 503, "busy"); err != nil {
			t.Fatal(err)
		}
		again := state(t, q, a2.ID, Queued)
		if again.Status != 503 || again.Error != "busy" || again.Attempts != 1 {
			t.Fatalf("%+v", again)
		}
		if j := next(t, q); j == nil || j.ID != a3.ID {
			t.Fatalf("got %+v, want %s", j, a3.ID)
		} else if ok, err := q.Take(ctx, j, time.Minute); !ok || err != nil {
			t.Fatal(ok, err)
		} else if err := q.Sent(ctx, j); err != nil {
			t.Fatal(err)
		}
		back := next(t, q)
		if back == nil || back.ID != a2.ID || back.Attempts != 1 {
			t.Fatalf("got %+v, want %s", back, a2.ID)
		}

		// Dead letters: two are kept, and can be retried.
		put(t, q, job("c"))
		if err := q.Put(ctx, job("c")); !errors.Is(err, ErrFull) {
			t.Fatalf("the fifth job: %v", err)
		}
		if err := q.Fail(ctx, back, 500, "given up"); err != nil {
			t.Fatal(err)
		}
		state(t, q, a2.ID, Failed)
		dead, err := q.List(ctx, Failed, 10)
		if err != nil || len(dead) != 1 || dead[0].ID != a2.ID || dead[0].Error != "given up" {
			t.Fatalf("%+v, %v", dead, err)
		}
		if s, err := q.Stats(ctx); err != nil || s.Jobs != 3 || s.Dead != 1 || s.Bytes == 0 || s.Oldest.IsZero() {
			t.Fatalf("%+v, %v", s, err)
		}
		if err := q.Retry(ctx, a2.ID); err != nil {
			t.Fatal(err)
		}
		if r := state(t, q, a2.ID, Queued); r.Attempts != 0 {
			t.Fatalf("%+v", r)
		}
		if err := q.Retry(ctx, a2.ID); !errors.Is(err, ErrGone) {
			t.Fatal(err)
		}
		if err := q.Drop(ctx, a2.ID); err != nil {
			t.Fatal(err)
		}
		if _, err := q.Ticket(ctx, a2.ID); !errors.Is(err, ErrGone) {
			t.Fatal(err)
		}
		if err := q.Drop(ctx, a2.ID); !errors.Is(err, ErrGone) {
			t.Fatal(err)
		}
		if list, err := q.List(ctx, Queued, 10); err != nil || len(list) != 2 {
			t.Fatalf("%+v, %v", list, err)
		}
		if list, err := q.List(ctx, Done, 10); err != nil || len(list) != 1 || list[0].ID != a1.ID {
			t.Fatalf("%+v, %v", list, err)
		}
	})
}

// A head that is given up makes the next one due.
func TestFailFreesLine(t *testing.T) {
	queues(t, func(t *testing.T, open func(Bounds) Queue) {
		q := open(Bounds{Bytes: 1 << 20})
		first, second := put(t, q, job("a")), put(t, q, job("a"))
		if j := next(t, q); j == nil || j.ID != first.ID {
			t.Fatalf("got %+v", j)
		}
		if err := q.Fail(t.Context(), first, 0, "too old"); err != nil {
			t.Fatal(err)
		}
		if j := next(t, q); j == nil || j.ID != second.ID {
			t.Fatalf("got %+v, want %s", j, second.ID)
		}
	})
}

// Dead letters are bounded by their bytes, too.
func TestDeadLettersHaveBytes(t *testing.T) {
	queues(t, func(t *testing.T, open func(Bounds) Queue) {
		q := open(Bounds{Bytes: 10_000})
		for range 5 {
			j := job("a")
			j.Body = make([]byte, 3000) // 4,000 as base64
			if err := q.Fail(t.Context(), put(t, q, j), 0, "no"); err != nil {
				t.Fatal(err)
			}
		}
		if dead, err := q.List(t.Context(), Failed, 10); err != nil || len(dead) != 2 {
			t.Fatalf("%+v, %v; want 2 that have room", dead, err)
		}
	})
}

// A job whose worker dies goes back to its line.
func TestLeaseEnds(t *testing.T) {
	queues(t, func(t *testing.T, open func(Bounds) Queue) {
		q := open(Bounds{})
		put(t, q, job("a"))
		j := next(t, q)
		if ok, err := q.Take(t.Context(), j, 0); !ok || err != nil {
			t.Fatal(ok, err)
		}
		if back := next(t, q); back == nil || back.ID != j.ID || back.Attempts != 1 {
			t.Fatalf("got %+v", back)
		}
	})
}

func TestOldestDeadLetterMakesRoom(t *testing.T) {
	queues(t, func(t *testing.T, open func(Bounds) Queue) {
		q := open(Bounds{Dead: 2})
		var ids []string
		for i := range 4 {
			j := put(t, q, job(fmt.Sprint("line", i)))
			if err := q.Fail(t.Context(), j, 0, "no"); err != nil {
				t.Fatal(err)
			}
			ids = append(ids, j.ID)
		}
		dead, err := q.List(t.Context(), Failed, 10)
		if err != nil || len(dead) != 2 || dead[0].ID != ids[2] || dead[1].ID != ids[3] {
			t.Fatalf("%+v, %v; want the last two of %v", dead, err, ids)
		}
	})
}

// While a job of a line is being sent the line waits, however it comes to have a head, until the
// attempt or its lease has ended.
func TestLineWaits(t *testing.T) {
	ends := map[string]func(q Queue, j *Job) error{
		"sent":  func(q Queue, j *Job) error { return q.Sent(t.Context(), j) },
		"done":  func(q Queue, j *Job) error { return q.Done(t.Context(), j, 200) },
		"again": func(q Queue, j *Job) error { return q.Again(t.Context(), j, time.Hour, 503, "busy") },
		"fail":  func(q Queue, j *Job) error { return q.Fail(t.Context(), j, 500, "no") },
		"lease": func(q Queue, j *Job) error { _, err := q.Keep(t.Context(), j, 0); return err },
	}
	queues(t, func(t *testing.T, open func(Bounds) Queue) {
		for name, end := range ends {
			q := open(Bounds{})
			a1 := put(t, q, job("a"))
			if ok, err := q.Take(t.Context(), next(t, q), time.Minute); !ok || err != nil {
				t.Fatal(ok, err)
			}
			a2 := put(t, q, job("a")) // into a line that was empty
			a3 := put(t, q, job("a"))
			if ok, err := q.Keep(t.Context(), a1, time.Hour); !ok || err != nil {
				t.Fatal(ok, err)
			}
			if err := q.Drop(t.Context(), a2.ID); err != nil { // which makes a3 the head
				t.Fatal(err)
			}
			if j := next(t, q); j != nil {
				t.Fatalf("%s: got %s, while %s is being sent", name, j.ID, a1.ID)
			}
			// A worker that was asking whether the head may go, and was late to hear that it may
			// not.
			if err := q.Postpone(t.Context(), a3, 0); err != nil {
				t.Fatal(err)
			}
			if j := next(t, q); j != nil {
				t.Fatalf("%s: got %s after it was put off, while %s is being sent", name, j.ID, a1.ID)
			}
			if err := end(q, a1); err != nil {
				t.Fatal(name, err)
			}
			if j := next(t, q); j == nil || j.ID != a3.ID {
				t.Fatalf("%s: got %+v, want %s", name, j, a3.ID)
			}
			if err := q.Drop(t.Context(), a3.ID); err != nil {
				t.Fatal(err)
			}
			_ = q.Fail(t.Context(), a1, 0, "")
			for next(t, q) != nil {
			}
		}
	})
}

// Whatever happens, both queues tell the same of every job.
func TestQueuesAgree(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr()}, DisableCache: true,
		ForceSingleClient: true})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	var n atomic.Int64
	dir := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		ctx := context.Background()
		bounds := Bounds{Jobs: 6, Dead: 50}
		file, err := OpenFile(filepath.Join(dir, fmt.Sprint(n.Add(1))), bounds)
		if err != nil {
			rt.Fatal(err)
		}
		file.db.NoSync = true
		defer file.Close()
		shared, _ := NewRedis(func() (rueidis.Client, error) { return client, nil }, fmt.Sprintf("p%d:", n.Load()),
			bounds)
		var all []*Job
		word := func(err error) string {
			switch {
			case err == nil:
				return "ok"
			case errors.Is(err, ErrFull):
				return "full"
			case errors.Is(err, ErrGone):
				return "gone"
			case errors.Is(err, ErrActive):
				return "active"
			}
			return err.Error()
		}
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			op := rapid.SampledFrom([]string{"put", "put", "put", "take", "take", "sent", "done", "again", "fail",
				"retry", "drop", "lapse"}).Draw(rt, "op")
			if op == "put" || len(all) == 0 {
				j := job(rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "line"))
				if a, b := word(file.Put(ctx, j)), word(shared.Put(ctx, j)); a != b {
					rt.Fatalf("put: %s, %s", a, b)
				}
				all = append(all, j)
				continue
			}
			j := rapid.SampledFrom(all).Draw(rt, "job")
			do := func(q Queue) string {
				switch op {
				case "take":
					ok, err := q.Take(ctx, j, time.Hour)
					if err != nil {
						return word(err)
					}
					return fmt.Sprint(ok)
				case "done":
					ticket, err := q.Ticket(ctx, j.ID)
					if err != nil || ticket.State != Active { // only a worker that took it ends it
						return "not active"
					}
					return word(q.Done(ctx, j, 200))
				case "again":
					ticket, err := q.Ticket(ctx, j.ID)
					if err != nil || ticket.State != Active {
						return "not active"
					}
					return word(q.Again(ctx, j, time.Hour, 503, "busy"))
				case "sent":
					_ = q.Sent(ctx, j)
				case "fail":
					return word(q.Fail(ctx, j, 500, "no"))
				case "retry":
					return word(q.Retry(ctx, j.ID))
				case "drop":
					return word(q.Drop(ctx, j.ID))
				}
				ticket, err := q.Ticket(ctx, j.ID)
				return fmt.Sprint(word(err), ticket.State)
			}
			if a, b := do(file), do(shared); a != b {
				rt.Fatalf("%s %s: the file says %s, Redis %s", op, j.ID, a, b)
			}
		}
		for _, j := range all {
			a, errA := file.Ticket(ctx, j.ID)
			b, errB := shared.Ticket(ctx, j.ID)
			if word(errA) != word(errB) || a.State != b.State || a.Attempts != b.Attempts || a.Status != b.Status ||
				a.Error != b.Error {
				rt.Fatalf("the file: %+v, %v\nRedis: %+v, %v", a, errA, b, errB)
			}
		}
		a, _ := file.Stats(ctx)
		b, _ := shared.Stats(ctx)
		if a.Jobs != b.Jobs || a.Dead != b.Dead {
			rt.Fatalf("%+v, %+v", a, b)
		}
	})
}

// What was queued in a file is there when it is opened again, in order, whatever was under way; a
// file that is not ours is refused.
func TestFileOutlastsProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "queue")
	q, err := OpenFile(path, Bounds{})
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for range 5 {
		want = append(want, put(t, q, job("a")).ID)
	}
	j := next(t, q)
	if ok, err := q.Take(t.Context(), j, time.Hour); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if _, err := OpenFile(path, Bounds{}); err == nil {
		t.Fatal("a file was opened twice")
	}
	q.Close()
	if q, err = OpenFile(path, Bounds{}); err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	var got []string
	for {
		j := next(t, q)
		if j == nil {
			break
		}
		got = append(got, j.ID)
		if ok, err := q.Take(t.Context(), j, time.Hour); !ok || err != nil {
			t.Fatal(ok, err)
		}
		if err := q.Sent(t.Context(), j); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(got, want) {
		t.Fatalf("got %v, want %v", got, want)
	}
}

// The worker keeps to what the limits say, sends what failed again, and gives up in the end.
func TestWorker(t *testing.T) {
	queues(t, func(t *testing.T, open func(Bounds) Queue) {
		q := open(Bounds{})
		ctx, cancel := context.WithCancel(t.Context())
		var (
			mu   sync.Mutex
			sent = map[string]int{}
			held = map[string]bool{}
		)
		finished := make(chan string, 16)
		w := NewWorker(q, Options{
			Attempts: 3, Backoff: time.Millisecond,
			Ask: func(_ context.Context, j *Job) (bool, func(), time.Duration, error) {
				mu.Lock()
				defer mu.Unlock()
				if j.Line == "never" {
					return false, nil, -1, nil
				}
				if !held[j.ID] { // each is held up once
					held[j.ID] = true
					return false, nil, time.Millisecond, nil
				}
				return true, nil, 0, nil
			},
			Send: func(_ context.Context, j *Job) (int, error) {
				mu.Lock()
				defer mu.Unlock()
				sent[j.ID]++
				switch {
				case j.Line == "down":
					return 0, errors.New("nobody listens")
				case j.Line == "flaky" && sent[j.ID] < 3:
					return 503, nil
				}
				finished <- j.ID
				return 200, nil
			},
		})
		var good []*Job
		for range 5 {
			good = append(good, put(t, q, job("good")))
		}
		flaky, down, never := put(t, q, job("flaky")), put(t, q, job("down")), put(t, q, job("never"))
		stopped := make(chan struct{})
		go func() { defer close(stopped); w.Run(ctx) }()
		w.Wake()
		var order []string
		for range 6 {
			if id := <-finished; id != flaky.ID {
				order = append(order, id)
			}
		}
		for i, j := range good {
			if order[i] != j.ID {
				t.Errorf("forwarded %d was %s, want %s", i, order[i], j.ID)
			}
		}
		patience.Until(t, "no jobs are left", func() bool {
			s, err := q.Stats(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return s.Jobs == 0
		})
		cancel()
		<-stopped
		if d := state(t, q, down.ID, Failed); d.Attempts != 3 || d.Error != "nobody listens" {
			t.Errorf("%+v", d)
		}
		if n := state(t, q, never.ID, Failed); n.Attempts != 0 {
			t.Errorf("%+v", n)
		}
		if f := state(t, q, flaky.ID, Done); f.Attempts != 3 || f.Status != 200 {
			t.Errorf("%+v", f)
		}
		if s := w.Stats(); s.Done != 6 || s.Failed != 2 || s.Again != 4 || s.Sent != 11 {
			t.Errorf("%+v", s)
		}
	})
}

// The jobs of a line are sent one after the other, in order, also where the limits admit many at
// once; jobs of several lines at the same time.
func TestWorkerOrder(t *testing.T) {
	queues(t, func(t *testing.T, open func(Bounds) Queue) {
		q := open(Bounds{})
		const lines, each = 3, 20
		var (
			mu      sync.Mutex
			sending = map[string]bool{}
			got     = map[string][]string{}
			want    = map[string][]string{}
		)
		together := make(chan struct{}) // closed when all lines are being sent
		left := make(chan struct{}, lines*each)
		w := NewWorker(q, Options{
			Ask: func(context.Context, *Job) (bool, func(), time.Duration, error) { return true, nil, 0, nil },
			Send: func(ctx context.Context, j *Job) (int, error) {
				mu.Lock()
				if sending[j.Line] {
					t.Errorf("two of line %s are sent at the same time", j.Line)
				}
				sending[j.Line] = true
				got[j.Line] = append(got[j.Line], j.ID)
				if len(sending) == lines && len(got[j.Line]) == 1 && len(got) == lines {
					close(together)
				}
				mu.Unlock()
				select {
				case <-together:
				case <-ctx.Done():
				}
				mu.Lock()
				sending[j.Line] = false
				mu.Unlock()
				left <- struct{}{}
				return 200, nil
			},
		})
		for range each {
			for line := range lines {
				j := put(t, q, job(fmt.Sprint("line", line)))
				want[j.Line] = append(want[j.Line], j.ID)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		stopped := make(chan struct{})
		go func() { defer close(stopped); w.Run(ctx) }()
		for range lines * each {
			<-left
		}
		cancel()
		<-stopped
		if !maps.EqualFunc(got, want, slices.Equal) {
			t.Errorf("sent %v, want %v", got, want)
		}
	})
}

func TestBackoff(t *testing.T) {
	for before, want := range []time.Duration{1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300} {
		for range 100 {
			if d := backoff(time.Second, before); d < want*time.Second/2 || d > want*time.Second {
				t.Fatalf("after %d attempts %v, want up to %v s", before, d, int(want))
			}
		}
	}
}
