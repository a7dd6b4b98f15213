package deferred

import (
	"errors"
	"fmt"
	"testing"
)

// One line fills half of a queue, the next one half of the rest; what leaves the queue makes room
// for the line again. One that is empty gets the last place.
func TestShares(t *testing.T) {
	queues(t, func(t *testing.T, open func(Bounds) Queue) {
		ctx := t.Context()
		fill := func(q Queue, line string, size int) (jobs []*Job, err error) {
			for {
				j := job(line)
				j.Body = make([]byte, size)
				if err := q.Put(ctx, j); err != nil {
					return jobs, err
				}
				jobs = append(jobs, j)
			}
		}
		q := open(Bounds{Jobs: 33})
		var greedy []*Job
		for _, c := range []struct {
			line string
			want int
			err  error
		}{{"greedy", 17, ErrShare}, {"second", 8, ErrShare}, {"third", 4, ErrShare}, {"fourth", 2, ErrShare},
			{"fifth", 1, ErrShare}, {"sixth", 1, ErrFull}} {
			jobs, err := fill(q, c.line, 1)
			if len(jobs) != c.want || !errors.Is(err, c.err) || !errors.Is(err, ErrFull) {
				t.Errorf("%s has %d jobs, and then %v; want %d, and %v", c.line, len(jobs), err, c.want, c.err)
			}
			if greedy == nil {
				greedy = jobs
			}
		}
		// One is sent, another dropped, a third one dead: all of these make room.
		if _, err := q.Take(ctx, greedy[0], 1e12); err != nil {
			t.Fatal(err)
		}
		if err := q.Done(ctx, greedy[0], 200); err != nil {
			t.Fatal(err)
		}
		if err := q.Drop(ctx, greedy[1].ID); err != nil {
			t.Fatal(err)
		}
		for _, j := range greedy[2:] {
			if err := q.Fail(ctx, j, 500, "given up"); err != nil {
				t.Fatal(err)
			}
		}
		if jobs, err := fill(q, "greedy", 1); len(jobs) != 9 || !errors.Is(err, ErrShare) {
			t.Errorf("greedy has %d jobs again, and then %v", len(jobs), err)
		}
		// Who retries a dead letter by hand is asked for no share.
		if err := q.Retry(ctx, greedy[2].ID); err != nil {
			t.Error(err)
		}

		// Bytes are shared as well.
		q = open(Bounds{Bytes: 100_000})
		jobs, err := fill(q, "greedy", 3000)
		if len(jobs) < 8 || len(jobs) > 13 || !errors.Is(err, ErrShare) {
			t.Errorf("greedy has %d jobs, and then %v", len(jobs), err)
		}
		for i := range 4 {
			j := job(fmt.Sprint("other", i))
			j.Body = make([]byte, 3000)
			put(t, q, j)
		}
	})
}
