//go:build unix

package stores

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

const (
	fleetRules = "domain: shop\nlimits:\n" +
		"  - { name: search, when: { path: /search }, per: [user|ip], allow: 3/day, algorithm: sliding_log }\n" +
		"  - { name: probe, when: { path: /probe }, per: [user], allow: 100000/day }\n"
	changedRules = "domain: shop\nlimits:\n" +
		"  - { name: search, when: { path: /search }, per: [user|ip], allow: 4/day, algorithm: sliding_log }\n" +
		"  - { name: probe, when: { path: /probe }, per: [user], allow: 100000/day }\n"
)

// trafficLog is what clients saw: requests, refusals, and refusals of clients that are known.
type trafficLog struct{ met, refused, good int }

func (l *trafficLog) add(x trafficLog) {
	l.met, l.refused, l.good = l.met+x.met, l.refused+x.refused, l.good+x.good
}

// fleetNode is a node of the built program, with rules of its own.
type fleetNode struct {
	*servertest.Node
	dir     string
	process *servertest.Process
	// What its figures should say of the rule search, and of all requests.
	rule, all trafficLog
}

// figures are what a node says of the rule search.
type figures struct {
	Nodes insight.Nodes        `json:"nodes"`
	Rules []insight.RuleReport `json:"rules"`
	insight.RuleReport
}

func (n *fleetNode) start(t *testing.T, program, redis string) {
	t.Helper()
	n.process = servertest.Launch(t, program, n.dir, "serve", "--rules=rules", "--store="+redis, "--store-deadline=1s")
	n.Node = servertest.NodeOf(t, n.process.Stderr, n.process.Addr)
	n.rule, n.all = trafficLog{}, trafficLog{}
}

func probeOf(user int) string { return fmt.Sprintf("domain=shop&path=/probe&user=probe-%d", user) }

// probe asks on a key of its own.
func (n *fleetNode) probe(t *testing.T, user int) {
	t.Helper()
	if status := n.Ask(probeOf(user)); status != 200 {
		t.Fatal(status)
	}
	n.all.met++
}

func get[T any](t *testing.T, url string) (v T) {
	t.Helper()
	status, _, body := servertest.Get(t, url)
	if err := json.Unmarshal([]byte(body), &v); err != nil || status != 200 {
		t.Fatalf("%s: %d, %v: %.300s", url, status, err, body)
	}
	return v
}

