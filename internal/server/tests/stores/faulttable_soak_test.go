//go:build soak && unix

package stores

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// A round of the table of faults asks for so many keys of each kind, of so many units each, from so
// many clients at each of two nodes.
const (
	tableKeys    = 6
	tableUnits   = 100
	tableClients = 16
	tablePace    = 40 * time.Millisecond // between two questions of a client
)

// tableAlgorithms are the algorithms of the keys, in turn.
var tableAlgorithms = []string{"fixed_window", "sliding_log"}

// tableKinds are the ways to ask, each with what its rules say of consistency. Each has two nodes
// of its own, so that what they count is of that kind.
var tableKinds = []struct{ name, consistency string }{
	{"decide", "exact"},
	{"lease", "{ lease: 20% }"},
	{"region", "{ regions: { over: 0% } }"},
	{"reservation", "exact"},
}

func tableRules(consistency string) string {
	text := "domain: default\nlimits:\n"
	for _, a := range tableAlgorithms {
		text += fmt.Sprintf(
			"  - { name: %s, when: { as: %s }, per: [key], allow: %d/year, algorithm: %s, consistency: %s }\n",
			a, a, tableUnits, a, consistency)
	}
	return text
}

// tableFault is what happens while the nodes decide.
type tableFault struct {
	name   string
	rounds int
	fresh  bool     // nodes that have seen no fault, and have heard quick answers for some ten seconds
	flags  []string // further settings of the nodes, which are fresh then
	// happens makes the fault while clients ask, and ends it.
	happens func(r *tableRound)
	// lacks says why there is no such fault of a store; "" if there is.
	lacks func(s *tableStore) string
	// slow is a fault in which answers take longer than the nodes wait by what they have heard, as
	// docs/operating/redis.md says in "exact while": what goes over is counted, and bounded.
	slow bool
	// several is a fault in which one answer comes in time, and several one after the other do not.
	several bool
}

var tableFaults = []tableFault{
	{name: "none", rounds: 2, fresh: true, happens: func(r *tableRound) { r.together(func() {}) }},
	{name: "connections cut", rounds: 3, happens: (*tableRound).cuts},
	{name: "node stopped, 0.3 s", rounds: 4, happens: func(r *tableRound) { r.stops(300 * time.Millisecond) }},
	{name: "node stopped, 1.2 s", rounds: 3, happens: func(r *tableRound) { r.stops(1200 * time.Millisecond) }},
	{name: "node stopped, 2.5 s", rounds: 2, happens: func(r *tableRound) { r.stops(2500 * time.Millisecond) }},
	{name: "master repointed", rounds: 2, happens: (*tableRound).repoints, lacks: func(s *tableStore) string { return s.stays }},
	{name: "answers 100 ms late", rounds: 1, fresh: true, slow: true, happens: func(r *tableRound) { r.delays(100 * time.Millisecond) }},
	{name: "answers 300 ms late", rounds: 1, fresh: true, slow: true, happens: func(r *tableRound) { r.delays(300 * time.Millisecond) }},
	{name: "store stopped, 0.3 s", rounds: 3, fresh: true, slow: true, happens: func(r *tableRound) { r.storeStops(300 * time.Millisecond) }},
	{name: "answers 300 ms late, `store.deadline: 1s`", rounds: 1, fresh: true, several: true, flags: waitsASecond, happens: func(r *tableRound) { r.delays(300 * time.Millisecond) }},
	{name: "store stopped, 0.3 s, `store.deadline: 1s`", rounds: 3, fresh: true, flags: waitsASecond, happens: func(r *tableRound) { r.storeStops(300 * time.Millisecond) }},
}

// Nodes with waitsASecond wait for each answer for a second, whatever they have heard before.
var waitsASecond = []string{"--store-deadline=1s"}

// tableStore is a kind of store, before each server of which there is a relay.
type tableStore struct {
	name          string
	lacks         map[string]string // by kind: why the store cannot do it
	swaps         bool              // a decision on a key that both nodes change takes several answers
	stays         string            // why no master is repointed; "" if one can be
	flags         func(t *testing.T, fleet string, region int) []string
	relays        []*redistest.FaultProxy
	cutEvery      time.Duration // leaves time to connect; 0: 150 ms
	pause, resume func()
	repoint       func()
	fleets        int
}

// tableFleet are the two nodes of a kind.
type tableFleet struct {
	t         *testing.T
	kind      string
	nodes     []*servertest.Node
	processes []*servertest.Process
	client    *http.Client
	wrong     atomic.Int64 // answers that nobody should get
	example   atomic.Value // one of them
}

// tableCell is what came of a kind during a fault.
type tableCell struct {
	over, under, excess, lost, alone, wrong int
	example                                 string
}

