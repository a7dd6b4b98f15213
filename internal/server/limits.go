package server

import (
	"fmt"
	"runtime/debug"
	"time"

	"github.com/weir-rl/weir/internal/host/load"
)

// boundSettings bound connections and requests.
var boundSettings = []setting{
	{path: "drain", value: "10s",
		help: "how long requests under way may take to finish when the program ends",
		set:  toDuration(0, func(c *Config) *time.Duration { return &c.drain })},
	{path: "max_connections", value: "10000",
		help: "bound on the connections of each door; further ones are closed",
		set:  toInt(1, 1<<30, func(c *Config) *int { return &c.maxConnections })},
	{path: "limits.connections_per_address", value: "0",
		help: "bound on those from one address (IPv6: /64) that is none of client_ip.trusted_proxies; 0 for none",
		set:  toInt(0, 1<<30, func(c *Config) *int { return &c.limits.perAddress })},
	{path: "limits.header_timeout", value: "10s",
		help: "how long a connection may take to be set up, and the header of a request to arrive",
		set:  toDuration(10*time.Millisecond, func(c *Config) *time.Duration { return &c.limits.headerTimeout })},
	{path: "limits.body_bytes", value: "0",
		help: "bound on the body of a request through the proxy; 0 for none",
		set: text(func(c *Config, s string) (err error) {
			if c.limits.body = 0; s != "0" {
				c.limits.body, err = parseBytes(s)
			}
			return err
		})},
	{path: "limits.memory", value: "auto",
		help: "memory that all connections of a door may make this process keep, over HTTP/2 at the proxy and at the gRPC door, and at the RESP door, each: headers, bodies, answers; auto: an eighth of the memory of this process, from 64MiB to 1GiB",
		set: text(func(c *Config, s string) (err error) {
			if c.limits.memory = 0; s == "auto" {
				return nil
			}
			if c.limits.memory, err = parseBytes(s); err == nil && c.limits.memory < 8<<20 {
				err = fmt.Errorf("%q is below 8MiB", s)
			}
			return err
		})},
	{path: "limits.idle", value: "2m",
		help: "how long a connection over HTTP may be without a request",
		set:  toDuration(10*time.Millisecond, func(c *Config) *time.Duration { return &c.limits.idle })},
	{path: "limits.stall", value: "1m",
		help: "how long a client may take nothing of an answer that is being sent",
		set:  toDuration(10*time.Millisecond, func(c *Config) *time.Duration { return &c.limits.stall })},
}

// boundConfig is the configuration of bounds.
type boundConfig struct {
	drain          time.Duration
	maxConnections int
	limits         limits
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
