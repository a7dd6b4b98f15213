package admin

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weir-rl/weir/internal/door/answer"
	"github.com/weir-rl/weir/internal/door/auth"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/recent"
)

// A stream is a long-lived answer: Server-Sent Events, by the HTML standard. Each has its own
// goroutine, which makes an event when it is due, and writes it. While a client reads slowly, the
// goroutine waits in that write, and makes no further events. So a slow client costs one event, and
// the next one counts what it missed. Figures that several streams want are read once.
const (
	streamPath = "/api/v1/stream"
	// mostStreams are open at a time: a page has one while it is in view, and asks every two
	// seconds where it gets none.
	mostStreams = 32
	// streamEvery is the time between two events overview or keys.
	streamEvery = time.Second
	// decisionsEvery is the time between two looks for new decisions.
	decisionsEvery = 200 * time.Millisecond
	// streamAlive is the time between two comments, which show proxies and clients that the stream
	// is alive.
	streamAlive = 15 * time.Second
	// decisionsPerSecond bounds the decisions of a stream.
	decisionsPerSecond = 50
	// mostEvent bounds an event, in bytes, and so the data that waits for a client.
	mostEvent = 64 << 10
	// streamKeys is the default number of keys in an event.
	streamKeys = 20
	// retryAfter is how long a browser waits before it asks again, in ms.
	retryAfter = 1000
)

// The topics of ?views=, which are the names of events, too.
const (
	topicOverview  = "overview"
	topicKeys      = "keys"
	topicDecisions = "decisions"
)

// streams counts the open streams, and keeps the figures that several of them show.
type streams struct {
	mu     sync.Mutex
	open   int
	boot   string // identifies the numbering of decisions, which restarts with the process
	shared map[string]*shared
}

// shared is something that several streams show.
type shared struct {
	mu   sync.Mutex
	at   time.Time
	pace time.Duration // how old it may become, by how long it took to read
	what any
	err  error
}

// enter takes a place for a stream; ok is false if there is none.
func (s *streams) enter() (ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open >= mostStreams {
		return false
	}
	if s.boot == "" {
		var b [6]byte
		_, _ = rand.Read(b[:]) // it never fails
		s.boot = hex.EncodeToString(b[:])
	}
	s.open++
	return true
}

func (s *streams) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open--; s.open == 0 {
		s.shared = nil
	}
}

// mostPace bounds the age of figures that take long to read. With 1,000 rules they are two to three
// seconds old.
const mostPace = 5 * time.Second

// mostShared bounds the figures that are kept for several streams.
const mostShared = 64

// once returns the last result of read for a name if it is young enough, and otherwise calls read.
// Streams that ask at once wait for one result. A result that takes long to read may be older, up
// to most: so old that reading takes half a percent of the time.
func (s *streams) once(name string, young, most time.Duration, read func() (any, error)) (any, error) {
	s.mu.Lock()
	x := s.shared[name]
	if x == nil {
		if len(s.shared) >= mostShared {
			s.shared = nil
		}
		if s.shared == nil {
			s.shared = map[string]*shared{}
		}
		x = new(shared)
		s.shared[name] = x
	}
	s.mu.Unlock()
	x.mu.Lock()
	defer x.mu.Unlock()
	if now := time.Now(); x.at.IsZero() || now.Sub(x.at) >= max(young, x.pace) {
		x.what, x.err = read()
		x.at, x.pace = now, min(200*time.Since(now), most)
	}
	return x.what, x.err
}

// streamed is one stream.
type streamed struct {
	a      *Handler
	w      http.ResponseWriter
	out    *http.ResponseController
	role   auth.Role
	views  []string
	over   time.Duration
	keys   insight.KeysQuery
	q      decisionQuery
	cursor recent.Cursor
	told   map[string]any // figures that were written last, by view
	others elsewhere      // the decisions of other nodes that were seen
	tokens float64        // decisions that may be shown now
	filled time.Time
	fit    int    // decisions that were asked for since the last event with some
	full   bool   // the next overview has its whole series
	missed uint64 // events since the last one that was written
	// welcome reports whether the client may go on. It is called each second.
	welcome func() bool
}