// TestFaultTable: two built nodes share limits over each kind of store, through relays, while
// connections are cut, answers are late, nodes and stores stand still, and a master moves. Settings
// are the defaults, except in rows that name one. Where the store answers within the time that a
// node waits, or a node alone stood still, nothing goes over a limit; and nothing does silently. It
// prints a table.
func TestFaultTable(t *testing.T) {
	table := "| store | fault | kind | over | excess | lost | decided by share | left unused |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n"
	for _, start := range tableStores {
		t.Run(start.name, func(t *testing.T) {
			s := start.start(t)
			if s.name = start.name; s.cutEvery == 0 {
				s.cutEvery = 150 * time.Millisecond
			}
			for row := range s.rows(t) {
				table += row
				t.Log(strings.TrimSpace(row))
			}
		})
	}
	t.Log("\n" + table)
}

// rows makes all faults of a store, and returns lines of the table.
func (s *tableStore) rows(t *testing.T) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		var fleets []*tableFleet
		for _, f := range tableFaults {
			if f.lacks != nil && f.lacks(s) != "" {
				yield(fmt.Sprintf("| %s | %s | all | %s | | | | |\n", s.name, f.name, f.lacks(s)))
				continue
			}
			if f.fresh {
				for _, old := range fleets {
					old.end()
				}
				fleets = s.start(t, f.flags)
			}
			cells, slow := s.fault(t, &f, fleets), f.slow || f.several && s.swaps
			for i, k := range tableKinds {
				if why := s.lacks[k.name]; why != "" {
					yield(fmt.Sprintf("| %s | %s | %s | %s | | | | |\n", s.name, f.name, k.name, why))
					continue
				}
				c := cells[i]
				left := strconv.Itoa(c.under)
				if k.name == "lease" || k.name == "region" {
					left += " (may be lent)"
				}
				if c.wrong > 0 {
					left += fmt.Sprintf("; %d wrong answers: %s", c.wrong, c.example)
				}
				yield(fmt.Sprintf("| %s | %s | %s | %d | %d | %d | %d | %s |\n", s.name, f.name, k.name, c.over,
					c.excess, c.lost, c.alone, left))
				if c.over > c.excess+c.lost {
					t.Errorf("%s, %s, %s: %d went over, and %d of them silently", s.name, f.name, k.name, c.over,
						c.over-c.excess-c.lost)
				} else if c.over > 0 && !slow {
					t.Errorf("%s, %s, %s: %d went over", s.name, f.name, k.name, c.over)
				}
				if c.wrong > 0 && !slow {
					t.Errorf("%s, %s, %s: %d wrong answers, such as %s", s.name, f.name, k.name, c.wrong, c.example)
				}
			}
		}
		for _, old := range fleets {
			old.end()
		}
	}
}

// start starts two nodes for each kind, which decide without a fault until they go by what they
// have heard: for longer than ten seconds.
func (s *tableStore) start(t *testing.T, flags []string) []*tableFleet {
	t.Helper()
	began := time.Now()
	fleets := make([]*tableFleet, len(tableKinds))
	for i, k := range tableKinds {
		if s.lacks[k.name] != "" {
			continue
		}
		s.fleets++
		f := &tableFleet{t: t, kind: k.name,
			client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: tableClients}}}
		t.Cleanup(f.client.CloseIdleConnections)
		dir := t.TempDir()
		servertest.WriteRules(t, filepath.Join(dir, "rules.yaml"), tableRules(k.consistency))
		for region := range 2 {
			args := append([]string{"serve", "--rules=rules.yaml"}, s.flags(t, fmt.Sprint("f", s.fleets), region)...)
			if k.name != "region" {
				args = append([]string{"serve", "--rules=rules.yaml"}, s.flags(t, fmt.Sprint("f", s.fleets), -1)...)
			}
			p := servertest.Launch(t, servertest.BuildProgram(t), dir, append(args, flags...)...)
			f.processes = append(f.processes, p)
			f.nodes = append(f.nodes, servertest.NodeOf(t, p.Stderr, p.Addr))
		}
		fleets[i] = f
	}
	for _, f := range fleets {
		if f == nil {
			continue
		}
		for _, n := range f.nodes {
			n.AwaitBack() // should a slow start have tripped it
			if f.kind != "region" {
				servertest.Eventually(t, "the nodes know of each other",
					func() bool { return n.Metric("weir_store_share_nodes") == "2" })
			}
		}
	}
	// Not a wait for something to happen: nodes are to have run so long.
	for i := 0; time.Since(began) < 12*time.Second; i++ {
		for _, f := range fleets {
			if f != nil {
				f.ask(i%2, fmt.Sprint("warm", i/20), "fixed_window")
			}
		}
		time.Sleep(tablePace)
	}
	return fleets
}

// end ends the nodes.
func (f *tableFleet) end() {
	if f == nil {
		return
	}
	for _, p := range f.processes {
		_ = p.Cmd.Process.Kill()
		<-p.Gone
	}
}

