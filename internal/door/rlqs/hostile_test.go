package rlqs

import (
	"fmt"
	"testing"
	"time"

	rlqspb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/weir-rl/weir/internal/leasing/broker"
	"github.com/weir-rl/weir/internal/testkit/patience"
)

// FuzzReports: no report, however it is made, breaks a stream's loop, makes more buckets than there
// may be, or is answered with an action that Envoy would not take.
func FuzzReports(f *testing.F) {
	for _, m := range []*rlqspb.RateLimitQuotaUsageReports{
		{Domain: "edge", BucketQuotaUsages: []*rlqspb.RateLimitQuotaUsageReports_BucketQuotaUsage{
			{BucketId: id("tenant", "acme"), NumRequestsAllowed: 1 << 63, NumRequestsDenied: 1<<64 - 1, TimeElapsed: durationpb.New(-1)},
			{BucketId: id("route", "fast")},
		}},
		{Domain: "edge", BucketQuotaUsages: []*rlqspb.RateLimitQuotaUsageReports_BucketQuotaUsage{{}}},
		{},
	} {
		data, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	settings := broker.Defaults()
	settings.Buckets = 8
	d := newDoor(f, Options{Settings: settings})
	f.Fuzz(func(t *testing.T, data []byte) {
		m, dropped, err := decode(data)
		if err != nil {
			return
		}
		if dropped > 0 && proto.Unmarshal(data, &rlqspb.RateLimitQuotaUsageReports{}) == nil {
			t.Fatalf("%d buckets were left out of a good report", dropped)
		}
		s := newStream(t.Context(), d.Service)
		for range 3 {
			if s.report(m) != nil {
				return
			}
			if err := s.answer(); err != nil {
				t.Fatal(err)
			}
			if s.holder.Len() > settings.Buckets || len(s.known) != s.holder.Len() {
				t.Fatalf("%d buckets are known, %d held", len(s.known), s.holder.Len())
			}
			for len(s.out) > 0 {
				sent, err := proto.Marshal(<-s.out)
				if err != nil {
					t.Fatal(err)
				}
				var heard rlqspb.RateLimitQuotaResponse
				if err := proto.Unmarshal(sent, &heard); err != nil {
					t.Fatal(err)
				}
				for _, a := range heard.GetBucketAction() {
					if err := a.Validate(); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		s.tell()
	})
}

// BenchmarkReports is the cost of a bucket in a report of 2,000, of 50 Envoys in turn: from the
// bytes of the report to the bytes of the response.
func BenchmarkReports(b *testing.B) {
	const envoys, buckets = 50, 2000
	d := newDoor(b, Options{})
	var streams []*stream
	m := &rlqspb.RateLimitQuotaUsageReports{Domain: "edge"}
	for i := range buckets {
		m.BucketQuotaUsages = append(m.BucketQuotaUsages, &rlqspb.RateLimitQuotaUsageReports_BucketQuotaUsage{
			BucketId: id("tenant", fmt.Sprint(i)), NumRequestsAllowed: 3, TimeElapsed: durationpb.New(broker.Interval),
		})
	}
	text, err := proto.Marshal(m)
	if err != nil {
		b.Fatal(err)
	}
	for range envoys {
		streams = append(streams, newStream(b.Context(), d.Service))
	}
	var sent []byte
	report := func(s *stream) {
		s.budget = 10
		m, _, err := decode(text)
		if err != nil {
			b.Fatal(err)
		}
		if err := s.report(m); err != nil {
			b.Fatal(err)
		}
		if err := s.answer(); err != nil {
			b.Fatal(err)
		}
		if sent, err = (proto.MarshalOptions{}).MarshalAppend(sent[:0], <-s.out); err != nil {
			b.Fatal(err)
		}
	}
	for _, s := range streams {
		report(s)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		report(streams[i%envoys])
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/buckets, "ns/bucket")
}

// TestSilence: a stream whose reports stop is closed, and one on which none comes at all.
func TestSilence(t *testing.T) {
	for _, reports := range []int{0, 1} {
		d := newDoor(t, Options{silence: 50 * time.Millisecond})
		// On a busy machine a stream may be closed before its report has come.
		patience.Until(t, "a stream is answered, and closed", func() bool {
			e := d.stream(t)
			for range reports {
				_ = e.Send(&rlqspb.RateLimitQuotaUsageReports{Domain: "edge",
					BucketQuotaUsages: []*rlqspb.RateLimitQuotaUsageReports_BucketQuotaUsage{{
						BucketId: id("tenant", "acme"), NumRequestsDenied: 1, TimeElapsed: durationpb.New(broker.Interval),
					}}})
				if _, err := e.Recv(); err != nil {
					return false
				}
			}
			if got := e.ends(); got != codes.Unavailable {
				t.Errorf("after %d reports: %v", reports, got)
			}
			return true
		})
	}
}
