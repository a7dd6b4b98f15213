package deferred

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/rueidis"
)

//go:embed queue.lua
var queueLua string

var queueScript = rueidis.NewLuaScript(queueLua)

// redisFormat is the version of the data in Redis; it is part of every key.
const redisFormat = "1"

// maxDone bounds the tickets of done jobs in Redis.
const maxDone = 100_000

// Redis is a Queue in Redis 6.2 or newer, which any number of processes share: each line is a
// stream. All of it lies in one slot of a Cluster. How durable it is, Redis' own configuration says
// (appendonly).
type Redis struct {
	client func() (rueidis.Client, error)
	base   string // of all keys
	bounds Bounds
}

var _ Queue = (*Redis)(nil)

// NewRedis returns the queue whose keys begin with prefix. client returns the connection to use, or
// an error that says why there is none; the connection remains the caller's.
func NewRedis(client func() (rueidis.Client, error), prefix string, b Bounds) (*Redis, error) {
	if err := b.check(); err != nil {
		return nil, err
	}
	return &Redis{client: client, base: prefix + redisFormat + ":{deferred}:", bounds: b.filled()}, nil
}

func (q *Redis) run(ctx context.Context, args ...string) (rueidis.RedisResult, error) {
	c, err := q.client()
	if err != nil {
		return rueidis.RedisResult{}, fmt.Errorf("deferred: %w", err)
	}
	return queueScript.Exec(ctx, c, []string{q.base}, args), nil
}

// number runs an operation that answers with a number.
func (q *Redis) number(ctx context.Context, args ...string) (int64, error) {
	r, err := q.run(ctx, args...)
	if err != nil {
		return 0, err
	}
	n, err := r.AsInt64()
	if err != nil {
		return 0, fmt.Errorf("deferred: %s: %w", args[0], err)
	}
	return n, nil
}

func micros(d time.Duration) string { return strconv.FormatInt(d.Microseconds(), 10) }

func number[T int | int64](n T) string { return strconv.FormatInt(int64(n), 10) }

// Put implements Queue.
func (q *Redis) Put(ctx context.Context, j *Job) error {
	text, err := json.Marshal(j)
	if err != nil {
		return fmt.Errorf("deferred: a job: %w", err)
	}
	n, err := q.number(ctx, "put", j.ID, j.Line, string(text), number(q.bounds.Jobs), number(q.bounds.Bytes),
		number(j.Queued.UnixMicro()), j.Queue)
	return putError(n, err)
}

// putError makes an error of the number that a put returns.
func putError(n int64, err error) error {
	switch {
	case err != nil:
		return err
	case n == 0:
		return ErrFull
	case n == 2:
		return ErrShare
	}
	return nil
}

// Next implements Queue.
func (q *Redis) Next(ctx context.Context, lease time.Duration) (*Job, time.Duration, error) {
	r, err := q.run(ctx, "next", micros(lease))
	if err != nil {
		return nil, 0, err
	}
	answer, err := r.ToArray()
	if err != nil || len(answer) < 2 {
		return nil, 0, fmt.Errorf("deferred: next: %w", err)
	}
	found, err := answer[0].AsInt64()
	if err != nil {
		return nil, 0, fmt.Errorf("deferred: next: %w", err)
	}
	if found == 0 {
		wait, err := answer[1].AsInt64()
		return nil, time.Duration(wait) * time.Microsecond, err
	}
	if len(answer) < 3 {
		return nil, 0, errors.New("deferred: next: an answer without attempts")
	}
	text, err := answer[1].ToString()
	if err != nil {
		return nil, 0, fmt.Errorf("deferred: next: %w", err)
	}
	j := new(Job)
	if err := json.Unmarshal([]byte(text), j); err != nil {
		return nil, 0, fmt.Errorf("deferred: a job is damaged: %w", err)
	}
	attempts, err := answer[2].AsInt64()
	j.Attempts = int(attempts)
	return j, 0, err
}

// Postpone implements Queue.
func (q *Redis) Postpone(ctx context.Context, j *Job, d time.Duration) error {
	_, err := q.number(ctx, "postpone", j.Line, micros(d))
	return err
}

// Take implements Queue.
func (q *Redis) Take(ctx context.Context, j *Job, lease time.Duration) (bool, error) {
	n, err := q.number(ctx, "take", j.ID, micros(lease))
	return n == 1, err
}

// Sent implements Queue.
func (q *Redis) Sent(ctx context.Context, j *Job) error {
	_, err := q.number(ctx, "sent", j.ID)
	return err
}

// Keep implements Queue.
func (q *Redis) Keep(ctx context.Context, j *Job, d time.Duration) (bool, error) {
	n, err := q.number(ctx, "keep", j.ID, micros(d))
	return n == 1, err
}

// gone makes ErrGone of a number below 0.
func gone(n int64, err error) error {
	if err == nil && n < 0 {
		return ErrGone
	}
	return err
}

