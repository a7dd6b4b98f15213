package redistest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// slots is how many there are.
const slots = 16384

// Cluster is a Redis Cluster. A node that a busy machine leaves alone for a while is not down.
type Cluster struct {
	t     testing.TB
	nodes []*Server
}

// StartCluster starts a cluster of masters that share the slots evenly, each with the given number
// of replicas. It returns when all nodes agree that the cluster is healthy. Options are lines of
// redis.conf for all of them.
func StartCluster(t testing.TB, masters, replicas int, options ...string) *Cluster {
	t.Helper()
	c := &Cluster{t: t}
	config := func(port int) []string {
		return append(replication(options), fmt.Sprint("port ", port), "cluster-enabled yes",
			"cluster-announce-ip 127.0.0.1",
			"cluster-node-timeout 2000", "cluster-replica-validity-factor 0", "cluster-allow-replica-migration no")
	}
	for range masters * (1 + replicas) {
		c.nodes = append(c.nodes, start(t, kind{config: config, bus: true}, options))
	}
	for i, node := range c.nodes {
		if i < masters {
			first, next := i*slots/masters, (i+1)*slots/masters
			node.Do("CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(first), strconv.Itoa(next-1))
		}
		// Nodes with the same epoch would first have to resolve that conflict.
		node.Do("CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1))
	}
	// Gossip would introduce them to each other too, but not at once.
	for i, node := range c.nodes {
		for _, other := range c.nodes[:i] {
			node.Do("CLUSTER", "MEET", "127.0.0.1", strconv.Itoa(other.port))
		}
	}
	eventually(t, "all nodes know each other",
		func() bool { return c.all(func(v view) bool { return v.masters == len(c.nodes) }) })
	for i, node := range c.nodes[masters:] {
		node.Do("CLUSTER", "REPLICATE", id(c.nodes[i%masters]))
	}
	eventually(t, "the cluster is in order", func() bool {
		return c.all(func(v view) bool { return v.masters == masters && v.replicas == masters*replicas }) &&
			!slices.ContainsFunc(c.nodes, func(node *Server) bool {
				text, _ := node.Do("CLUSTER", "INFO").(string)
				state, _ := lookup(text, "cluster_state")
				assigned, _ := lookup(text, "cluster_slots_ok")
				copying := node.Info("role") == "slave" && node.Info("master_link_status") != "up"
				return state != "ok" || assigned != strconv.Itoa(slots) || copying
			})
	})
	// With this much at the start it would take longer until the cluster takes writes.
	for _, node := range c.nodes {
		node.Do("CONFIG", "SET", "cluster-node-timeout", "300000")
	}
	return c
}

func id(node *Server) string { return fmt.Sprint(node.Do("CLUSTER", "MYID")) }

// URL returns the address of all nodes, with the password if there is one:
// redis+cluster://127.0.0.1:7000,127.0.0.1:7001,127.0.0.1:7002.
func (c *Cluster) URL() string {
	return address("redis+cluster", c.nodes[0].password, hosts(c.nodes), "")
}

// Nodes returns all nodes: first the initial masters, then the replicas of the first master, of the
// second and so on.
func (c *Cluster) Nodes() []*Server { return c.nodes }

// Slot returns the slot of a key.
func (c *Cluster) Slot(key string) int {
	c.t.Helper()
	slot, _ := c.nodes[0].Do("CLUSTER", "KEYSLOT", key).(int64)
	return int(slot)
}

// OwnerOf returns the master that serves a slot by its own account, the latest if several say so.
func (c *Cluster) OwnerOf(slot int) *Server {
	c.t.Helper()
	var owner *Server
	epoch := -1
	for _, node := range c.nodes {
		if v, ok := viewOf(node); ok && v.serves(slot) && v.epoch > epoch {
			owner, epoch = node, v.epoch
		}
	}
	if owner == nil {
		c.t.Fatalf("no node serves slot %d", slot)
	}
	return owner
}

// MigrateSlot moves a slot and its keys to another master, while clients go on. between, unless
// nil, is called when both masters know of the move, and again after each key, with the number of
// keys that have moved; until it returns, the slot stays half-way. The new master owns the slot
// only after the last call.
func (c *Cluster) MigrateSlot(slot int, to *Server, between func(moved int)) {
	c.t.Helper()
	from := c.OwnerOf(slot)
	if from == to {
		return
	}
	number, batch := strconv.Itoa(slot), "1"
	if between == nil {
		batch, between = "100", func(int) {}
	}
	to.Do("CLUSTER", "SETSLOT", number, "IMPORTING", id(from))
	from.Do("CLUSTER", "SETSLOT", number, "MIGRATING", id(to))
	between(0)
	for moved := 0; ; {
		keys, _ := from.Do("CLUSTER", "GETKEYSINSLOT", number, batch).([]any)
		if len(keys) == 0 {
			break
		}
		migrate := []string{"MIGRATE", "127.0.0.1", strconv.Itoa(to.port), "", "0", "5000"}
		if to.password != "" {
			migrate = append(migrate, "AUTH", to.password)
		}
		migrate = append(migrate, "KEYS")
		for _, key := range keys {
			migrate = append(migrate, fmt.Sprint(key))
		}
		from.Do(migrate...)
		moved += len(keys)
		between(moved)
	}
	// The new owner first: if it failed now, the slot would have no owner. Then the old one, which
	// redirects clients.
	told := []*Server{to, from}
	for _, node := range c.nodes {
		if v, ok := viewOf(node); ok && v.master && !slices.Contains(told, node) {
			told = append(told, node)
		}
	}
	for _, node := range told {
		node.Do("CLUSTER", "SETSLOT", number, "NODE", id(to))
	}
}

// view is a node's view of the cluster and of itself.
type view struct {
	masters, replicas int // that it is connected with, and itself
	master            bool
	epoch             int
	ranges            []string // of slots: "0-5460", "7"
}

// viewOf asks a node; ok is false if it does not answer.
func viewOf(node *Server) (v view, ok bool) {
	reply, err := node.Try("CLUSTER", "NODES")
	text, ok := reply.(string)
	if err != nil || !ok {
		return v, false
	}
	// id, address, flags, master, ping, pong, epoch, link, slots…
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 8 {
			continue
		}
		flags := strings.Split(f[2], ",")
		if slices.Contains(flags, "myself") {
			v.master = slices.Contains(flags, "master")
			v.epoch, _ = strconv.Atoi(f[6])
			v.ranges = f[8:]
		} else if f[7] != "connected" || slices.Contains(flags, "handshake") {
			continue
		}
		if slices.Contains(flags, "master") {
			v.masters++
		} else if slices.Contains(flags, "slave") {
			v.replicas++
		}
	}
	return v, true
}

func (v view) serves(slot int) bool {
	return v.master && slices.ContainsFunc(v.ranges, func(r string) bool {
		// A slot on the move is listed once more, as "[7->-id]", which is no number.
		first, last, several := strings.Cut(r, "-")
		if !several {
			last = first
		}
		from, err1 := strconv.Atoi(first)
		to, err2 := strconv.Atoi(last)
		return err1 == nil && err2 == nil && from <= slot && slot <= to
	})
}

// all reports whether all nodes answer with views that are as wanted.
func (c *Cluster) all(wanted func(view) bool) bool {
	return !slices.ContainsFunc(c.nodes, func(node *Server) bool {
		v, ok := viewOf(node)
		return !ok || !wanted(v)
	})
}
