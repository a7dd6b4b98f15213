package httpapi

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/door"
	"github.com/weir-rl/weir/internal/door/answer"
	"github.com/weir-rl/weir/store"
)

// The API for costs that are known only afterwards: reserve an estimate, then commit the real cost
// or cancel. Any client that has the id of a reservation may settle it: it cannot be guessed. More
// than 1,000 hits need trust, as they do at /limit.

const timeoutRule = "must be a number of seconds above 0, and at most 3600"

func parseTimeout(s string) (time.Duration, bool) {
	if number, _ := numberKind(s); !number {
		return 0, false
	}
	seconds, err := strconv.ParseFloat(s, 64)
	if err != nil || !(seconds > 0 && seconds <= weir.MaxReservation.Seconds()) {
		return 0, false
	}
	return max(time.Duration(math.Round(seconds*1e6)), 1) * time.Microsecond, true
}

const estimateRule = "must be an integer from 1 to 2147483647: what the request will cost at most, or about"

// reserve reads the body of a reservation: a question with a timeout, 0 if it has none.
func (d *decoder) reserve(q *question) (timeout time.Duration, err error) {
	d.extra = func(name string) (known bool, err error) {
		if name != "timeout" {
			return false, nil
		}
		if timeout != 0 {
			return true, d.fail(name, "is given twice")
		}
		var ok bool
		if timeout, ok = parseTimeout(d.token()); !ok {
			return true, d.fail(name, timeoutRule)
		}
		return true, nil
	}
	if err = d.question(q); err == nil {
		err = d.end()
	}
	if err == nil && q.hits < 1 {
		err = d.fail("hits", estimateRule)
	}
	return timeout, err
}

func (h *handler) reserve(w http.ResponseWriter, r *http.Request) {
	c := h.call()
	defer h.done(c)
	var timeout time.Duration
	body, err := c.read(r, maxBody)
	if err == nil {
		d := decoder{s: body}
		timeout, err = d.reserve(&c.question)
	}
	if err == nil {
		err = h.ask(c, "")
	}
	if err != nil {
		answer.BadBody(w, r, err)
		return
	}
	if door.NeedsTrust(c.request.Hits) && !h.o.Trust.Trusted(r) {
		forbidden(w, "hits", "more than 1000")
		return
	}
	d := &c.decision
	ctx, trace := door.Begun(r.Context(), h.o.Tracer, door.Reserve, r.Header)
	c.request.Trace = trace
	id, err := h.limiter.Reserve(ctx, &c.request, d, timeout)
	if trace != nil && err == nil {
		h.o.Tracer.Note(trace, slog.Bool("weir.reserved", id != ""))
	}
	door.Followed(h.o.Tracer, trace, err)
	if err != nil {
		storeError(w, err)
		return
	}
	header := w.Header()
	header["Cache-Control"] = answer.NoStore
	header["Content-Type"] = answer.JSONType
	h.o.Headers.Write(header, d)
	c.names = d.LimitedBy(c.names[:0])
	c.out = appendDecision(c.out[:0], d, c.names, nil)
	c.out = append(c.out[:len(c.out)-1], `,"reservation":`...) // in place of the closing brace
	if id == "" {
		c.out = append(c.out, `null,"expires_in":null`...)
	} else {
		c.out = answer.AppendJSON(c.out, id)
		c.out = append(c.out, `,"expires_in":`...)
		c.out = answer.AppendSeconds(c.out, d.ReservationTimeout(timeout).Microseconds())
	}
	c.out = append(c.out, "}\n"...)
	if !d.Allowed {
		w.WriteHeader(http.StatusTooManyRequests)
	}
	_, _ = w.Write(c.out) // a client that hung up misses it; its reservation times out
}

const costRule = "must be an integer from 0 to 2147483647: what the request has cost"

// commit reads {"reservation": "…", "hits": n}; without hits if a reservation is to be cancelled.
func (d *decoder) commit(cancel bool) (id string, hits int64, err error) {
	members := "members \"reservation\" and \"hits\""
	known := "known are reservation and hits"
	if cancel {
		members, known = "member \"reservation\"", "known is reservation"
	}
	if d.peek() != '{' {
		return "", 0, d.fail("body", "must be a JSON object with the %s", members)
	}
	var haveID, haveHits bool
	err = d.object(func(name string) (err error) {
		switch {
		case name == "reservation":
			if haveID {
				return d.fail(name, "is given twice")
			}
			haveID = true
			if d.peek() != '"' {
				return d.fail(name, "must be a string")
			}
			id, err = d.string()
			return err
		case name == "hits" && !cancel:
			if haveHits {
				return d.fail(name, "is given twice")
			}
			var ok bool
			if hits, ok = parseHits(d.token()); !ok || hits < 0 {
				return d.fail(name, costRule)
			}
			haveHits = true
			return nil
		}
		return d.fail(answer.Printable(name), "is not known here (%s)", known)
	})
	switch {
	case err != nil:
	case !haveID:
		err = d.fail("reservation", "is missing")
	case !haveHits && !cancel:
		err = d.fail("hits", "is missing: "+costRule)
	default:
		err = d.end()
	}
	return id, hits, err
}

func (h *handler) commit(w http.ResponseWriter, r *http.Request, cancel bool) {
	c := h.call()
	defer h.done(c)
	body, err := c.read(r, maxBody)
	if err != nil {
		answer.BadBody(w, r, err)
		return
	}
	d := decoder{s: body}
	id, hits, err := d.commit(cancel)
	if err != nil {
		answer.BadBody(w, r, err)
		return
	}
	if door.NeedsTrust(hits) && !h.o.Trust.Trusted(r) {
		forbidden(w, "hits", fmt.Sprintf("more than %d", door.FreeHits))
		return
	}
	act := door.Commit
	if cancel {
		act = door.Cancel
	}
	ctx, trace := door.Begun(r.Context(), h.o.Tracer, act, r.Header)
	ok, err := h.limiter.Reservations().Commit(ctx, id, hits)
	door.Found(h.o.Tracer, trace, "http", ok, err)
	switch {
	case err != nil:
		storeError(w, err)
	case !ok:
		answer.Problem(w, http.StatusNotFound,
			"reservation: is gone (committed, cancelled, timed out), or was never made", "reservation")
	default:
		w.Header()["Cache-Control"] = answer.NoStore
		w.WriteHeader(http.StatusNoContent)
	}
}

// storeError answers for a reservation that the store failed, or cannot hold at all.
func storeError(w http.ResponseWriter, err error) {
	if errors.Is(err, store.ErrNoReservations) {
		answer.ProblemDetails(w, http.StatusNotImplemented, "", "",
			"The store of this Weir cannot hold reservations.", nil)
		return
	}
	answer.StoreError(w)
}
