package h2

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2/hpack"
	prop "pgregory.net/rapid"

	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/util/chars"
	"github.com/weir-rl/weir/internal/wire/shed"
)

// counted is a Rest that counts its fates.
type counted struct{ answered, abandoned *atomic.Int64 }

func (c counted) Answer(context.Context, []byte) ([]byte, Status) {
	c.answered.Add(1)
	return nil, Status{}
}

func (c counted) Abandon() { c.abandoned.Add(1) }

// A call that has waited for a worker for too long is turned away when it has one, and nothing of
// it is done.
func TestLateAtWorker(t *testing.T) {
	var answered, abandoned atomic.Int64
	line := shed.Overloaded(shed.Error)
	s := New(Options{Line: line, Turn: func(out []byte) ([]byte, Status) { return out, Status{14, "no time"} }})
	c := &conn{s: s, ctx: t.Context()}
	c.streams = map[uint32]*stream{}
	c.drained.L = &c.mu
	c.enc.oftenStatus = s.often
	c.writing = true // nothing is written: the answers stay where they can be read
	for i := range 100 {
		st := &stream{id: uint32(2*i + 1), request: &request{}, remoteClosed: true}
		c.mu.Lock() // workers answer already
		c.streams[st.id] = st
		c.mu.Unlock()
		c.queueJob(st, counted{&answered, &abandoned}, 0)
	}
	c.batch = time.Now().Add(-time.Second)
	c.handOver()
	patience.Until(t, "all are answered", func() bool { return abandoned.Load()+answered.Load() == 100 })
	if answered.Load() > 0 {
		t.Errorf("%d were decided", answered.Load())
	}
}

// Whatever is answered before, and however much the client keeps, it reads the same status, and of
// that which comes often little is sent.
func TestStatusEncoded(t *testing.T) {
	prop.Check(t, func(t *prop.T) {
		often := Status{14, "overloaded: try again, 100 % of it"}
		e := encoder{oftenStatus: often}
		decoder := hpack.NewDecoder(4096, nil)
		seen := 0
		for range prop.IntRange(1, 40).Draw(t, "answers") {
			if prop.IntRange(0, 30).Draw(t, "small") == 0 {
				e.tableSize(100)
			}
			s := prop.SampledFrom([]Status{{}, often, {14, "x"}, {8, often.Message}, {14, ""}}).Draw(t, "status")
			b := e.appendContentType(e.begin(nil),
				prop.SampledFrom([]string{grpcContentType, "application/grpc+proto"}).Draw(t, "type"))
			before := len(b)
			b = e.appendGRPCStatus(b, s)
			fields, err := decoder.DecodeFull(b)
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]string{}
			for _, f := range fields {
				got[f.Name] = f.Value
			}
			if got["grpc-status"] != map[uint32]string{0: "0", 8: "8", 14: "14"}[s.Code] ||
				got["grpc-message"] != chars.GRPCMessage(s.Message) {
				t.Fatalf("%+v became %v", s, fields)
			}
			if s == often {
				if seen++; seen > 1 && !e.literal && len(b)-before != 2 {
					t.Errorf("it takes %d bytes again", len(b)-before)
				}
			}
		}
	})
}
