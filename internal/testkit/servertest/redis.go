//go:build unix

package servertest

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// StartOn runs weir in this process on a Redis.
func StartOn(t *testing.T, url string, args ...string) *Running {
	t.Helper()
	return Start(t, append(append([]string{"serve", "--store=" + url}, Patient...), args...)...)
}

// Node is a server as its clients and its operator see it.
type Node struct {
	t           *testing.T
	Http, Admin string
	Log         *Output
}

func NodeOf(t *testing.T, log *Output, addr func(door string) string) *Node {
	t.Helper()
	return &Node{t: t, Http: "http://" + addr("http"), Admin: "http://" + addr("admin"), Log: log}
}

// Ask asks the HTTP door and returns the status.
func (n *Node) Ask(query string) int {
	n.t.Helper()
	status, _, _ := Get(n.t, n.Http+"/api/v1/limit?"+query)
	return status
}

// AskAtOnce asks as often as a store must fail to count as away.
func (n *Node) AskAtOnce(query string) {
	n.t.Helper()
	var all sync.WaitGroup
	for range 5 {
		all.Go(func() { n.Ask(query) })
	}
	all.Wait()
}

// Admitted asks a number of times and returns how often the answer was 200; others must be 429.
func (n *Node) Admitted(times int, query string) (admitted int) {
	n.t.Helper()
	for range times {
		switch status := n.Ask(query); status {
		case 200:
			admitted++
		case 429:
		default:
			n.t.Fatalf("%s: %d", query, status)
		}
	}
	return admitted
}

func (n *Node) Readyz() (int, string) {
	n.t.Helper()
	status, _, body := Get(n.t, n.Admin+"/readyz")
	return status, body
}

func (n *Node) Metric(name string) string {
	n.t.Helper()
	_, _, body := Get(n.t, n.Admin+"/metrics")
	found := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + ` (\S+)$`).FindStringSubmatch(body)
	if found == nil {
		n.t.Fatalf("there is no metric %s", name)
	}
	return found[1]
}

// AwaitAway asks, on a key of its own, until the server knows that its store is away.
func (n *Node) AwaitAway() {
	n.t.Helper()
	Eventually(n.t, "the store counts as away", func() bool {
		n.AskAtOnce("key=away")
		_, body := n.Readyz()
		return strings.Contains(body, "without the store")
	})
}

func (n *Node) AwaitBack() {
	n.t.Helper()
	Eventually(n.t, "the store is back", func() bool {
		status, body := n.Readyz() // which still mentions decisions without the store
		return status == 200 && strings.HasPrefix(body, "ok") && !strings.Contains(body, "without ") &&
			!strings.Contains(body, "bans and grants")
	})
}

// AwaitNodes waits until the server knows of count nodes.
func (n *Node) AwaitNodes(count int) {
	n.t.Helper()
	Eventually(n.t, fmt.Sprintf("%d nodes are known", count),
		func() bool { return n.Metric("weir_redis_nodes") == fmt.Sprint(count) })
}

// Delete resets a key and returns the status.
func (n *Node) Delete(key string) int {
	n.t.Helper()
	r, err := http.NewRequest(http.MethodDelete, n.Admin+"/api/v1/keys/"+key, nil)
	if err != nil {
		n.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		n.t.Fatal(err)
	}
	answer.Body.Close()
	return answer.StatusCode
}
