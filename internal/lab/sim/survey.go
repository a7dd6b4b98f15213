package sim

import (
	"cmp"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/weir-rl/weir/internal/lab/accesslog"
	"github.com/weir-rl/weir/internal/util/chars"
	"github.com/weir-rl/weir/rule"
)

// A survey is the result of the first pass over a log: which routes there are, how they answer, and
// what each client does. It finds crowds on one form: many clients that hardly do anything except
// send the same form, each about equally often. A limit for each client cannot tell them from
// others.
type survey struct {
	requests, users int64
	index           map[string]int32
	routes          []route
	byClient        map[uint64]*surveyed
}

// route is reading or writing one path, cut to two segments.
type route struct {
	path      string
	write     bool
	truncated bool // some paths had more segments
	requests  int64
	answers   int64
	bad       int64 // 401, 403, 429, 5xx
	crowd     int   // clients of the crowd on it
}

// surveyed is one client.
type surveyed struct {
	requests, writes int32
	ok, answers      int32
	routes           []visits // the first of them
	crowd            bool
}

type visits struct{ route, requests int32 }

const (
	surveyClients = 200_000
	surveyRoutes  = 4096
	surveyVisits  = 16 // routes of one client that are told apart

	busiestRoutes = 10
	badRoute      = 0.2 // of its answers
	fewestOnRoute = 100 // requests
	mostForms     = 64  // writing routes on which crowds are looked for
	crowdClients  = 50
	crowdTimes    = 3    // times the median of a crowd's writes, at most
	crowdWrites   = 0.9  // of a client's writes on the form
	crowdVisits   = 0.25 // of the crowd, to make a route one of those that the form leads to
	crowdActive   = 0.1  // of a client's requests are writes
	crowdElse     = 2    // requests elsewhere, or a third of its requests
	crowdFew      = 20   // requests, of the median client of a crowd, at most
	poorOK        = 0.5
	fewestAnswers = 5
)

func newSurvey() *survey {
	return &survey{index: map[string]int32{}, byClient: map[uint64]*surveyed{}}
}

// answered reports whether the status of a request shows how it was answered and, if so, whether
// well.
func answered(e *accesslog.Entry) (tells, good bool) {
	status := e.Get(accesslog.FieldStatus)
	if len(status) != 3 {
		return false, false
	}
	switch status[0] {
	case '2', '3':
		return true, true
	case '4':
		return string(status) != "429", false
	}
	return false, false
}

// poor reports whether a key was answered badly.
func poor(ok, answers int32) bool {
	return answers >= fewestAnswers && float64(ok) < poorOK*float64(answers)
}

// routePath cuts the path of a request to two segments.
func routePath(e *accesslog.Entry) (path string, truncated bool) {
	path = rule.NormalPath(chars.View(e.Get(accesslog.FieldPath)))
	at := 0
	for range 3 {
		next := strings.IndexByte(path[at:], '/')
		if next < 0 {
			return path, false
		}
		at += next + 1
	}
	return path[:at-1], true
}

// add counts a request.
func (s *survey) add(e *accesslog.Entry) {
	s.requests++
	ip, user := e.Get(accesslog.FieldIP), e.Get(accesslog.FieldUser)
	if user != nil {
		s.users++
	}
	write := isWrite(e.Get(accesslog.FieldMethod))
	at := s.routeOf(e, write)
	if at >= 0 {
		r := &s.routes[at]
		r.requests++
		if status := e.Get(accesslog.FieldStatus); len(status) == 3 {
			r.answers++
			switch {
			case status[0] == '5', string(status) == "401", string(status) == "403", string(status) == "429":
				r.bad++
			}
		}
	}
	c := s.client(ip, user)
	if c == nil {
		if ip == nil && user == nil || len(s.byClient) >= surveyClients {
			return
		}
		c = &surveyed{}
		s.byClient[clientOf(ip, user)] = c
	}
	c.requests++
	if write {
		c.writes++
	}
	if tells, good := answered(e); tells {
		c.answers++
		if good {
			c.ok++
		}
	}
	if at < 0 {
		return
	}
	for i := range c.routes {
		if c.routes[i].route == at {
			c.routes[i].requests++
			return
		}
	}
	if len(c.routes) < surveyVisits {
		c.routes = append(c.routes, visits{at, 1})
	}
}

// routeOf returns the number of a request's route; below 0 if there are too many.
func (s *survey) routeOf(e *accesslog.Entry, write bool) int32 {
	path, truncated := routePath(e)
	if path == "" || len(path) > maxValue {
		return -1
	}
	kind := "r"
	if write {
		kind = "w"
	}
	at, ok := s.index[kind+path]
	if !ok {
		if len(s.routes) >= surveyRoutes {
			return -1
		}
		at = int32(len(s.routes))
		path = strings.Clone(path)
		s.index[kind+path] = at
		s.routes = append(s.routes, route{path: path, write: write})
	}
	s.routes[at].truncated = s.routes[at].truncated || truncated
	return at
}

