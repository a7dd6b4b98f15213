package rls

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/weir-rl/weir/rule"
)

// asked is what a call holds of the request, for comparison.
func asked(c *call) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%q %d\n", c.domain, c.hits)
	for i, d := range c.descriptors {
		for _, e := range d.Entries {
			fmt.Fprintf(&b, "%q=%q ", e.Key, e.Value)
		}
		fmt.Fprintf(&b, "%+v\n", c.raw[i])
	}
	return b.String()
}

// checkWire holds reading from the wire against the protobuf library.
func checkWire(t interface {
	Fatalf(format string, args ...any)
}, data []byte) {
	r := New(nil, Options{})
	var message rlspb.RateLimitRequest
	library := proto.Unmarshal(data, &message)
	want := r.acquire()
	want.fromProto(&message)

	got := r.acquire()
	got.readWire(string(data))
	if library == nil && want.bad == nil && (got.bad != nil || asked(got) != asked(want)) {
		t.Fatalf("%x\n got %s (%v)\nwant %s", data, asked(got), got.bad, asked(want))
	}
	if (library != nil || want.bad != nil) && got.bad == nil {
		t.Fatalf("%x: read as %s, but the library says %v, %v", data, asked(got), library, want.bad)
	}
}

// FuzzRLSRequest: any bytes are read as the protobuf library reads them.
func FuzzRLSRequest(f *testing.F) {
	for _, ask := range []string{"d:", "d+3: k=v l=w +0; k=v @5/HOUR -7; none; =", "é: ü=\u00a0 -"} {
		data, err := proto.Marshal(parseRequest(f, ask))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
		f.Add(data[:len(data)/2])
	}
	descriptor := protowire.AppendBytes([]byte{tag2Bytes}, []byte{2<<3 | 2, 2, 8, 5, 2<<3 | 2, 2, 16, 3, 3<<3 | 2, 0})
	f.Add(descriptor)                                    // a limit in two parts, an empty wrapper
	f.Add([]byte{0x0a, 1, 0xff})                         // not UTF-8
	f.Add([]byte{0x0b, 0x13, 0x14, 0x0c})                // unknown groups, nested
	f.Add([]byte{0x0b, 0x0c, 0x0c})                      // a group ends that never began
	f.Add([]byte{0x18, 0xff, 0xff, 0xff, 0xff, 0x7f})    // hits beyond 32 bits
	f.Add([]byte{0x7d, 1, 2, 3, 4, 0x79, 1, 2, 3})       // fixed fields, the last one cut
	f.Add(append(bytes.Repeat([]byte{0xff}, 9), 2))      // a varint too long
	f.Add([]byte{0, 1})                                  // field number 0
	f.Add([]byte{0xf8, 0x8b, 0x8b, 0x8b, 0x30, 1})       // a field number of 32 bits; there are 29
	f.Add([]byte{0x12, 0xff, 0xff, 0xff, 0xff, 0x0f, 1}) // a length beyond the end
	f.Fuzz(func(t *testing.T, data []byte) { checkWire(t, data) })
}

