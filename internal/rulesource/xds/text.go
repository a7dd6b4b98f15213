package xds

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	configpb "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/protobuf/proto"
)

// maxDeep is how deep descriptors may nest. Envoy Gateway's nest some six levels deep.
const maxDeep = 100

// mostText bounds the text of a resource with the fields of its lines, in bytes. Files of rules
// have at most half as many together.
const mostText = 128 << 20

// text is a rule file that was written of a resource.
type text struct {
	b       strings.Builder
	size    int      // of b and fields
	fields  []string // what each line says, by its path in the resource
	unknown []string // fields that this version does not know, by path
}

// writeText writes the rule file of a resource. What it says of limits that cannot be is left to
// the reader of the file, whose errors then name the field.
func writeText(c *configpb.RateLimitConfig) (*text, error) {
	t := &text{}
	t.unknownIn(c, "")
	t.line("domain", "domain: ", quoted(c.GetDomain()))
	if len(c.GetDescriptors()) == 0 {
		t.line("descriptors", "descriptors: []", "")
		return t, nil
	}
	t.line("descriptors", "descriptors:", "")
	return t, t.descriptors(c.GetDescriptors(), "descriptors", 0)
}

// line writes one line about a field.
func (t *text) line(field, before, value string) {
	t.b.WriteString(before)
	t.b.WriteString(value)
	t.b.WriteByte('\n')
	t.fields = append(t.fields, field)
	t.size += len(before) + len(value) + len(field) + 1
}

func (t *text) descriptors(list []*configpb.RateLimitDescriptor, path string, depth int) error {
	if depth == maxDeep {
		return fmt.Errorf("%s: descriptors nest more than %d levels deep", path, maxDeep)
	}
	indent := strings.Repeat("  ", depth)
	for i, d := range list {
		if t.size > mostText {
			return fmt.Errorf("%s: the resource is too large: it is more than %d MiB as a rule file", path, mostText>>20)
		}
		at := path + "[" + strconv.Itoa(i) + "]"
		t.unknownIn(d, at)
		t.line(at+".key", indent+"- key: ", quoted(d.GetKey()))
		indent := indent + "  "
		if d.GetValue() != "" {
			t.line(at+".value", indent+"value: ", quoted(d.GetValue()))
		}
		for _, flag := range []struct {
			name string
			on   bool
		}{
			{"shadow_mode", d.GetShadowMode()}, {"detailed_metric", d.GetDetailedMetric()}, {"quota_mode", d.GetQuotaMode()},
		} {
			if flag.on {
				t.line(at+"."+flag.name, indent+flag.name+": ", "true")
			}
		}
		if m := d.GetMetadata(); m != nil {
			data, err := json.Marshal(m.AsMap())
			if err != nil {
				return fmt.Errorf("%s.metadata: %w", at, err)
			}
			t.line(at+".metadata", indent+"metadata: ", string(data))
		}
		if p := d.GetRateLimit(); p != nil {
			t.rateLimit(p, at+".rate_limit", indent)
		}
		if len(d.GetDescriptors()) > 0 {
			t.line(at+".descriptors", indent+"descriptors:", "")
			if err := t.descriptors(d.GetDescriptors(), at+".descriptors", depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

func (t *text) rateLimit(p *configpb.RateLimitPolicy, path, indent string) {
	t.unknownIn(p, path)
	t.line(path, indent+"rate_limit:", "")
	indent += "  "
	if p.GetName() != "" {
		t.line(path+".name", indent+"name: ", quoted(p.GetName()))
	}
	if p.GetUnlimited() {
		t.line(path+".unlimited", indent+"unlimited: ", "true")
	}
	if u := p.GetUnit(); !p.GetUnlimited() || u != configpb.RateLimitUnit_UNKNOWN {
		t.line(path+".unit", indent+"unit: ", unitName(u))
	}
	if n := p.GetRequestsPerUnit(); !p.GetUnlimited() || n != 0 {
		t.line(path+".requests_per_unit", indent+"requests_per_unit: ", strconv.FormatUint(uint64(n), 10))
	}
	if len(p.GetReplaces()) == 0 {
		return
	}
	t.line(path+".replaces", indent+"replaces:", "")
	for i, r := range p.GetReplaces() {
		at := fmt.Sprintf("%s.replaces[%d]", path, i)
		t.unknownIn(r, at)
		t.line(at+".name", indent+"- name: ", quoted(r.GetName()))
	}
}

// unitName is the name of a unit in a rule file. One without a name there is for the file's reader
// to refuse.
func unitName(u configpb.RateLimitUnit) string {
	if name, ok := configpb.RateLimitUnit_name[int32(u)]; ok {
		return strings.ToLower(name)
	}
	return quoted("number " + strconv.Itoa(int(u)))
}

// unknownIn notes the fields of m that this version does not know.
func (t *text) unknownIn(m proto.Message, path string) {
	for rest := m.ProtoReflect().GetUnknown(); len(rest) > 0 && len(t.unknown) < maxUnknown; {
		number, n := fieldAt(rest)
		if n <= 0 {
			return
		}
		rest = rest[n:]
		name := fmt.Sprintf("field %d", number)
		if path != "" {
			name = path + ": " + name
		}
		t.unknown = append(t.unknown, name)
	}
}

// maxUnknown bounds the fields that are counted in one resource.
const maxUnknown = 1000

// quoted writes a text in double quotes, as YAML reads it.
func quoted(s string) string { return strconv.Quote(s) }