// ask asks a node for a unit of a key, or reserves three units and commits two. It returns what was
// admitted, and whether the answer was a refusal.
func (f *tableFleet) ask(node int, key, as string) (units int, refused bool) {
	if f.kind != "reservation" {
		switch status, _ := f.send(http.MethodGet, f.nodes[node].Http+"/api/v1/limit?hits=1&key="+key+"&as="+as, ""); status {
		case http.StatusOK:
			return 1, false
		case http.StatusTooManyRequests:
			return 0, true
		}
		return 0, false
	}
	status, body := f.send(http.MethodPost, f.nodes[node].Http+"/api/v1/reserve",
		fmt.Sprintf(`{"attributes": {"key": %q, "as": %q}, "hits": 3}`, key, as))
	if status != http.StatusOK {
		return 0, status == http.StatusTooManyRequests
	}
	var answer struct{ Reservation string }
	if err := json.Unmarshal([]byte(body), &answer); err != nil || answer.Reservation == "" {
		f.mistake("reserve: " + body)
		return 3, false
	}
	// 503 says that it can be repeated.
	for range 200 {
		status, body = f.send(http.MethodPost, f.nodes[node].Http+"/api/v1/commit",
			fmt.Sprintf(`{"reservation": %q, "hits": 2}`, answer.Reservation))
		if status == http.StatusNoContent {
			return 2, false
		} else if status != http.StatusServiceUnavailable {
			break
		}
		time.Sleep(tablePace)
	}
	f.mistake(fmt.Sprintf("commit: %d %s", status, body))
	return 2, false
}

// send makes a request, and counts answers that none of them should get.
func (f *tableFleet) send(method, url, body string) (int, string) {
	r, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		panic(err)
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := f.client.Do(r)
	if err != nil {
		f.mistake(err.Error())
		return 0, ""
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		f.mistake(err.Error())
		return 0, ""
	}
	commit := strings.HasSuffix(url, "/commit")
	switch {
	case answer.StatusCode == http.StatusOK && !commit, answer.StatusCode == http.StatusTooManyRequests && !commit,
		commit:
	default:
		f.mistake(fmt.Sprintf("%d %s", answer.StatusCode, text))
	}
	return answer.StatusCode, string(text)
}

func (f *tableFleet) mistake(what string) {
	f.wrong.Add(1)
	f.example.Store(strings.ReplaceAll(strings.TrimSpace(what), "\n", " "))
}

var tableMetrics = regexp.MustCompile(
	`(?m)^weir_store_(?:(excess)_units_total\{.*\}|fallback_units_total\{outcome="(lost)"\}|fallback_(decisions)_total\{.*\}|fallback_(open)_units) (\S+)$`)

// counted is what the nodes have counted so far.
func (f *tableFleet) counted() map[string]int {
	sums := map[string]int{}
	for _, n := range f.nodes {
		_, _, body := servertest.Get(f.t, n.Admin+"/metrics")
		for _, m := range tableMetrics.FindAllStringSubmatch(body, -1) {
			v, err := strconv.ParseFloat(m[5], 64)
			if err != nil {
				f.t.Fatal(err)
			}
			sums[m[1]+m[2]+m[3]+m[4]] += int(v)
		}
	}
	return sums
}

// fault makes a fault as often as it says, on new keys each time, and returns what came of it by
// kind.
func (s *tableStore) fault(t *testing.T, fault *tableFault, fleets []*tableFleet) []tableCell {
	t.Helper()
	began := time.Now()
	before := make([]map[string]int, len(fleets))
	for i, f := range fleets {
		if f != nil {
			before[i] = f.counted()
			f.wrong.Store(0)
		}
	}
	runs := make([][]*tableRun, len(fleets))
	for number := range fault.rounds {
		r := &tableRound{t: t, store: s, number: number, ended: make(chan struct{})}
		var asking sync.WaitGroup
		for i, f := range fleets {
			if f == nil {
				continue
			}
			run := newTableRun(f, fmt.Sprintf("%s-%d", fault.name, number))
			r.runs, runs[i] = append(r.runs, run), append(runs[i], run)
			asking.Go(run.clients)
		}
		go func() { asking.Wait(); close(r.ended) }()
		fault.happens(r)
		<-r.ended
		for _, run := range r.runs {
			run.well()
		}
	}
	// Nodes remember refusals for a second, and units come back within it.
	time.Sleep(1500 * time.Millisecond)
	cells := make([]tableCell, len(fleets))
	for i, f := range fleets {
		if f == nil {
			continue
		}
		c := &cells[i]
		for _, run := range runs[i] {
			run.finish(c)
		}
		now := f.counted()
		c.excess, c.lost, c.alone = now["excess"]-before[i]["excess"], now["lost"]-before[i]["lost"],
			now["decisions"]-before[i]["decisions"]
		c.wrong = int(f.wrong.Load())
		c.example, _ = f.example.Load().(string)
		if c.alone > 0 {
			for _, n := range f.nodes {
				_, body := n.Readyz()
				t.Logf("%s: a node says: %s", f.kind, body)
			}
		}
	}
	t.Logf("%s took %v", fault.name, time.Since(began).Round(100*time.Millisecond))
	return cells
}
