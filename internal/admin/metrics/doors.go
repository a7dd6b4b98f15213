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
func NewDoors(o DoorOptions) prometheus.Collector {
	return group{
		source[map[string]listen.Stats]{o.Doors, connectionRows},
		source[map[string]h2.MemoryStats]{o.Memory, connectionMemoryRows},
		source[map[string]uint64]{o.Pages, pageRows}, source[shed.Stats]{o.Line, lineRows},
		source[listen.CertificateStatus]{o.Certificates, certificateRows},
		source[DoorOptions]{func() DoorOptions { return o }, tokenRows},
	}
}

var connectionRows = []row[map[string]listen.Stats]{
	gauges("weir_connections", "door", "Open connections of a door.",
		func(doors map[string]listen.Stats, v value) {
			for door, s := range doors {
				v(float64(s.Open), door)
			}
		}),
	counters("weir_connections_accepted_total", "door", "Connections that a door was handed.",
		func(doors map[string]listen.Stats, n count) {
			for door, s := range doors {
				n(s.Accepted, door)
			}
		}),
	counters("weir_connections_refused_total", "door reason",
		"Connections that were closed before a door saw them, by reason.",
		func(doors map[string]listen.Stats, n count) {
			for door, s := range doors {
				for reason := range listen.Reasons {
					n(s.Refused[reason], door, reason.String())
				}
			}
		}),
}

var connectionMemoryRows = []row[map[string]h2.MemoryStats]{
	gauges("weir_connections_memory_bytes", "door",
		"What the HTTP/2 connections of a door make this process keep, reckoned from above.",
		func(doors map[string]h2.MemoryStats, v value) {
			for door, s := range doors {
				v(float64(s.Bytes), door)
			}
		}),
	counters("weir_connections_over_memory_total", "door what",
		"Connections that were ended, since they kept most of limits.memory while it was used up (connection), and requests that were refused, since their connection kept its share (request).",
		func(doors map[string]h2.MemoryStats, n count) {
			for door, s := range doors {
				n(s.Connections, door, "connection")
				n(s.Requests, door, "request")
			}
		}),
}

var tokenRows = []row[DoorOptions]{
	counters("weir_wrong_tokens_total", "outcome",
		"Requests with a wrong bearer token (wrong), and those whose token was not looked at, since too many wrong ones came from there (too_many).",
		func(o DoorOptions, n count) {
			if o.Tokens != nil {
				wrong, tooMany := o.Tokens()
				n(wrong, "wrong")
				n(tooMany, "too_many")
			}
		}),
}

var pageRows = []row[map[string]uint64]{
	counters("weir_page_requests_refused_total", "by",
		"Requests that a web page made a browser send to the HTTP door, and that were refused, by the sign of it.",
		func(pages map[string]uint64, n count) {
			for by, refused := range pages {
				n(refused, by)
			}
		}),
}

var lineRows = []row[shed.Stats]{
	gauge("weir_line_seconds", "How long requests stand in line now before this process looks at them.",
		func(s shed.Stats) float64 { return s.Waited.Seconds() }),
	counters("weir_shed_total", "door",
		"Requests that were turned away since they had stood in line for too long, while this process had more to do than it can.",
		func(s shed.Stats, n count) {
			for door, turned := range s.Turned {
				n(turned, door)
			}
		}),
}

var certificateRows = []row[listen.CertificateStatus]{
	gauge("weir_certificate_expiry_timestamp_seconds", "When the first of the certificates in force expires.",
		func(s listen.CertificateStatus) int64 { return s.Expires.Unix() }),
	counter("weir_certificate_loads_total", "Loads of certificates.",
		func(s listen.CertificateStatus) uint64 { return s.Loads }),
	counter("weir_certificate_load_errors_total", "Changes of the certificates' files that could not be taken over.",
		func(s listen.CertificateStatus) uint64 { return s.Failures }),
}