func (q *Redis) end(ctx context.Context, op string, j *Job, status int, why string) error {
	return gone(q.number(ctx, op, j.ID, number(status), why, micros(q.bounds.Keep), number(q.bounds.Dead),
		number(maxDone), number(q.bounds.Bytes)))
}

// Done implements Queue.
func (q *Redis) Done(ctx context.Context, j *Job, status int) error {
	return q.end(ctx, "done", j, status, "")
}

// Fail implements Queue.
func (q *Redis) Fail(ctx context.Context, j *Job, status int, why string) error {
	return q.end(ctx, "fail", j, status, why)
}

// Again implements Queue.
func (q *Redis) Again(ctx context.Context, j *Job, d time.Duration, status int, why string) error {
	return gone(q.number(ctx, "again", j.ID, micros(d), number(status), why))
}

// Retry implements Queue.
func (q *Redis) Retry(ctx context.Context, id string) error {
	n, err := q.number(ctx, "retry", id, number(q.bounds.Jobs), number(q.bounds.Bytes))
	switch {
	case err != nil:
		return err
	case n < 0:
		return fmt.Errorf("%w among the dead letters", ErrGone)
	case n == 0:
		return ErrFull
	}
	return nil
}

// Drop implements Queue.
func (q *Redis) Drop(ctx context.Context, id string) error {
	n, err := q.number(ctx, "drop", id)
	if err == nil && n == 0 {
		return ErrActive
	}
	return gone(n, err)
}

// Ticket implements Queue.
func (q *Redis) Ticket(ctx context.Context, id string) (Ticket, error) {
	c, err := q.client()
	if err != nil {
		return Ticket{}, fmt.Errorf("deferred: %w", err)
	}
	values, err := c.Do(ctx,
		c.B().Hmget().Key(q.base+"job:"+id).Field("state", "queue", "queued", "ended", "attempts", "status",
			"error").Build()).ToArray()
	if err != nil {
		return Ticket{}, fmt.Errorf("deferred: %w", err)
	}
	text := make([]string, len(values))
	for i := range values {
		text[i], _ = values[i].ToString() // a field that is not there is ""
	}
	if text[0] == "" {
		return Ticket{}, ErrGone
	}
	at := func(s string) time.Time {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return time.Time{}
		}
		return time.UnixMicro(n).UTC()
	}
	t := Ticket{ID: id, State: State(text[0]), Queue: text[1], Queued: at(text[2]), Ended: at(text[3]), Error: text[6]}
	t.Attempts, _ = strconv.Atoi(text[4])
	t.Status, _ = strconv.Atoi(text[5])
	return t, nil
}

// List implements Queue.
func (q *Redis) List(ctx context.Context, s State, n int) ([]Ticket, error) {
	c, err := q.client()
	if err != nil {
		return nil, fmt.Errorf("deferred: %w", err)
	}
	set, ok := map[State]string{Queued: "all", Active: "all", Done: "done", Failed: "dead"}[s]
	if !ok {
		return nil, fmt.Errorf("deferred: there is no state %q", s)
	}
	var list []Ticket
	for from := int64(0); len(list) < n; {
		ids, err := c.Do(ctx, c.B().Zrange().Key(q.base+
			set).Min(number(from)).Max(number(from+99)).Build()).AsStrSlice()
		if err != nil {
			return nil, fmt.Errorf("deferred: %w", err)
		}
		for _, id := range ids {
			t, err := q.Ticket(ctx, id)
			if err != nil && !errors.Is(err, ErrGone) {
				return nil, err
			}
			if err == nil && t.State == s && len(list) < n {
				list = append(list, t)
			}
		}
		if len(ids) < 100 {
			break
		}
		from += 100
	}
	return list, nil
}

// Stats implements Queue.
func (q *Redis) Stats(ctx context.Context) (Stats, error) {
	c, err := q.client()
	if err != nil {
		return Stats{}, fmt.Errorf("deferred: %w", err)
	}
	answers := c.DoMulti(ctx,
		c.B().Zcard().Key(q.base+"all").Build(), c.B().Zcard().Key(q.base+"dead").Build(),
		c.B().Hget().Key(q.base+"sum").Field("bytes").Build(),
		c.B().Zrange().Key(q.base+"all").Min("0").Max("0").Withscores().Build())
	jobs, err := answers[0].AsInt64()
	if err != nil {
		return Stats{}, fmt.Errorf("deferred: %w", err)
	}
	dead, _ := answers[1].AsInt64()
	bytes, _ := answers[2].AsInt64()
	st := Stats{Jobs: int(jobs), Dead: int(dead), Bytes: bytes}
	if first, err := answers[3].AsZScores(); err == nil && len(first) > 0 {
		st.Oldest = time.UnixMicro(int64(first[0].Score))
	}
	return st, nil
}

// Close implements Queue. The connection stays open.
func (q *Redis) Close() error { return nil }
