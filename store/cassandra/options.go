package cassandra

import (
	"fmt"
	"log/slog"
	"time"
)

// Options configure Open. URL is required; the zero value of every other field suits most.
type Options struct {
	// URL is the address of Cassandra, with the user to log in as, and the keyspace:
	//
	//	cassandra://user:password@host:9042,host2/keyspace
	//
	// The hosts are those that are asked first; the others are found. Query parameters are listed
	// in docs/operating/stores.md.
	URL string
	// Connections is the number of TCP connections to each server; 0 means 2.
	Connections int
	// InFlight bounds how many statements are under way at the same time; 0 means 64.
	InFlight int
	// Timeout is how long one statement may take before its outcome counts as unknown; 0 means 1 s.
	// It is not the deadline of a decision, which the caller's context (or package fallback) sets:
	// it bounds how long a hanging statement keeps its keys.
	Timeout time.Duration
	// RememberRefusals is how long at most this node repeats a refusal without asking Cassandra; 0
	// means never. A second is good.
	RememberRefusals time.Duration
	// Heartbeat is the interval of this node's heartbeats, by which all nodes know how many there
	// are; 0 means none. A node without one for five intervals counts as gone. Cassandra counts in
	// seconds: with less than a second, nodes count as gone later.
	Heartbeat time.Duration
	// Logger gets warnings for operators; nil means that nothing is logged.
	Logger *slog.Logger
	// Clock is for tests: it returns the instant of each call, in µs since the Unix epoch, in
	// place of Cassandra's clock. Values are then kept for a day.
	Clock func() int64
}

// The defaults of Options.
const (
	DefaultConnections = 2
	DefaultInFlight    = 64
	DefaultTimeout     = time.Second
)

// complete sets defaults, and checks the other options.
func (o *Options) complete() (*target, error) {
	t, err := parseURL(o.URL)
	if err != nil {
		return nil, err
	}
	if o.Connections == 0 {
		o.Connections = DefaultConnections
	}
	if o.InFlight == 0 {
		o.InFlight = DefaultInFlight
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	switch {
	case o.Connections < 1 || o.Connections > 64:
		return nil, fmt.Errorf("cassandra store: the number of connections is %d; it must be from 1 to 64",
			o.Connections)
	case o.InFlight < 1:
		return nil, fmt.Errorf("cassandra store: InFlight is %d; it must be above 0", o.InFlight)
	case o.Timeout < 0 || o.Heartbeat < 0:
		return nil, fmt.Errorf("cassandra store: Timeout (%v) and Heartbeat (%v) must not be negative", o.Timeout,
			o.Heartbeat)
	}
	return t, nil
}
