package envoytest_test

import (
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	rlqs "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weir-rl/weir/internal/testkit/patience"
)

// usage is one bucket's part of one report.
type usage struct {
	stream          *stream
	report          int // the number of the message in its stream, from 0
	alone           bool
	allowed, denied uint64
	seconds         int64 // since the usage before
}

// stream is one that Envoy has opened.
type stream struct {
	domain  string // of its first message
	reports int    // messages that came
	grid    int    // messages about more than one bucket, which come by the clock
	bytes   int    // of the last message of the grid
	buckets int    // in that message
	send    func(*rlqs.RateLimitQuotaResponse) error
	end     chan struct{} // closed to end it
	over    bool
}

// server is a quota server that does nothing by itself: it keeps what Envoy reports, and a test
// answers.
type server struct {
	rlqs.UnimplementedRateLimitQuotaServiceServer
	t testing.TB

	mu      sync.Mutex
	refuse  bool // new streams
	refused []time.Time
	streams []*stream
	usages  map[string][]usage // by the bucket's entry "case"
	tokens  int                // token buckets that were sent
}

// serve starts a server on a free port.
func serve(t testing.TB) (s *server, port int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s = &server{t: t, usages: map[string][]usage{}}
	g := grpc.NewServer()
	rlqs.RegisterRateLimitQuotaServiceServer(g, s)
	go func() { _ = g.Serve(l) }() // until it is stopped
	t.Cleanup(g.Stop)
	return s, l.Addr().(*net.TCPAddr).Port
}

func (s *server) StreamRateLimitQuotas(g grpc.BidiStreamingServer[rlqs.RateLimitQuotaUsageReports,
	rlqs.RateLimitQuotaResponse]) error {
	st := &stream{send: g.Send, end: make(chan struct{})}
	s.mu.Lock()
	if s.refuse {
		s.refused = append(s.refused, time.Now())
		s.mu.Unlock()
		return status.Error(codes.Unavailable, "no streams now")
	}
	s.streams = append(s.streams, st)
	s.mu.Unlock()
	received := make(chan error, 1)
	go func() {
		for {
			m, err := g.Recv()
			if err != nil {
				received <- err
				return
			}
			s.add(st, m)
		}
	}()
	var err error
	select {
	case err = <-received:
	case <-st.end:
		err = status.Error(codes.Unavailable, "the test ends this stream")
	}
	s.mu.Lock()
	st.over = true
	s.mu.Unlock()
	return err
}

func (s *server) add(st *stream, m *rlqs.RateLimitQuotaUsageReports) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st.reports == 0 {
		st.domain = m.GetDomain()
	} else if m.GetDomain() != "" && m.GetDomain() != st.domain {
		s.t.Errorf("a stream of domain %q goes on with %q", st.domain, m.GetDomain())
	}
	all := m.GetBucketQuotaUsages()
	if len(all) > 1 {
		st.grid++
		st.buckets = len(all)
		st.bytes = 0
		for _, u := range all {
			st.bytes += sizeOf(u)
		}
	}
	for _, u := range all {
		name := u.GetBucketId().GetBucket()["case"]
		s.usages[name] = append(s.usages[name], usage{
			stream: st, report: st.reports, alone: len(all) == 1,
			allowed: u.GetNumRequestsAllowed(), denied: u.GetNumRequestsDenied(), seconds: u.GetTimeElapsed().GetSeconds(),
		})
	}
	st.reports++
}

// of returns what was reported of a bucket.
func (s *server) of(name string) []usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.usages[name])
}

// opened returns how many streams Envoy has opened, and the last one's numbers.
func (s *server) opened() (streams int, last stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.streams); n > 0 {
		return n, *s.streams[n-1]
	}
	return 0, stream{}
}

// answer sends a response on the last stream.
func (s *server) answer(actions ...*action) {
	s.t.Helper()
	s.mu.Lock()
	st := s.streams[len(s.streams)-1]
	defer s.mu.Unlock() // one at a time
	for _, a := range actions {
		if a.GetQuotaAssignmentAction().GetRateLimitStrategy().GetTokenBucket() != nil {
			s.tokens++
		}
	}
	if err := st.send(&rlqs.RateLimitQuotaResponse{BucketAction: actions}); err != nil {
		s.t.Fatal(err)
	}
}

// hangUp ends the last stream. If refuse, Envoy can open no other until takeCalls.
func (s *server) hangUp(refuse bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse = refuse
	close(s.streams[len(s.streams)-1].end)
}

// takeCalls lets Envoy open streams again, and returns when it has tried before.
func (s *server) takeCalls() (refused []time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse = false
	return s.refused
}

// calls returns how often Envoy has tried to open a stream in vain.
func (s *server) calls() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.refused)
}

// ticks waits until Envoy has reported all buckets n times more.
func (s *server) ticks(t testing.TB, n int) {
	t.Helper()
	_, before := s.opened()
	patience.Until(t, "Envoy reports all its buckets again", func() bool {
		_, now := s.opened()
		return now.grid >= before.grid+n
	})
}
