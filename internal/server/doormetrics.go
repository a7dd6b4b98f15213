package server

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-rl/weir/internal/admin/metrics"
	"github.com/weir-rl/weir/internal/door/auth"
	"github.com/weir-rl/weir/internal/wire/h2"
	"github.com/weir-rl/weir/internal/wire/listen"
)

// doorMetrics are the metrics of the doors.
func (p *program) doorMetrics() []prometheus.Collector {
	o := metrics.DoorOptions{Doors: p.connectionStats, Memory: p.memoryStats, Line: p.line.Stats}
	if p.tokens != nil {
		o.Tokens = func() (wrong, tooMany uint64) { s := p.tokens.Stats(); return s.Wrong, s.TooMany }
	}
	if p.pages != nil {
		o.Pages = func() map[string]uint64 {
			refused := map[string]uint64{}
			for reason, n := range p.pages.Stats().Refused {
				refused[auth.PageReason(reason).String()] = n
			}
			return refused
		}
	}
	if p.certificates != nil {
		o.Certificates = p.certificates.Status
	}
	list := []prometheus.Collector{metrics.NewDoors(o)}
	if p.quota != nil {
		list = append(list, metrics.NewRLQS(p.quota.Stats))
	}
	return list
}

// memoryStats reads what HTTP/2 takes at each door that bounds it.
func (p *program) memoryStats() map[string]h2.MemoryStats {
	out := map[string]h2.MemoryStats{}
	for _, d := range p.doors {
		if d.memory != nil {
			out[d.name] = d.memory()
		}
	}
	return out
}

// connectionStats reads the connections of each door; nothing before the doors are open.
func (p *program) connectionStats() map[string]listen.Stats {
	if !p.opened.Load() {
		return nil
	}
	out := map[string]listen.Stats{}
	for _, d := range p.doors {
		out[d.name] = d.listener.Stats()
	}
	return out
}