func TestRLSRequestLikeTheLibrary(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[a-zé*]{0,3}`)
		m := &rlspb.RateLimitRequest{Domain: text.Draw(t, "domain"), HitsAddend: rapid.Uint32().Draw(t, "hits")}
		data, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		for range rapid.IntRange(0, 4).Draw(t, "descriptors") {
			var d []byte
			for range rapid.IntRange(0, 6).Draw(t, "fields") {
				number := protowire.Number(rapid.IntRange(1, 6).Draw(t, "number"))
				switch rapid.IntRange(0, 3).Draw(t, "type") {
				case 0:
					d = protowire.AppendVarint(protowire.AppendTag(d, number, protowire.VarintType),
						rapid.Uint64().Draw(t, "v"))
				case 1:
					d = protowire.AppendFixed32(protowire.AppendTag(d, number, protowire.Fixed32Type), 7)
				default:
					var inner []byte
					if rapid.Bool().Draw(t, "entry") {
						inner = protowire.AppendString(protowire.AppendTag(inner, 1, protowire.BytesType),
							text.Draw(t, "key"))
						inner = protowire.AppendString(protowire.AppendTag(inner, 2, protowire.BytesType),
							text.Draw(t, "value"))
					} else {
						inner = protowire.AppendVarint(protowire.AppendTag(inner, 1, protowire.VarintType),
							rapid.Uint64().Draw(t, "n"))
						inner = protowire.AppendVarint(protowire.AppendTag(inner, 2, protowire.VarintType),
							rapid.Uint64().Draw(t, "u"))
					}
					d = protowire.AppendBytes(protowire.AppendTag(d, number, protowire.BytesType), inner)
				}
			}
			data = protowire.AppendBytes(protowire.AppendTag(data, 2, protowire.BytesType), d)
		}
		checkWire(t, data)
	})
}

// TestRLSAnswerLikeTheLibrary: the bytes written are those that the message has.
func TestRLSAnswerLikeTheLibrary(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := New(nil, Options{})
		c := r.acquire()
		c.overall = rlspb.RateLimitResponse_Code(rapid.IntRange(0, 2).Draw(t, "overall"))
		for range rapid.IntRange(0, 70).Draw(t, "statuses") {
			s := descriptorStatus{
				code:      rlspb.RateLimitResponse_Code(rapid.IntRange(0, 2).Draw(t, "code")),
				remaining: rapid.Uint32().Draw(t, "remaining"),
			}
			if rapid.Bool().Draw(t, "current") {
				s.current = true
				s.limit = rapid.Uint32().Draw(t, "limit")
				s.unit = rlspb.RateLimitResponse_RateLimit_Unit(rapid.IntRange(0, 7).Draw(t, "unit"))
				s.reset = rapid.Int64Range(0, 1<<40).Draw(t, "reset")
				s.name = rapid.StringMatching(`[a-z]{0,3}|[a-z]{150}`).Draw(t, "name")
			}
			c.statuses = append(c.statuses, s)
		}
		want := c.toProto()
		data, err := c.writeWire([]byte("before"))
		if err != nil {
			t.Fatal(err)
		}
		data, ok := bytes.CutPrefix(data, []byte("before"))
		if !ok {
			t.Fatal("what stood before is overwritten")
		}
		var got rlspb.RateLimitResponse
		if err := proto.Unmarshal(data, &got); err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(&got, want) {
			t.Fatalf("got  %v\nwant %v", &got, want)
		}
	})
}

// TestRLSAttributes: the union is the same however it is kept.
func TestRLSAttributes(t *testing.T) {
	for _, n := range []int{1, 3, indexFrom - 1, indexFrom, 1000} {
		a := &attributes{}
		for i := range n {
			a.descriptors = append(a.descriptors, rule.Descriptor{Entries: []rule.Entry{
				{Key: fmt.Sprintf("k%d", i/2), Value: fmt.Sprintf("v%d", i)},
				{Key: "remote_address", Value: "192.0.2.1"}}})
		}
		seen := map[string]string{}
		for k, v := range a.All() {
			if had, twice := seen[k]; twice {
				t.Fatalf("%d descriptors: %s twice: %s, %s", n, k, had, v)
			}
			seen[k] = v
		}
		if want := (n+1)/2 + 2; len(seen) != want {
			t.Errorf("%d descriptors: %d attributes, want %d", n, len(seen), want)
		}
		for k, v := range seen {
			if got, ok := a.Attribute(k); !ok || got != v {
				t.Errorf("%s is %q, %v; All says %q", k, got, ok, v)
			}
		}
		if v := seen["ip"]; v != "192.0.2.1" {
			t.Errorf("ip is %q", v)
		}
		if v := seen["k0"]; v != "v0" {
			t.Errorf("k0 is %q, not its first value", v)
		}
		if _, ok := a.Attribute("absent"); ok {
			t.Error("an attribute from nowhere")
		}
		for range a.All() { // to stop early is allowed
			break
		}
	}
}

// TestRLSCallsAreClean: nothing of a call is left in the next that uses its memory.
func TestRLSCallsAreClean(t *testing.T) {
	r := New(nil, Options{})
	c := r.acquire()
	c.fromProto(parseRequest(t, "d+9: a=b c=d @5/HOUR +3; e=f -1; remote_address=192.0.2.1"))
	if err := c.resolve(9); err != nil {
		t.Fatal(err)
	}
	c.attributes.descriptors = c.descriptors
	c.attributes.useIndex()
	r.release(c)
	c.fromProto(parseRequest(t, "e: x=y"))
	if err := c.resolve(1); err != nil {
		t.Fatal(err)
	}
	if len(c.descriptors) != 1 || c.descriptors[0].Override != nil || c.descriptors[0].HasHits || c.hits != 0 {
		t.Errorf("left over: %+v", c.descriptors)
	}
	if v, ok := c.attributes.Attribute("ip"); ok {
		t.Errorf("left over: ip %s", v)
	}
}
