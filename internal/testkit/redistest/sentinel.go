package redistest

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// masterName is the sentinels' name for the master that they watch.
const masterName = "mymaster"

// After how many milliseconds of silence a master is down: in general, and when one was killed.
const (
	patientAfter = "300000"
	killedAfter  = "1000"
)

// Sentinel is a master with two replicas, watched by three sentinels of whom two must agree. While
// AwaitMaster waits for them, a master that is silent for a second is down, and a failover takes
// two or three more. At other times one that a busy machine leaves alone stays the master.
type Sentinel struct {
	t         testing.TB
	servers   []*Server // the first was the master at the start
	sentinels []*Server
}

// StartSentinel starts one, and returns when all know of each other. Options are lines of
// redis.conf for the master and its replicas.
func StartSentinel(t testing.TB, options ...string) *Sentinel {
	t.Helper()
	s := &Sentinel{t: t}
	for range 3 {
		s.servers = append(s.servers, start(t, kind{config: func(port int) []string {
			lines := append(replication(options), fmt.Sprint("port ", port))
			if len(s.servers) > 0 {
				lines = append(lines, fmt.Sprint("replicaof 127.0.0.1 ", s.servers[0].port))
			}
			return lines
		}}, options))
	}
	watch := func(port int) []string {
		lines := []string{
			fmt.Sprint("port ", port),
			fmt.Sprintf("sentinel monitor %s 127.0.0.1 %d 2", masterName, s.servers[0].port),
			"sentinel down-after-milliseconds " + masterName + " " + patientAfter,
			"sentinel failover-timeout " + masterName + " 2000",
		}
		if p := password(options); p != "" {
			lines = append(lines, "sentinel auth-pass "+masterName+" "+p)
		}
		return lines
	}
	for range 3 {
		one := start(t, kind{config: watch, args: []string{"--sentinel"}}, nil)
		// so that it finds the others soon
		one.Do("SENTINEL", "DEBUG", "INFO-PERIOD", "200", "PUBLISH-PERIOD", "200")
		s.sentinels = append(s.sentinels, one)
	}
	eventually(t, "the sentinels know each other and the replicas", func() bool {
		for _, one := range s.sentinels {
			master := fields(one.Do("SENTINEL", "MASTER", masterName))
			if master["flags"] != "master" || master["num-other-sentinels"] != "2" || master["num-slaves"] != "2" {
				return false
			}
			replicas, _ := one.Do("SENTINEL", "REPLICAS", masterName).([]any)
			for _, r := range replicas {
				if replica := fields(r); replica["flags"] != "slave" || replica["master-link-status"] != "ok" {
					return false
				}
			}
		}
		return true
	})
	for _, one := range s.sentinels {
		// In milliseconds. A second master is suffered for four times PUBLISH-PERIOD; that must be
		// longer than a failover takes, or a new master, of which a sentinel has not heard yet, is
		// made a replica again. A replica must have answered within five times PING-PERIOD and
		// three times INFO-PERIOD to become a master. A sentinel that was kept waiting for
		// TILT-TRIGGER, by a slow disk say, trusts nothing that it sees for TILT-PERIOD.
		one.Do("SENTINEL", "DEBUG", "PING-PERIOD", "500", "INFO-PERIOD", "1000", "ASK-PERIOD", "200",
			"PUBLISH-PERIOD", "1000",
			"TILT-TRIGGER", "500", "TILT-PERIOD", "1000")
	}
	return s
}

// replication are the lines of redis.conf for servers that copy each other.
func replication(options []string) []string {
	lines := []string{"repl-diskless-sync-delay 0"}
	if p := password(options); p != "" {
		lines = append(lines, "masterauth "+p)
	}
	return lines
}

// fields makes a map of a reply that lists names and values by turns.
func fields(reply any) map[string]string {
	list, _ := reply.([]any)
	out := map[string]string{}
	for i := 0; i+1 < len(list); i += 2 {
		out[fmt.Sprint(list[i])] = fmt.Sprint(list[i+1])
	}
	return out
}

// URL returns the address of all sentinels, with the name of the master and its password if it has
// one: redis+sentinel://127.0.0.1:26379,127.0.0.1:26380,127.0.0.1:26381/mymaster.
func (s *Sentinel) URL() string {
	return address("redis+sentinel", s.servers[0].password, hosts(s.sentinels), "/"+masterName)
}

// hosts lists the addresses of servers.
func hosts(servers []*Server) string {
	var list []string
	for _, s := range servers {
		list = append(list, s.Addr())
	}
	return strings.Join(list, ",")
}

// Servers returns the servers, of which one is the master and the others are replicas.
func (s *Sentinel) Servers() []*Server { return s.servers }

// Sentinels returns the sentinels.
func (s *Sentinel) Sentinels() []*Server { return s.sentinels }

