package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-rl/weir/internal/wire/h2"
	"github.com/weir-rl/weir/internal/wire/listen"
	"github.com/weir-rl/weir/internal/wire/shed"
)

// DoorOptions say what NewDoors reads. A nil field means that there is no such metric.
type DoorOptions struct {
	Doors        func() map[string]listen.Stats   // by the name of the door
	Memory       func() map[string]h2.MemoryStats // likewise
	Tokens       func() (wrong, tooMany uint64)
	Pages        func() map[string]uint64 // refused requests of web pages, by telltale sign
	Certificates func() listen.CertificateStatus
	Line         func() shed.Stats
}

// NewDoors returns a collector of connections, tokens, certificates and shed requests at the doors,
// for Metrics.Registry.
func NewDoors(o DoorOptions) prometheus.Collector { return doorCollector{o} }

type doorCollector struct{ o DoorOptions }

var (
	descConnections        = prometheus.NewDesc("weir_connections", "Open connections of a door.", []string{"door"}, nil)
	descConnectionsTotal   = prometheus.NewDesc("weir_connections_accepted_total", "Connections that a door was handed.", []string{"door"}, nil)
	descConnectionsRefused = prometheus.NewDesc("weir_connections_refused_total", "Connections that were closed before a door saw them, by reason.", []string{"door", "reason"}, nil)
	descMemory             = prometheus.NewDesc("weir_connections_memory_bytes", "What the HTTP/2 connections of a door make this process keep, reckoned from above.", []string{"door"}, nil)
	descOverMemory         = prometheus.NewDesc("weir_connections_over_memory_total", "Connections that were ended, since they kept most of limits.memory while it was used up (connection), and requests that were refused, since their connection kept its share (request).", []string{"door", "what"}, nil)
	descWrongTokens        = prometheus.NewDesc("weir_wrong_tokens_total", "Requests with a wrong bearer token (wrong), and those whose token was not looked at, since too many wrong ones came from there (too_many).", []string{"outcome"}, nil)
	descPages              = prometheus.NewDesc("weir_page_requests_refused_total", "Requests that a web page made a browser send to the HTTP door, and that were refused, by the sign of it.", []string{"by"}, nil)
	descCertificateExpiry  = prometheus.NewDesc("weir_certificate_expiry_timestamp_seconds", "When the first of the certificates in force expires.", nil, nil)
	descCertificateLoads   = prometheus.NewDesc("weir_certificate_loads_total", "Loads of certificates.", nil, nil)
	descLine               = prometheus.NewDesc("weir_line_seconds", "How long requests stand in line now before this process looks at them.", nil, nil)
	descTurned             = prometheus.NewDesc("weir_shed_total", "Requests that were turned away since they had stood in line for too long, while this process had more to do than it can.", []string{"door"}, nil)
	descCertificateErrors  = prometheus.NewDesc("weir_certificate_load_errors_total", "Changes of the certificates' files that could not be taken over.", nil, nil)
)

var descsDoors = []*prometheus.Desc{descConnections, descConnectionsTotal, descConnectionsRefused, descMemory, descOverMemory, descWrongTokens, descPages, descCertificateExpiry, descCertificateLoads, descCertificateErrors, descLine, descTurned}

// Describe implements prometheus.Collector.
func (c doorCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range descsDoors {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c doorCollector) Collect(ch chan<- prometheus.Metric) {
	counter, gauge := counterTo(ch), gaugeTo(ch)
	if c.o.Doors != nil {
		for door, s := range c.o.Doors() {
			gauge(descConnections, float64(s.Open), door)
			counter(descConnectionsTotal, s.Accepted, door)
			for reason := range listen.Reasons {
				counter(descConnectionsRefused, s.Refused[reason], door, reason.String())
			}
		}
	}
	if c.o.Memory != nil {
		for door, s := range c.o.Memory() {
			gauge(descMemory, float64(s.Bytes), door)
			counter(descOverMemory, s.Connections, door, "connection")
			counter(descOverMemory, s.Requests, door, "request")
		}
	}
	if c.o.Tokens != nil {
		wrong, tooMany := c.o.Tokens()
		counter(descWrongTokens, wrong, "wrong")
		counter(descWrongTokens, tooMany, "too_many")
	}
	if c.o.Pages != nil {
		for by, n := range c.o.Pages() {
			counter(descPages, n, by)
		}
	}
	if c.o.Line != nil {
		s := c.o.Line()
		gauge(descLine, s.Waited.Seconds())
		for door, n := range s.Turned {
			counter(descTurned, n, door)
		}
	}
	if c.o.Certificates != nil {
		s := c.o.Certificates()
		gauge(descCertificateExpiry, float64(s.Expires.Unix()))
		counter(descCertificateLoads, s.Loads)
		counter(descCertificateErrors, s.Failures)
	}
}
