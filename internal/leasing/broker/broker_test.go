package broker

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	rlqspb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"pgregory.net/rapid"

	"github.com/weir-rl/weir/algo"
)

// TestFill: max-min, against its definition.
func TestFill(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		wants := rapid.SliceOfN(rapid.Int64Range(0, 50), 0, 8).Draw(t, "wants")
		sum := rapid.Int64Range(0, 200).Draw(t, "sum")
		out := make([]int64, len(wants))
		maxMinShares(wants, sum, out)
		given, wanted := int64(0), int64(0)
		for i, w := range wants {
			if out[i] < 0 || out[i] > w {
				t.Fatalf("%v of %v", out, wants)
			}
			given += out[i]
			wanted += w
			for j := range wants {
				if out[i] < w && out[j] > out[i]+1 {
					t.Fatalf("%d has more than %d, which is not satisfied: %v of %v", j, i, out, wants)
				}
			}
		}
		if given != min(sum, wanted) {
			t.Fatalf("%d of %d were given to %v", given, sum, wants)
		}
	})
}

// TestFraction: never above the rate, whole numbers, and as near as any.
func TestFraction(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		milli, most := rapid.Int64Range(1, 10_000_000).Draw(t, "milli"), rapid.Int64Range(6, 60).Draw(t, "most")
		f, s := wholeFraction(milli, most)
		if f < 1 || s < 1 || s > most || f*1000 > milli*s && (f != 1 || s != most) {
			t.Fatalf("%d in %d s for %d", f, s, milli)
		}
		for o := int64(1); o <= most; o++ {
			if n := milli * o / 1000; n > 0 && float64(n)/float64(o) > float64(f)/float64(s)*(1+1e-9) {
				t.Fatalf("%d in %d s is nearer to %d than %d in %d s", n, o, milli, f, s)
			}
		}
	})
}

// TestWholeSeconds: no interval below one second, and every life at least one.
func TestWholeSeconds(t *testing.T) {
	for serial := range int64(3) {
		for _, e := range []assignment{{kind: assignUnits, g: math.MaxInt64},
			{kind: assignRate, burst: 1, fill: 3, every: 2}, {kind: assignNothing}, {kind: assignAll}} {
			e.serial = serial * (maxNanos - 2)
			a := Action{Bucket: "k", New: true, Clear: true, TTL: 1900 * time.Millisecond, assignment: e}
			for _, x := range decoded(t, &a) {
				if x.GetBucketId().GetBucket()["name"] != "k" {
					t.Errorf("an action for %v", x.GetBucketId())
				}
				q := x.GetQuotaAssignmentAction()
				if q.AssignmentTimeToLive.Seconds != 1 || q.AssignmentTimeToLive.Nanos != 0 {
					t.Errorf("a life of %v", q.AssignmentTimeToLive)
				}
				if b := q.RateLimitStrategy.GetTokenBucket(); b != nil &&
					(b.FillInterval.Seconds < 1 || b.FillInterval.Nanos == 0 || b.FillInterval.CheckValid() != nil ||
						b.MaxTokens == 0) {
					t.Errorf("%v", b)
				}
				if err := x.Validate(); err != nil {
					t.Error(err)
				}
				if strings.Contains(fmt.Sprint(x), "requests_per_time_unit") {
					t.Errorf("%v", x)
				}
			}
		}
	}
}