func clientOf(ip, user []byte) uint64 {
	if ip == nil {
		ip = user
	}
	return xxhash.Sum64(ip)
}

// client returns the state of a client; nil if it is not known.
func (s *survey) client(ip, user []byte) *surveyed {
	if ip == nil && user == nil {
		return nil
	}
	return s.byClient[clientOf(ip, user)]
}

// suspect reports whether something other than its demand speaks against a client.
func (c *surveyed) suspect() bool { return c != nil && (c.crowd || poor(c.ok, c.answers)) }

// on returns how often a client used a route.
func (c *surveyed) on(route int32) int32 {
	for _, v := range c.routes {
		if v.route == route {
			return v.requests
		}
	}
	return 0
}

// candidates finds the crowds. It returns the routes that may deserve a limit of their own: routes
// with most requests (when reading, only whole folders), routes that answer badly, and routes with
// a crowd.
func (s *survey) candidates() []*route {
	forms := 0
	byRequests := make([]*route, 0, len(s.routes))
	for i := range s.routes {
		byRequests = append(byRequests, &s.routes[i])
	}
	slices.SortStableFunc(byRequests, func(a, b *route) int { return cmp.Compare(b.requests, a.requests) })
	for _, r := range byRequests {
		if r.write && forms < mostForms && r.requests >= crowdClients {
			forms++
			s.findCrowd(s.index["w"+r.path])
		}
	}
	var list []*route
	for i, r := range byRequests {
		if r.plain() && (i < busiestRoutes && (r.write || r.truncated) || r.crowd > 0 || r.abused()) &&
			len(list) < 3*busiestRoutes {
			list = append(list, r)
		}
	}
	return list
}

// findCrowd marks the clients of the crowd on a writing route, if there is one.
func (s *survey) findCrowd(form int32) {
	var writers []*surveyed
	var writes []int32
	visited := map[int32]int{}
	for _, c := range s.byClient {
		if n := c.on(form); n > 0 {
			writers, writes = append(writers, c), append(writes, n)
			for _, v := range c.routes {
				visited[v.route]++
			}
		}
	}
	if len(writers) < crowdClients {
		return
	}
	slices.Sort(writes)
	most := crowdTimes * writes[len(writes)/2]
	near := func(route int32) bool { return float64(visited[route]) >= crowdVisits*float64(len(writers)) }
	var members []*surveyed
	var requests []int32
	alike := 0
	for _, c := range writers {
		onForm, nearby := int32(0), int32(0)
		for _, v := range c.routes {
			if !near(v.route) {
				continue
			}
			nearby += v.requests
			if s.routes[v.route].write {
				onForm += v.requests
			}
		}
		if float64(onForm) >= crowdWrites*float64(c.writes) && float64(c.writes) >= crowdActive*float64(c.requests) &&
			c.requests-nearby <= max(crowdElse, c.requests/3) {
			members, requests = append(members, c), append(requests, c.requests)
			if c.on(form) <= most {
				alike++
			}
		}
	}
	// Some of the crowd send the form more often: they still belong to it.
	slices.Sort(requests)
	if alike < crowdClients || 2*alike < len(writers) || requests[len(requests)/2] > crowdFew {
		return
	}
	for _, c := range members {
		c.crowd = true
	}
	s.routes[form].crowd = len(members)
}

// abused reports whether a large share of the answers on the route is bad.
func (r *route) abused() bool { return r.requests >= fewestOnRoute && r.badShare() >= badRoute }

func (r *route) badShare() float64 {
	if r.answers == 0 {
		return 0
	}
	return float64(r.bad) / float64(r.answers)
}

// plain reports whether the path may stand in a rule as it is.
func (r *route) plain() bool {
	return strings.HasPrefix(r.path, "/") && !strings.ContainsFunc(r.path, func(c rune) bool {
		return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' ||
			strings.ContainsRune("/._~-", c))
	})
}

// pattern writes the path as a rule's condition does.
func (r *route) pattern() string {
	if r.truncated {
		return r.path + "/**"
	}
	return r.path
}

// slug makes a name of the path.
func (r *route) slug() string {
	name := strings.Trim(strings.Map(func(c rune) rune {
		if c == '/' || c == '.' || c == '~' {
			return '-'
		}
		return c
	}, strings.ToLower(r.path)), "-")
	if name == "" {
		name = "root"
	}
	if !r.write {
		name = "read-" + name
	}
	return name
}
