//go:build unix

package servertest

import (
	"strconv"
	"time"

	"github.com/weir-rl/weir/internal/testkit/redistest"
)

// Paused asks while Redis stands still for a time.
func (n *Node) Paused(redis *redistest.Server, d time.Duration, query string) int {
	n.t.Helper()
	redis.Pause()
	resumed := make(chan struct{})
	timer := time.AfterFunc(d, func() { defer close(resumed); redis.Resume() })
	status := n.Ask(query)
	if timer.Stop() {
		redis.Resume()
	} else {
		<-resumed // else it could end the next pause
	}
	return status
}

// Fates reads how often units admitted without the store came to what.
func (n *Node) Fates() (sum, excess, open int) {
	n.t.Helper()
	for _, outcome := range []string{"settled", "excess", "lost", "lapsed", "returned"} {
		units := n.Number(`weir_store_fallback_units_total{outcome="` + outcome + `"}`)
		if sum += units; outcome == "excess" {
			excess = units
		}
	}
	open = n.Number("weir_store_fallback_open_units")
	return sum + open, excess, open
}

func (n *Node) Number(metric string) int {
	n.t.Helper()
	v, err := strconv.ParseFloat(n.Metric(metric), 64)
	if err != nil {
		n.t.Fatal(err)
	}
	return int(v)
}
