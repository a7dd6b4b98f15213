package main

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/weir-rl/weir/benchmarks/internal/processor"
	load "github.com/weir-rl/weir/internal/testkit/openload"
)

const (
	settles = time.Minute     // after a start: the rules are judged for the first time
	rests   = 2 * time.Minute // the time between two collections that Go makes of itself
)

// servedSizes are the numbers of rules.
var servedSizes = []int{10, 1000, 10_000, 100_000}

// served measures servers with many rules, of which a request meets one: what they take at rest,
// and a decision at each door.
func (b *bench) served() error {
	upstream, err := b.launchNginx("upstream", `default_type text/plain; return 200 "hello";`, "127.0.0.1:1")
	if err != nil {
		return err
	}
	defer upstream.stop()
	bySize := map[int][]door{}
	for _, n := range servedSizes {
		doors, stop, err := b.servedDoors(n, upstream.addr)
		defer stop()
		if err != nil {
			return err
		}
		bySize[n] = doors
	}
	if err := b.pause(settles); err != nil {
		return err
	}
	if err := b.rest(bySize); err != nil {
		return err
	}
	for range b.rounds {
		for _, n := range servedSizes {
			for _, d := range bySize[n] {
				_, cpu, err := b.loadDoor(d, 0, short)
				if err != nil {
					return err
				}
				b.samples.add("cpu_us", d.name, float64(n), cpu)
			}
		}
	}
	return nil
}

// rest measures what servers without traffic take, in percent of a processor.
func (b *bench) rest(bySize map[int][]door) error {
	before := map[int]time.Duration{}
	used := func(n int) (time.Duration, error) { return processor.Time(bySize[n][0].servers[0].pid()) }
	for _, n := range servedSizes {
		var err error
		if before[n], err = used(n); err != nil {
			return err
		}
	}
	if err := b.pause(rests); err != nil {
		return err
	}
	for _, n := range servedSizes {
		after, err := used(n)
		if err != nil {
			return err
		}
		b.samples.add("rest_percent", "at rest", float64(n), 100*(after-before[n]).Seconds()/rests.Seconds())
	}
	return nil
}

// pause waits.
func (b *bench) pause(d time.Duration) error {
	select {
	case <-b.ctx.Done():
		return b.ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// servedDoors starts a server with n rules for each door. stop ends them, also after an error.
func (b *bench) servedDoors(n int, upstream string) (list []door, stop func(), err error) {
	stop = func() {
		for _, d := range list {
			d.servers[0].stop()
		}
	}
	for _, of := range []struct {
		name, door string
		flags      []string
		target     load.Target
	}{
		{"HTTP", "http", nil, load.Target{URL: "http://ADDR", Domain: "bench", Key: "user"}},
		{"RLS", "grpc", nil, load.Target{URL: "grpc://ADDR", Domain: "bench", Key: "user"}},
		{"WEIR.LIMIT", "resp", nil, load.Target{URL: "redis://ADDR", Domain: "bench", Key: "user"}},
		{"forward auth", "http", []string{"--client-ip-trusted-proxies", "127.0.0.1"},
			load.Target{URL: "http://ADDR/api/v1/forward-auth/nginx", Door: load.Proxy, Key: "X-User",
				Header: http.Header{"X-Original-Uri": {"/orders"}, "X-Original-Method": {"GET"},
					"X-Forwarded-For": {"192.0.2.1"}}}},
		{"proxy", "proxy", []string{"--proxy-upstream", "http://" + upstream},
			load.Target{URL: "http://ADDR/", Door: load.Proxy, Key: "X-User"}},
	} {
		rules, err := b.servedRules(n, of.door == "grpc")
		if err != nil {
			return list, stop, err
		}
		s, err := b.launchWeirOn(rules, of.door, of.flags...)
		if err != nil {
			return list, stop, err
		}
		of.target.URL, of.target.Connections = strings.ReplaceAll(of.target.URL, "ADDR", s.addr), 64
		list = append(list, door{of.name, of.target, []*server{s}})
	}
	return list, stop, nil
}

// servedRules writes a folder of n rules, in Envoy's form or in Weir's. The first is the one that a
// request meets.
func (b *bench) servedRules(n int, envoy bool) (folder string, err error) {
	head, form, first, other := "native", "domain: bench\nlimits:\n", loadRules,
		"  - { name: r%d, when: { path: /svc%[1]d/** }, per: [user], allow: 1000000/day }\n"
	if envoy {
		head, form, first, other = "envoy", "domain: bench\ndescriptors:\n", loadRulesRLS,
			"  - { key: svc%d, rate_limit: { unit: day, requests_per_unit: 1000000 } }\n"
	}
	folder = fmt.Sprintf("served-%s-%d", head, n)
	const inFile = 10_000
	path := ""
	for begin := 0; begin < n; begin += inFile {
		var text strings.Builder
		i := begin
		if begin == 0 {
			text.WriteString(first)
			i++
		} else {
			text.WriteString(form)
		}
		for ; i < min(begin+inFile, n); i++ {
			fmt.Fprintf(&text, other, i)
		}
		if path, err = b.write(filepath.Join(folder, fmt.Sprintf("%06d.yaml", begin)), text.String()); err != nil {
			return "", err
		}
	}
	return filepath.Dir(path), nil
}
