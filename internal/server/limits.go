package server

import (
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/weir-rl/weir/internal/host/load"
	"github.com/weir-rl/weir/internal/server/settings"
)

// boundSettings bound connections and requests.
var boundSettings = []setting{
	{Path: "drain", Kind: settings.List, Value: "10s",
		Help: "how long requests under way may take to finish when the program ends; of two times the first is how long the doors still take requests while /readyz says 503, as in 5s,10s",
		Set:  setDrain},
	{Path: "max_connections", Value: "10000",
		Help: "bound on the connections of each door; further ones are closed",
		Set:  settings.Int(1, 1<<30, func(c *Config) *int { return &c.maxConnections })},
	{Path: "limits.connections_per_address", Value: "0",
		Help: "bound on those from one address (IPv6: /64) that is none of client_ip.trusted_proxies; 0 for none",
		Set:  settings.Int(0, 1<<30, func(c *Config) *int { return &c.limits.perAddress })},
	{Path: "limits.header_timeout", Value: "10s",
		Help: "how long a connection may take to be set up, and the header of a request to arrive",
		Set: settings.Duration(10*time.Millisecond,
			func(c *Config) *time.Duration { return &c.limits.headerTimeout })},
	{Path: "limits.body_bytes", Value: "0",
		Help: "bound on the body of a request through the proxy; 0 for none",
		Set: settings.Text(func(c *Config, s string) (err error) {
			if c.limits.body = 0; s != "0" {
				c.limits.body, err = settings.ParseBytes(s)
			}
			return err
		})},
	{Path: "limits.memory", Value: "auto",
		Help: "memory that all connections of a door may make this process keep, over HTTP/2 at the proxy and at the gRPC door, and at the RESP door, each: headers, bodies, answers; auto: an eighth of the memory of this process, from 64MiB to 1GiB",
		Set: settings.Text(func(c *Config, s string) (err error) {
			if c.limits.memory = 0; s == "auto" {
				return nil
			}
			if c.limits.memory, err = settings.ParseBytes(s); err == nil && c.limits.memory < 8<<20 {
				err = fmt.Errorf("%q is below 8MiB", s)
			}
			return err
		})},
	{Path: "limits.idle", Value: "2m",
		Help: "how long a connection over HTTP may be without a request",
		Set:  settings.Duration(10*time.Millisecond, func(c *Config) *time.Duration { return &c.limits.idle })},
	{Path: "limits.stall", Value: "1m",
		Help: "how long a client may take nothing of an answer that is being sent",
		Set:  settings.Duration(10*time.Millisecond, func(c *Config) *time.Duration { return &c.limits.stall })},
}

// boundConfig is the configuration of bounds.
type boundConfig struct {
	drain          drainTimes
	maxConnections int
	limits         limits
}

// drainTimes are the times of an end: at first the doors still take requests, while the server says
// that it is going away, then those under way finish.
type drainTimes struct{ announce, finish time.Duration }

// setDrain takes the time to finish, or both times.
func setDrain(c *Config, items []string) error {
	times := []*time.Duration{&c.drain.announce, &c.drain.finish}
	c.drain = drainTimes{}
	if len(items) == 1 {
		times = times[1:]
	}
	if len(items) != len(times) {
		return errors.New("must be one time, or two, as in 5s,10s")
	}
	for i, item := range items {
		one := settings.Duration(0, func(*Config) *time.Duration { return times[i] })
		if err := one(c, []string{item}); err != nil {
			return err
		}
	}
	return nil
}

// limits bound connections and requests at several doors.
type limits struct {
	perAddress                 int
	body, memory               int64
	headerTimeout, idle, stall time.Duration
}

const (
	// headerBytes bounds the header of a request over HTTP: more than the servers behind a proxy
	// take by default (8 KiB to 16 KiB mostly), with room for the largest tickets of Kerberos.
	headerBytes = 64 << 10
	// streams bounds the requests under way on one HTTP/2 connection. Browsers send up to 100 at a
	// time, and a proxy in front opens another connection. limits.memory bounds what they may cost.
	streams = 250
)

// mostMemory is limits.memory in bytes.
func (l *limits) mostMemory() int64 {
	if l.memory > 0 {
		return l.memory
	}
	return autoMemory(load.MemorySize(nil), debug.SetMemoryLimit(-1))
}

// autoMemory is the value of limits.memory for auto: an eighth of the memory that the process may
// have. size is that memory as the system reports it, 0 if unknown, and limit the collector's
// memory limit.
func autoMemory(size uint64, limit int64) int64 {
	const unknown, least, most = 2 << 30, 64 << 20, 1 << 30
	if size == 0 {
		size = unknown
	}
	return int64(min(max(min(size, uint64(limit))/8, least), most))
}
