package server

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/weir-rl/weir/internal/host/load"
	"github.com/weir-rl/weir/rule"
)

// followedSignal is a signal that rules follow, with the names of those.
type followedSignal struct {
	name  string
	rules []string
}

// followedIn lists the signals that the rules of a set follow, by the first rule that does.
func followedIn(set *rule.Set) []followedSignal {
	var list []followedSignal
	for _, r := range set.Rules() {
		if r.Elastic == nil {
			continue
		}
		i := slices.IndexFunc(list, func(f followedSignal) bool { return f.name == r.Elastic.Signal })
		if i < 0 {
			i, list = len(list), append(list, followedSignal{name: r.Elastic.Signal})
		}
		if name := r.Domain + "/" + r.Name; !slices.Contains(list[i].rules, name) {
			list[i].rules = append(list[i].rules, name)
		}
	}
	return list
}

// unfed returns, for each signal that the rules follow and this configuration does not feed, the
// reason why.
func (c *Config) unfed(set *rule.Set) []string {
	var remarks []string
	for _, f := range followedIn(set) {
		why := ""
		switch {
		case f.name == load.CPU || f.name == load.Memory || f.name == load.Pressure:
		case f.name == load.UpstreamLatency && c.listen.proxy == "":
			why = "only the proxy measures it, and listen.proxy is off"
		case f.name == load.UpstreamLatency:
		case f.name == load.InFlight && (c.listen.proxy == "" || c.capacity == 0 && c.concurrency == ""):
			why = "it needs the proxy (listen.proxy), and proxy.capacity or proxy.concurrency to say how many requests are 100 percent"
		case f.name == load.InFlight || c.signals[f.name] != "":
		default:
			why = "weir does not measure it, and signals has no query of this name: somebody has to push it, by PUT /api/v1/signals/" + url.PathEscape(f.name)
		}
		if why != "" {
			remarks = append(remarks,
				fmt.Sprintf("the signal %s, which %s: %s; without it these limits stand at 100 percent", f.name,
					followText(f.rules), why))
		}
	}
	return remarks
}

// followText names the rules that follow a signal.
func followText(rules []string) string {
	if len(rules) == 1 {
		return rules[0] + " follows"
	}
	return strings.Join(rules, ", ") + " follow"
}

// ownPrometheus reports that prometheus.url is an admin port of this very configuration, which is
// no Prometheus.
func (c *Config) ownPrometheus() error {
	u, err := url.Parse(c.prometheusURL)
	if err != nil || c.prometheusURL == "" || u.Port() == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(c.listen.admin)
	if err != nil || port == "0" || port != u.Port() {
		return nil
	}
	own := []string{host, "localhost", "127.0.0.1", "::1"}
	if !slices.Contains(own, u.Hostname()) {
		return nil
	}
	return fmt.Errorf("prometheus.url: %s is this server's own admin port (listen.admin), which is no Prometheus",
		u.Redacted())
}

const (
	lookForSignals = time.Second
	signalGrace    = 15 * time.Second // for a signal that rules follow to come for the first time
)

// runSignals reads the signals until ctx ends.
func (p *program) runSignals(ctx context.Context) { p.signals.Run(ctx) }

// watchSignals warns once of each signal that rules follow and that has not come, and logs when it
// comes after all.
func (p *program) watchSignals(ctx context.Context) {
	tick := time.NewTicker(lookForSignals)
	defer tick.Stop()
	w := signalWatch{since: map[string]time.Time{}, told: map[string]bool{}}
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			set, _ := p.limiter.Rules()
			w.look(p, now, p.signals.List(), set)
		}
	}
}

// signalWatch is the state of watchSignals.
type signalWatch struct {
	since map[string]time.Time // when a signal was first found not to have come
	told  map[string]bool      // that it has not
}

func (w *signalWatch) look(p *program, now time.Time, list []load.Info, set *rule.Set) {
	for _, s := range list {
		switch {
		case !s.Used:
			delete(w.since, s.Name)
			delete(w.told, s.Name)
		case s.Seen && w.told[s.Name]:
			p.log.Info("a signal that rules follow has come", "signal", s.Name)
			delete(w.told, s.Name)
		case s.Seen || w.told[s.Name] || s.Name == load.UpstreamLatency && p.proxy != nil:
			// that one comes with requests
		case w.since[s.Name].IsZero():
			w.since[s.Name] = now
		case now.Sub(w.since[s.Name]) >= signalGrace:
			w.told[s.Name] = true
			args := []any{"signal", s.Name, "kind", string(s.Kind)}
			for _, f := range followedIn(set) {
				if f.name == s.Name {
					args = append(args, "limits", strings.Join(f.rules, ", "))
				}
			}
			if s.Error != "" {
				args = append(args, "error", s.Error)
			}
			p.log.Warn("a signal that rules follow has never come: their limits stand at 100 percent", args...)
		}
	}
}