// Master returns the server that is the master now, as the first sentinel says that answers.
func (s *Sentinel) Master() *Server {
	s.t.Helper()
	for _, one := range s.sentinels {
		if m := s.masterOf(one); m != nil {
			return m
		}
	}
	s.t.Fatal("no sentinel answers")
	return nil
}

// masterOf returns the master in the eyes of one sentinel; nil if it does not answer.
func (s *Sentinel) masterOf(one *Server) *Server {
	reply, err := one.Try("SENTINEL", "GET-MASTER-ADDR-BY-NAME", masterName)
	addr, _ := reply.([]any)
	if err != nil || len(addr) != 2 {
		return nil
	}
	for _, server := range s.servers {
		if server.Addr() == fmt.Sprintf("%v:%v", addr[0], addr[1]) {
			return server
		}
	}
	return nil
}

// Failover makes the sentinels put a replica in the master's place, and returns the new master when
// they are done. The old one, which runs, becomes a replica some seconds later, and until then
// takes writes that will be lost.
func (s *Sentinel) Failover() *Server {
	s.t.Helper()
	old := s.settled()
	var master *Server
	eventually(s.t, "a failover succeeds", func() bool {
		if m := s.agreed(); m != nil && m != old {
			master = m
			return true
		}
		// It may refuse at first, or give up, while it finds no healthy replica.
		for _, one := range s.sentinels {
			if m := s.masterOf(one); m == nil { // it does not run
				continue
			} else if m == old && s.idle(one) {
				_, _ = one.Try("SENTINEL", "FAILOVER", masterName)
			}
			break // one is enough
		}
		return false
	})
	return master
}

// KillMaster kills the master and returns it. Writes that the master had before this call are not
// lost: the replicas that run and are not paused have them by then. AwaitMaster returns the
// successor.
func (s *Sentinel) KillMaster() *Server {
	s.t.Helper()
	m := s.settled()
	role, _ := m.Do("ROLE").([]any)
	if len(role) < 2 || role[0] != "master" {
		s.t.Fatalf("the master says of itself %v", role)
	}
	offset, _ := role[1].(int64)
	m = s.copied(offset)
	m.Kill()
	return m
}

// settled waits until all servers that run and are not paused copy the master, and returns that.
// One that has been the master, and does not copy the new one yet, must not become it again with
// old data.
func (s *Sentinel) settled() *Server {
	s.t.Helper()
	return s.copied(0)
}

// copied does what settled does, and waits until the copies go as far as an offset.
func (s *Sentinel) copied(offset int64) *Server {
	s.t.Helper()
	var master *Server
	eventually(s.t, "all replicas copy the master", func() bool {
		master = s.Master()
		for _, server := range s.servers {
			reply, err := server.try(time.Second, "ROLE")
			if server == master || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, os.ErrDeadlineExceeded) {
				continue
			}
			if role, _ := reply.([]any); len(role) < 5 || role[0] != "slave" || role[2] != int64(master.port) ||
				role[3] != "connected" {
				return false
			} else if has, _ := role[4].(int64); has < offset {
				return false
			}
		}
		return true
	})
	return master
}

// AwaitMaster waits until all running sentinels agree on another master than old, which was killed,
// and have finished the failover, and returns it. (A sentinel whose new master dies before that
// waits for it to come back.)
func (s *Sentinel) AwaitMaster(old *Server) *Server {
	s.t.Helper()
	s.downAfter(killedAfter)
	defer s.downAfter(patientAfter)
	var master *Server
	eventually(s.t, "the sentinels have a new master", func() bool {
		master = s.agreed()
		return master != nil && master != old
	})
	return master
}

// downAfter says after what silence the sentinels that run take the master for one that is down.
func (s *Sentinel) downAfter(ms string) {
	for _, one := range s.sentinels {
		_, _ = one.Try("SENTINEL", "SET", masterName, "down-after-milliseconds", ms)
	}
}

// agreed returns the master that all running sentinels see; nil if they do not agree, are still
// busy with the failover, or it is not a master.
func (s *Sentinel) agreed() *Server {
	var master *Server
	for _, one := range s.sentinels {
		m := s.masterOf(one)
		if m == nil { // it does not run
			continue
		}
		if master != nil && m != master || !s.idle(one) {
			return nil
		}
		master = m
	}
	if master == nil {
		return nil
	}
	reply, _ := master.Try("ROLE")
	if role, _ := reply.([]any); len(role) == 0 || role[0] != "master" {
		return nil
	}
	return master
}

// idle reports whether a sentinel finds its master in order and no failover is under way.
func (s *Sentinel) idle(one *Server) bool {
	view, _ := one.Try("SENTINEL", "MASTER", masterName)
	return fields(view)["flags"] == "master"
}