// TestFleetFigures: three servers of the built program on one Redis. Whatever is asked for, the
// overview, the list, the rule, and whichever node is asked, the figures of a rule are the same,
// and equal the log of the traffic: also after an outage of Redis, with a node that restarted, and
// with one whose rule differs, which the answers name.
func TestFleetFigures(t *testing.T) {
	t.Parallel()
	program, redis := servertest.BuildProgram(t), redistest.Start(t)
	var all [3]*fleetNode
	for i := range all {
		n := &fleetNode{dir: t.TempDir()}
		n.write(t, fleetRules)
		n.start(t, program, redis.URL())
		all[i] = n
	}
	// agreed waits until all know each other, and sample the same keys.
	agreed := func() {
		t.Helper()
		for _, n := range all {
			n.AwaitNodes(3)
		}
		servertest.Eventually(t, "all nodes sample the same keys", func() bool {
			for i, n := range all {
				n.probe(t, i)
			}
			for _, n := range all {
				if r := get[figures](t, n.Admin+"/api/v1/insight/rules/shop/probe?over=1h"); r.Keys != 3 ||
					r.Nodes.Answered != 3 {
					return false
				}
			}
			return true
		})
	}
	// send has clients come to all nodes in turn, each so often; a part of them is known.
	clients := 0
	send := func(known, unknown, times int) {
		t.Helper()
		for i := range known + unknown {
			clients++
			who := fmt.Sprint("user=u", clients)
			if i >= known {
				who = fmt.Sprintf("ip=192.0.2.%d", clients)
			}
			for k := range times {
				n := all[(i+k)%3]
				saw := trafficLog{met: 1}
				switch status := n.Ask("domain=shop&path=/search&" + who); status {
				case 200:
				case 429:
					saw.refused = 1
					if i < known {
						saw.good = 1
					}
				default:
					t.Fatal(status)
				}
				n.rule.add(saw)
				n.all.add(saw)
			}
		}
	}
	// agree checks all figures at some nodes. Those of the rule are of the nodes in; keys below 0
	// are not checked.
	round := 60
	agree := func(when string, in []*fleetNode, keys int) {
		t.Helper()
		var want, whole trafficLog
		for _, n := range in {
			want.add(n.rule)
		}
		for _, n := range all {
			whole.add(n.all)
		}
		var first *insight.RuleReport
		for i, n := range in {
			var o insight.Overview
			var list, one figures
			servertest.Eventually(t, when+": all nodes answer in time", func() bool {
				round++ // else an answer of a moment ago would do
				over := fmt.Sprintf("over=%dm", round)
				o = get[insight.Overview](t, n.Admin+"/api/v1/insight?"+over)
				list = get[figures](t, n.Admin+"/api/v1/insight/rules?"+over)
				one = get[figures](t, n.Admin+"/api/v1/insight/rules/shop/search?"+over)
				return o.Nodes.Answered == 3 && list.Nodes.Answered == 3 && one.Nodes.Answered == len(in)
			})
			if int(o.Requests) != whole.met || int(o.Refused) != whole.refused {
				t.Errorf("%s: the overview of node %d has %d of %d refused, and the log %+v", when, i, o.Refused,
					o.Requests, whole)
			}
			if g := o.GoodRefused; int(g.Requests) != want.good || int(g.Of) != want.refused {
				t.Errorf("%s: the overview of node %d has %+v good ones, and the log %+v", when, i, g, want)
			}
			for what, r := range map[string]*insight.RuleReport{"list": &list.Rules[0], "rule": &one.RuleReport} {
				if r.Name != "search" || int(r.Met) != want.met || int(r.Refused) != want.refused ||
					int(r.Good.Refused) != want.good || int(r.Good.Of) != want.refused {
					t.Errorf("%s: the %s of node %d has %d of %d refused, good %+v, and the log %+v", when, what, i,
						r.Refused, r.Met, r.Good, want)
				}
				if first == nil {
					first = r
				}
				if r.Keys != first.Keys || r.KeysRefused != first.KeysRefused || r.Fill != first.Fill ||
					r.MaxFill != first.MaxFill || r.Good != first.Good || keys >= 0 && int(r.Keys) != keys {
					t.Errorf("%s: the %s of node %d has %d keys, %v, %v, %+v, and not %d, %v, %v, %+v", when, what, i,
						r.Keys, r.Fill, r.MaxFill, r.Good, first.Keys, first.Fill, first.MaxFill, first.Good)
				}
				if r.MaxFill > 1.5 {
					t.Errorf("%s: a client is said to have asked for %v of the limit", when, r.MaxFill)
				}
			}
		}
	}

	agreed()
	send(8, 4, 4) // each is refused once
	agree("at first", all[:], clients)
	sameFound(t, all[:], "U", 8)
	sameFound(t, all[:], "user=u3", 1)
	sameFound(t, all[:], "192.0.2", 4)

	// Redis goes away, and comes back.
	redis.Kill()
	for i, n := range all {
		servertest.Eventually(t, "Redis counts as away", func() bool {
			n.AskAtOnce(probeOf(i))
			n.all.met += 5
			_, body := n.Readyz()
			return strings.Contains(body, "without the store")
		})
	}
	send(3, 0, 1)
	redis.Restart()
	for _, n := range all {
		n.AwaitBack()
	}
	agreed()
	send(2, 1, 4)
	agree("after the outage", all[:], clients)

	// A node whose rule differs is named, and counts for itself.
	all[2].write(t, changedRules)
	servertest.Eventually(t, "node 2 has the other rule", func() bool {
		return get[figures](t, all[2].Admin+"/api/v1/insight/rules/shop/search?over=3h").Limits[0] == "4 per day"
	})
	other := servertest.SelfOf(t, all[2].Admin)
	for i, n := range all[:2] {
		var r figures
		servertest.Eventually(t, "all nodes answer in time, and one is apart", func() bool {
			round++
			r = get[figures](t, fmt.Sprintf("%s/api/v1/insight/rules/shop/search?over=%dm", n.Admin, round))
			return r.Nodes.Answered == 2 && r.Nodes.Apart != nil
		})
		if a := r.Nodes.Apart; len(a.Differ) != 1 || a.Differ[0].Here != "3 per day" ||
			a.Differ[0].There != "4 per day" || a.Differ[0].Node != other ||
			!strings.Contains(r.Nodes.Remark, "another rule shop/search") {
			t.Errorf("node %d: %+v, %+v", i, r.Nodes, a)
		}
	}
	agree("with another rule", all[:2], -1)
	all[2].write(t, fleetRules)
	servertest.Eventually(t, "node 2 has the rule again, and counts anew", func() bool {
		r := get[figures](t, all[0].Admin+"/api/v1/insight/rules/shop/search?over=5h")
		return r.Nodes.Answered == 3 && r.Nodes.Apart != nil && len(r.Nodes.Apart.Later) == 1 &&
			r.Nodes.Apart.Later[0].Rule == "search"
	})
	all[2].rule = trafficLog{}
	agree("with the rule again", all[:], -1)

	// A file that cannot be read is told once, and takes no verdict from a rule.
	servertest.WriteRules(t, filepath.Join(all[1].dir, "rules", "images.yaml"),
		"domain: images\nlimits: [{ name: all, alow: 5/day }]\n")
	servertest.Eventually(t, "the broken file is named", func() bool {
		o := get[insight.Overview](t, all[0].Admin+"/api/v1/insight?over=1h")
		for _, v := range o.NeedsALook {
			if v.Verdict == insight.Broken {
				t.Fatalf("%+v", v)
			}
		}
		a := o.Nodes.Apart
		return a != nil && len(a.Broken) == 1 && a.Broken[0].Node == servertest.SelfOf(t, all[1].Admin) &&
			strings.Contains(a.Broken[0].Error, "images.yaml:2:") && strings.Contains(o.Sentences[0], "not in force")
	})

	// A node that restarts begins anew.
	all[2].process.Signal(syscall.SIGTERM)
	if status := all[2].process.Wait(); status != 0 {
		t.Fatal(status)
	}
	all[2].start(t, program, redis.URL())
	agreed()
	send(2, 1, 4)
	agree("after a restart", all[:], -1)
}

// write writes the rules of a node.
func (n *fleetNode) write(t *testing.T, rules string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(n.dir, "rules"), 0o700); err != nil {
		t.Fatal(err)
	}
	servertest.WriteRules(t, filepath.Join(n.dir, "rules", "shop.yaml"), rules)
}