// stream answers GET /api/v1/stream.
func (a *Handler) stream(w http.ResponseWriter, r *http.Request) {
	s, status, err := a.newStream(w, r)
	if status != 0 {
		queryProblem(w, status, err)
		return
	}
	if a.goingAway(w) {
		return
	}
	if !a.streams.enter() { // before any node is asked
		w.Header().Set("Retry-After", "5")
		answer.Problem(w, http.StatusServiceUnavailable,
			fmt.Sprintf(
				"%d streams are open on this node, as many as may be; ask the other endpoints every two seconds", mostStreams), "")
		return
	}
	defer a.streams.leave()
	if status, err := s.before(r.Context()); status != 0 {
		queryProblem(w, status, err)
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(a.end, cancel)()
	s.welcome = func() bool { return a.stillIs(r) }
	s.start(r.Header.Get("Last-Event-ID"))
	h := w.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("X-Accel-Buffering", "no") // a proxy that keeps events back would make them late
	s.run(ctx)
}

// newStream reads a request for a stream. status is 0 if the request is valid.
func (a *Handler) newStream(w http.ResponseWriter, r *http.Request) (s *streamed, status int, err error) {
	v, role := r.URL.Query(), sender(r).Role
	s = &streamed{a: a, w: w, out: http.NewResponseController(w), role: role, full: true, told: map[string]any{}}
	bad := func(field, message string) (*streamed, int, error) {
		return nil, http.StatusBadRequest, &answer.FieldError{Field: field, Message: message}
	}
	views := v.Get("views")
	if views == "" {
		views = topicOverview
	}
	for view := range strings.SplitSeq(views, ",") {
		there := a.o.Insight != nil
		switch view {
		case topicOverview, topicKeys:
		case topicDecisions:
			there = a.o.Decisions != nil
		default:
			return bad("views", "must be of overview, keys and decisions, with commas between them")
		}
		if !there {
			return nil, http.StatusNotFound,
				&answer.FieldError{Field: "views", Message: "there are no " + view + " on this server"}
		}
		if !slices.Contains(s.views, view) {
			s.views = append(s.views, view)
		}
	}
	if s.over, err = parseOver(v.Get("over"), 6*time.Hour); err != nil {
		return nil, http.StatusBadRequest, err
	}
	n := streamKeys
	if text := v.Get("n"); text != "" {
		if n, err = strconv.Atoi(text); err != nil || n < 1 || n > 100 {
			return bad("n", "must be a number of keys from 1 to 100")
		}
	}
	if s.keys, err = a.keysQuery(r, n); err != nil {
		return nil, http.StatusBadRequest, err
	}
	if s.keys.Over > time.Minute { // ?over= is for the overview; keys are of the last minute
		s.keys.Over = time.Minute
	}
	if s.q, status, err = a.readDecisionQuery(v, role); status != 0 {
		return nil, status, err
	}
	if problem, field := a.unknown(s.q.Domain, s.q.Limit); problem != "" {
		return nil, http.StatusNotFound,
			&answer.FieldError{Field: field, Message: strings.TrimPrefix(problem, field+": ")}
	}
	return s, 0, nil
}

// before asks other nodes for the decisions from before the stream. status is 0 if the node in
// question was heard.
func (s *streamed) before(ctx context.Context) (status int, err error) {
	if !s.q.elsewhere || !s.wants(topicDecisions) {
		return 0, nil
	}
	s.elsewhere(0)
	if s.q.node == "" || !s.others.heard.IsZero() {
		return 0, nil
	}
	status, why := s.a.unheard(ctx, s.q.node, s.others.last.nodes.Remark)
	if status == 0 {
		return 0, nil
	}
	return status, why
}

func (s *streamed) wants(view string) bool { return slices.Contains(s.views, view) }

// start begins behind the last decision, or behind the last one that the client has seen.
func (s *streamed) start(lastEventID string) {
	s.tokens, s.filled = decisionsPerSecond, time.Now()
	if s.a.o.Decisions == nil {
		return
	}
	s.cursor = s.a.o.Decisions.Cursor()
	boot, place, ok := strings.Cut(lastEventID, "-")
	if at, err := strconv.ParseUint(place, 10, 64); ok && err == nil && boot == s.a.streams.boot &&
		recent.Cursor(at) <= s.cursor {
		s.cursor = recent.Cursor(at)
	}
}

// run writes events until ctx ends, or the client is gone, or may not see more.
func (s *streamed) run(ctx context.Context) {
	if _, err := fmt.Fprintf(s.w, "retry: %d\n\n", retryAfter); err != nil || s.out.Flush() != nil {
		return
	}
	figures, decisions, alive := time.NewTicker(streamEvery), time.NewTicker(decisionsEvery),
		time.NewTicker(streamAlive)
	defer figures.Stop()
	defer decisions.Stop()
	defer alive.Stop()
	ok := s.figures()
	for last := time.Now(); ok; {
		select {
		case <-ctx.Done():
			return
		case <-figures.C:
			if !s.welcome() {
				return // the client connects again, and gets the error
			}
			// A ticker drops the ticks that nobody waits for.
			now := time.Now()
			if late := now.Sub(last) - streamEvery/2; late > streamEvery &&
				(s.wants(topicOverview) || s.wants(topicKeys)) {
				s.missed += uint64(late / streamEvery)
			}
			last = now
			ok = s.figures()
		case <-decisions.C:
			if s.wants(topicDecisions) {
				ok = s.decisions()
			}
		case <-alive.C:
			_, err := s.w.Write([]byte(": still here\n\n"))
			ok = err == nil && s.out.Flush() == nil
		}
	}
}

// streamProblem is the data of an event problem: it says why there is nothing to show.
type streamProblem struct {
	View   string `json:"view"`
	Detail string `json:"detail"`
}

// figures writes the events overview and keys. An error of reading them becomes an event, too.
func (s *streamed) figures() (ok bool) {
	// The result is shared with other streams, and must not end with this client.
	ctx, cancel := context.WithTimeout(s.a.end, insightPatience)
	defer cancel()
	for _, view := range s.views {
		var data any
		var err error
		ok = true
		switch view {
		case topicOverview:
			data, err = s.a.streams.once(fmt.Sprint("overview ", s.over, " ", s.q.Domain), streamEvery/2, mostPace,
				func() (any, error) {
					return s.a.o.Insight.Overview(ctx, s.q.Domain, s.over)
				})
			if err == nil && s.isNew(view, data) {
				ok = s.overview(*s.a.maskFor(s.role).overview(data.(*insight.Overview)))
			}
		case topicKeys:
			data, err = s.a.streams.once(fmt.Sprintf("keys %d %v", s.role, s.keys), streamEvery/2, mostPace,
				func() (any, error) {
					return s.a.listTopKeys(ctx, s.keys, s.role)
				})
			if err == nil && s.isNew(view, data) {
				ok = s.topKeys(*data.(*TopKeys))
			}
		default:
			continue
		}
		switch {
		case err != nil && s.a.end.Err() != nil:
			return false // the server is closing: the stream ends
		case err != nil:
			ok = s.write("problem", streamProblem{view, err.Error()})
		}
		if !ok {
			return false
		}
	}
	return true
}

// isNew reports whether the figures of a view have changed since the event before.
func (s *streamed) isNew(view string, figures any) bool {
	if s.told[view] == figures {
		return false
	}
	s.told[view] = figures
	return true
}

// lastPoints is how many steps of time, each of step seconds, an overview event holds after the
// first event: the last step, which grows, and the steps that may have ended since the event
// before.
func lastPoints(step int) int { return 3 + int(mostPace/time.Second)/max(step, 1) }

// streamedOverview is the data of an event overview. Partial says that the series holds only the
// last steps, which replace those with the same T. Shortened says that lists were cut, because the
// event would have been too large.
type streamedOverview struct {
	insight.Overview
	Partial   bool   `json:"partial,omitempty"`
	Shortened bool   `json:"shortened,omitempty"`
	LeftOut   uint64 `json:"left_out,omitempty"` // events that a slow client missed
}

func (s *streamed) overview(o insight.Overview) (ok bool) {
	e := streamedOverview{Overview: o, LeftOut: s.missed}
	if !s.full {
		e.Partial, e.Series = true, lastOf(o.Series, lastPoints(o.Step))
	}
	data := encode(e)
	for cut := 256; len(data) > mostEvent && cut > 0; cut /= 4 { // 256, 64, 16, 4, 1
		e.Shortened = true
		if n := len(o.Series.T); n > cut {
			e.Partial, e.Series = true, lastOf(o.Series, cut)
		}
		e.NeedsALook = cutVerdicts(o.NeedsALook, cut/4, cut == 1)
		e.Events = o.Events[max(0, len(o.Events)-cut):]
		e.Sentences = cutTexts(o.Sentences, cut/4, cut == 1)
		data = encode(e)
	}
	if len(data) > mostEvent {
		e.NeedsALook, e.Sentences, e.Events = []insight.Verdict{}, []string{}, []insight.Happening{}
		e.Series = insight.Series{T: []int64{}, Admitted: []uint32{}, Near: []uint32{}, Refused: []uint32{}}
		data = encode(e)
	}
	s.full, s.missed = false, 0
	return s.event(topicOverview, data)
}

// lastOf returns the last n steps of a series.
func lastOf(x insight.Series, n int) insight.Series {
	last := func(v []uint32) []uint32 { return v[max(0, len(v)-n):] }
	return insight.Series{
		T: x.T[max(0, len(x.T)-n):], Admitted: last(x.Admitted), Near: last(x.Near), Refused: last(x.Refused),
		Shadow: last(x.Shadow), Banned: last(x.Banned),
	}
}

// cutVerdicts returns the first n verdicts. If bare, it leaves out their long parts.
func cutVerdicts(list []insight.Verdict, n int, bare bool) []insight.Verdict {
	list = slices.Clone(list[:min(n, len(list))])
	for i := range list {
		list[i].Proposal, list[i].Evidence, list[i].Examples = nil, map[string]float64{}, []string{}
		if bare {
			list[i].Sentence = ""
		}
	}
	return list
}

func cutTexts(list []string, n int, none bool) []string {
	if none {
		return []string{}
	}
	return list[:min(n, len(list))]
}

func (s *streamed) topKeys(k TopKeys) (ok bool) {
	e := struct {
		TopKeys
		LeftOut uint64 `json:"left_out,omitempty"`
	}{k, s.missed}
	data := encode(e)
	for len(data) > mostEvent && len(e.Keys) > 0 {
		e.Keys = e.Keys[:len(e.Keys)/2]
		data = encode(e)
	}
	s.missed = 0
	return s.event(topicKeys, data)
}

// StreamedDecisions is the data of an event decisions.
type StreamedDecisions struct {
	Decisions []recent.Entry `json:"decisions"` // oldest first
	// Shown says which share of the matching decisions since the event before is shown: "1 in 8". A
	// node remembers all refusals, unless there are very many.
	Shown   string         `json:"shown"`
	LeftOut int            `json:"left_out,omitempty"` // decisions that are not shown
	Nodes   *insight.Nodes `json:"nodes,omitempty"`
}

// decisions writes the new decisions, if there are any.
func (s *streamed) decisions() (ok bool) {
	now := time.Now()
	s.tokens = min(decisionsPerSecond, s.tokens+now.Sub(s.filled).Seconds()*decisionsPerSecond)
	s.filled = now
	most := int(s.tokens)
	e := StreamedDecisions{}
	var fit int
	if s.q.elsewhere {
		e.Decisions, fit, e.Nodes = s.elsewhere(most)
		if s.q.node != "" && !s.silent(now) {
			return false
		}
	} else {
		e.Decisions, fit, s.cursor = s.a.o.Decisions.Since(s.cursor, s.q.Query, most)
		s.a.here(e.Decisions)
	}
	if fit == 0 {
		return true
	}
	s.fit += fit
	if len(e.Decisions) == 0 {
		return true // the next event counts them
	}
	s.a.decisionMask(s.role, &s.q.Query).decisions(e.Decisions)
	// If they are too large together, the newest are shown.
	var data []byte
	for {
		e.Shown, e.LeftOut = shareOf(len(e.Decisions), s.fit), s.fit-len(e.Decisions)
		if data = encode(e); len(data) <= mostEvent || len(e.Decisions) <= 1 {
			break
		}
		e.Decisions = e.Decisions[(len(e.Decisions)+1)/2:]
	}
	s.tokens -= float64(len(e.Decisions))
	s.fit = 0
	return s.event(topicDecisions, data)
}

// shareOf formats the share of all things that is shown.
func shareOf(shown, all int) string {
	if shown >= all {
		return "all"
	}
	return "1 in " + strconv.Itoa((all+shown-1)/max(shown, 1))
}

func encode(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(v) // only values that can be
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

func (s *streamed) write(name string, v any) (ok bool) { return s.event(name, encode(v)) }

// event writes one event. The data is one line, because JSON text has no line breaks.
func (s *streamed) event(name string, data []byte) (ok bool) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "id: %s-%d\nevent: %s\ndata: ", s.a.streams.boot, s.cursor, name)
	b.Write(data)
	b.WriteString("\n\n")
	_, err := s.w.Write(b.Bytes())
	return err == nil && s.out.Flush() == nil
}