// TestWire: what is written is what the API's messages are, and nothing of it is unknown to them.
func TestWire(t *testing.T) {
	id := &rlqspb.BucketId{Bucket: map[string]string{"tenant": strings.Repeat("x", 200)}}
	text, err := AppendID(nil, id)
	if err != nil {
		t.Fatal(err)
	}
	assign := func(seconds int64, s *typepb.RateLimitStrategy) *rlqspb.RateLimitQuotaResponse_BucketAction {
		return &rlqspb.RateLimitQuotaResponse_BucketAction{BucketId: id,
			BucketAction: &rlqspb.RateLimitQuotaResponse_BucketAction_QuotaAssignmentAction_{
				QuotaAssignmentAction: &rlqspb.RateLimitQuotaResponse_BucketAction_QuotaAssignmentAction{
					AssignmentTimeToLive: &durationpb.Duration{Seconds: seconds}, RateLimitStrategy: s,
				},
			}}
	}
	blanket := func(r typepb.RateLimitStrategy_BlanketRule) *typepb.RateLimitStrategy {
		return &typepb.RateLimitStrategy{Strategy: &typepb.RateLimitStrategy_BlanketRule_{BlanketRule: r}}
	}
	tokens := func(most, fill uint32, seconds int64, nanos int32) *typepb.RateLimitStrategy {
		return &typepb.RateLimitStrategy{Strategy: &typepb.RateLimitStrategy_TokenBucket{TokenBucket: &typepb.TokenBucket{
			MaxTokens: most, TokensPerFill: wrapperspb.UInt32(fill), FillInterval: &durationpb.Duration{Seconds: seconds, Nanos: nanos},
		}}}
	}
	forget := &rlqspb.RateLimitQuotaResponse_BucketAction{BucketId: id,
		BucketAction: &rlqspb.RateLimitQuotaResponse_BucketAction_AbandonAction_{
			AbandonAction: &rlqspb.RateLimitQuotaResponse_BucketAction_AbandonAction{},
		}}
	no := blanket(typepb.RateLimitStrategy_DENY_ALL)
	for _, c := range []struct {
		b    []byte
		want actions
	}{
		{(&Action{TTL: 10 * time.Second, assignment: assignment{kind: assignAll}}).Append(nil, text), actions{assign(10, blanket(typepb.RateLimitStrategy_ALLOW_ALL))}},
		{(&Action{TTL: 300 * time.Second, assignment: assignment{kind: assignNothing}}).Append(nil, text), actions{assign(300, no)}},
		{
			(&Action{TTL: 10 * time.Second, New: true, Clear: true,
				assignment: assignment{kind: assignUnits, g: 1 << 40, serial: 7}}).Append(nil, text),
			actions{assign(10, no), assign(10, tokens(math.MaxUint32, 1, yearSeconds, 8))},
		},
		{(&Action{TTL: 10 * time.Second, assignment: assignment{kind: assignUnits, g: 1000, serial: 7}}).Append(nil, text), actions{assign(10, tokens(1000, 1, yearSeconds, 8))}},
		{(&Action{TTL: 10 * time.Second, New: true, assignment: assignment{kind: assignRate, burst: 300, fill: 1001, every: 7}}).Append(nil, text), actions{assign(10, tokens(300, 1001, 7, 1))}},
		{(&Action{Abandon: true}).Append(nil, text), actions{forget}},
		{Refuse(Refuse(nil, text, 10*time.Second, true), text, 10*time.Second, false), actions{assign(10, no), forget}},
	} {
		var got rlqspb.RateLimitQuotaResponse
		sent, err := proto.Marshal(Response(c.b))
		if err != nil {
			t.Fatal(err)
		}
		if err := proto.Unmarshal(sent, &got); err != nil {
			t.Fatal(err)
		}
		if want := (&rlqspb.RateLimitQuotaResponse{BucketAction: c.want}); !proto.Equal(&got, want) {
			t.Errorf("%v, want %v", &got, want)
		}
	}
}

// TestLastUnits: a limit is used to its last unit, wherever the reports of the demand come. What
// Envoy has not used of an assignment when the next one comes is put to use again, also where it is
// a single unit, which a lender lends only to one who wants no more.
func TestLastUnits(t *testing.T) {
	for _, tenths := range []int64{1, 5, 9, 11, 15, 19, 31, 47} {
		w := newWorld(t, 1, algo.Config{Algorithm: algo.TokenBucket, N: 30, Window: 24 * time.Hour, Lease: 90,
			LeaseFor: 11 * time.Second})
		w.envoys[0].tick = w.now + tenths*secondNs/10
		admitted := 0
		for range 150 { // 30 s
			if w.request(0, "a") {
				admitted++
			}
			w.advance(t, secondNs/5, func() { w.invariant(t) })
		}
		if admitted != 30 {
			t.Errorf("%d of 30 were admitted, with reports %v after the first request", admitted,
				time.Duration(tenths*secondNs/10))
		}
	}
}
