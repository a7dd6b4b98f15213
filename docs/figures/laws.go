package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// law is a part of docs/how-it-works/performance.md: how something grows with a size.
type law struct {
	part    string
	title   string
	by      string // the size
	measure string // that is drawn
	unit    string
	says    func(m *measured) string
	tables  []lawTable
}

type lawTable struct {
	about   string
	columns []tableColumn
}

// bySize is a table of one measure, with a column for each size.
func bySize(measure, about string) lawTable {
	return lawTable{about, []tableColumn{{measure, brief}}}
}

// The contestants that the sentences speak of.
const (
	rpc        = "Weir"
	throttling = "Weir, CL.THROTTLE"
)

var laws = []law{
	{
		part: "keys", title: "One decision in process, by the number of keys", by: "keys",
		measure: "cpu_ns", unit: "ns of processor time",
		says: func(m *measured) string {
			const of = "Weir, with rule matching"
			sizes := m.sizes("cpu_ns")
			few, many := sizes[0], sizes[len(sizes)-1]
			cheapest, name := math.Inf(1), ""
			for _, rival := range m.series("cpu_ns") {
				if v := m.value("cpu_ns", rival, many); v < cheapest && !strings.HasPrefix(rival, "Weir") &&
					!strings.HasPrefix(rival, "floor") {
					cheapest, name = v, rival
				}
			}
			return fmt.Sprintf(
				"With %s keys a decision takes %s ns, and with %s it takes %s: %s times as much, since more of the memory is far away. The cheapest library, %s, goes from %s to %s ns, without rules.",
				brief(few), digits(m.value("cpu_ns", of, few)), brief(many), digits(m.value("cpu_ns", of, many)),
				times(m.value("cpu_ns", of, many), m.value("cpu_ns", of, few)),
				name, digits(m.value("cpu_ns", name, few)), digits(cheapest))
		},
		tables: []lawTable{bySize("cpu_ns", "ns, by keys")},
	},
	{
		part: "hot", title: "One decision in process on a key that all ask for, by processors",
		by:      "processors, each with a caller",
		measure: "ns", unit: "ns from one decision to the next, of all callers together",
		says: func(m *measured) string {
			v := func(name string, at float64) string { return digits(m.value("ns", name, at)) }
			const of, store, rival = "Weir, with rule matching", "Weir, the store alone", "sethvargo/go-limiter"
			return fmt.Sprintf(
				"On one key a decision takes %s ns with one processor; two that ask for it at the same time are given one each %s ns. The store alone takes %s and %s, and go-limiter, without rules, %s and %s.",
				v(of, 1), v(of, 2), v(store, 1), v(store, 2), v(rival, 1), v(rival, 2))
		},
		tables: []lawTable{bySize("ns", "ns from one decision to the next, by processors"),
			bySize("cpu_ns", "ns of processor time")},
	},
	{
		part: "rules", title: "One decision in process, by the number of rules", by: "rules",
		measure: "cpu_ns", unit: "ns of processor time",
		says: func(m *measured) string {
			least, most := math.Inf(1), 0.0
			for _, kind := range flatKinds(m) {
				ratio := m.value("cpu_ns", kind, 100_000) / m.value("cpu_ns", kind, 10)
				least, most = min(least, ratio), max(most, ratio)
			}
			return fmt.Sprintf(
				"A decision does not grow with the rules that it does not meet: with 100,000 of them it takes %s to %s times what it takes with ten, of each kind in which a text or a number tells rules apart. The last two kinds have nothing such, and are looked at one by one.",
				digits(least), digits(most))
		},
		tables: []lawTable{bySize("cpu_ns", "ns, by rules")},
	},
	{
		part: "served", title: "One decision at each door of a server, by the number of its rules", by: "rules",
		measure: "cpu_us", unit: "µs of the server's processor time",
		says: func(m *measured) string {
			sizes := m.sizes("cpu_us")
			few, many := sizes[0], sizes[len(sizes)-1]
			least, most := math.Inf(1), 0.0
			for _, door := range m.series("cpu_us") {
				ratio := m.value("cpu_us", door, many) / m.value("cpu_us", door, few)
				least, most = min(least, ratio), max(most, ratio)
			}
			return fmt.Sprintf(
				"With %s rules a decision takes a server %s to %s times what it takes with %s, by door. Without traffic the server takes %s %% of a processor, and %s with %s rules.",
				brief(many), digits(least), digits(most), brief(few), digits(m.value("rest_percent", "at rest", many)),
				digits(m.value("rest_percent", "at rest", few)), brief(few))
		},
		tables: []lawTable{bySize("cpu_us", "µs, by rules"), bySize("rest_percent", "% of a processor, by rules")},
	},
	{
		part: "limits", title: "One decision in process, by the limits that it meets", by: "limits",
		measure: "cpu_ns", unit: "ns of processor time",
		says: func(m *measured) string {
			const of, rival = "Weir, one key", "go-limiter, one key, one limit after the other"
			v := func(at float64) float64 { return m.value("cpu_ns", of, at) }
			return fmt.Sprintf(
				"The first limit costs %s ns, each further one up to eight %s ns, and each beyond ten %s ns; all are charged or none. Asking go-limiter once for each costs %s ns a limit, and charges those before the one that refuses.",
				digits(v(1)), digits((v(8)-v(1))/7), digits((v(50)-v(10))/40),
				digits((m.value("cpu_ns", rival, 50)-m.value("cpu_ns", rival, 1))/49))
		},
		tables: []lawTable{bySize("cpu_ns", "ns, by limits")},
	},
	{
		part: "callers", title: "One decision over gRPC, by the callers of one connection", by: "callers",
		measure: "cpu_us", unit: "µs of the server's processor time",
		says: func(m *measured) string {
			sizes := m.sizes("cpu_us")
			one, most := sizes[0], sizes[len(sizes)-1]
			return fmt.Sprintf(
				"The more callers share a connection, the less a decision costs, since they share system calls: %s µs for one caller, %s for 64, %s for %s.",
				digits(m.value("cpu_us", rpc, one)), digits(m.value("cpu_us", rpc, 64)),
				digits(m.value("cpu_us", rpc, most)), brief(most))
		},
		tables: []lawTable{bySize("cpu_us", "µs, by callers"), bySize("p99_us", "99 % within, µs")},
	},
	{
		part: "connections", title: "One decision over the network, by connections",
		by:      "connections, one call at a time on each",
		measure: "cpu_us", unit: "µs of the server's processor time",
		says: func(m *measured) string {
			return fmt.Sprintf(
				"Two thousand connections cost a decision %s times what 50 cost over the Redis protocol, and %s times over gRPC: each has its own read and write.",
				times(m.value("cpu_us", throttling, 2000), m.value("cpu_us", throttling, 50)),
				times(m.value("cpu_us", "Weir, gRPC", 2000), m.value("cpu_us", "Weir, gRPC", 50)))
		},
		tables: []lawTable{bySize("cpu_us", "µs, by connections")},
	},
	{
		part: "proxies", title: "One request through a reverse proxy, by connections",
		by:      "connections, one request at a time on each",
		measure: "cpu_us", unit: "µs of the proxy's processor time",
		says: func(m *measured) string {
			v := func(name string, at float64) float64 { return m.value("cpu_us", name, at) }
			const nginx, caddy = "nginx, limit_req", "Caddy, without limits"
			return fmt.Sprintf(
				"A request that Weir limits and forwards costs %s times what nginx takes with limit_req, and Caddy without limits costs %s times that, with 64 connections; with 2,000 it is %s and %s.",
				times(v(rpc, 64), v(nginx, 64)), times(v(caddy, 64), v(nginx, 64)), times(v(rpc, 2000), v(nginx, 2000)),
				times(v(caddy, 2000), v(nginx, 2000)))
		},
		tables: []lawTable{bySize("cpu_us", "µs, by connections"), bySize("p99_us", "99 % within, µs")},
	},
	{
		part: "nodes", title: "One decision on a Redis that nodes share, by nodes", by: "nodes, each with 64 callers",
		measure: "redis_us", unit: "µs of the processor time of Redis",
		says: func(m *measured) string {
			const of, rival = "Weir, as a library", "a GCRA script, by rueidis"
			return fmt.Sprintf(
				"What a decision costs Redis stays nearly the same with more nodes: %s µs with one, %s with two, %s with four; a script for each decision costs %s, %s and %s.",
				digits(m.value("redis_us", of, 1)), digits(m.value("redis_us", of, 2)),
				digits(m.value("redis_us", of, 4)),
				digits(m.value("redis_us", rival, 1)), digits(m.value("redis_us", rival, 2)),
				digits(m.value("redis_us", rival, 4)))
		},
		tables: []lawTable{bySize("redis_us", "µs of Redis, by nodes"), bySize("node_us", "µs of the node")},
	},
	{
		part: "open", title: "99 % of decisions are answered within, by the load", by: "% of what the door can do",
		measure: "p99_us", unit: "µs since the request was due",
		says: func(m *measured) string {
			span := func(percent float64) (least, most float64) {
				least = math.Inf(1)
				for _, name := range m.series("p50_us") {
					if strings.HasPrefix(name, "Weir") {
						v := m.value("p50_us", name, percent)
						least, most = min(least, v), max(most, v)
					}
				}
				return least, most
			}
			least, most := span(60)
			from, to := span(130)
			return fmt.Sprintf(
				"At 60 %% of what a door can do, half of the decisions are answered within %s to %s µs of when they were due, by door; at 130 %% requests stand in line for as long as the load lasts, half of them for %s to %s µs of its second.",
				digits(least), digits(most), digits(from), digits(to))
		},
		tables: []lawTable{
			{"a closed loop", []tableColumn{
				{"capacity", func(float64) string { return "decisions a second" }},
				{"cpu_us", func(float64) string { return "µs of the server" }},
			}},
			byLoad("p99_us", "99 % within, µs"),
			byLoad("undecided_percent", "% not decided"),
		},
	},
}

// byLoad is bySize where the sizes are shares of the capacity.
func byLoad(measure, about string) lawTable {
	return lawTable{about, []tableColumn{{measure, func(at float64) string { return digits(at) + " %" }}}}
}

// flatKinds are the kinds of rules that were measured with 100,000 of them: those that do not grow.
func flatKinds(m *measured) []string {
	return slices.DeleteFunc(m.series("cpu_ns"),
		func(kind string) bool { return math.IsNaN(m.value("cpu_ns", kind, 100_000)) })
}

func times(v, of float64) string { return digits(math.Round(100*v/of) / 100) }
