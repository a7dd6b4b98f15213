package xds

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	configpb "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"github.com/goccy/go-yaml"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"pgregory.net/rapid"

	"github.com/weir-rl/weir/internal/testkit/xdstest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
)

type requestOf = discoverypb.DiscoveryRequest

func anys(t testing.TB, configs ...*configpb.RateLimitConfig) []*anypb.Any {
	t.Helper()
	var list []*anypb.Any
	for _, c := range configs {
		value, err := proto.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, &anypb.Any{TypeUrl: typeURL, Value: value})
	}
	return list
}

// loadConfigs loads resources as a follower does.
func loadConfigs(t testing.TB, configs ...*configpb.RateLimitConfig) (*rule.Set, error) {
	t.Helper()
	list, err := readAll(anys(t, configs...), nil)
	if err != nil {
		return nil, err
	}
	set, warnings, err := file.Load(sources(list), file.Options{None: true})
	if len(warnings) > 0 {
		t.Errorf("warnings: %v", placedAll(warnings, list))
	}
	return set, placed(err, list)
}

// gatewayConfigs are resources as Envoy Gateway makes them.
func gatewayConfigs(t testing.TB) (configs []*configpb.RateLimitConfig) {
	t.Helper()
	data, err := os.ReadFile("testdata/envoy-gateway.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, document := range strings.Split(string(data), "\n---\n")[1:] {
		var plain any
		if err := yaml.Unmarshal([]byte(document), &plain); err != nil {
			t.Fatal(err)
		}
		raw, err := json.Marshal(plain)
		if err != nil {
			t.Fatal(err)
		}
		c := new(configpb.RateLimitConfig)
		if err := protojson.Unmarshal(raw, c); err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		configs = append(configs, c)
	}
	return configs
}

// TestGatewayConfigs: what Envoy Gateway makes of its policies loads, and says the same.
func TestGatewayConfigs(t *testing.T) {
	configs := gatewayConfigs(t)
	if len(configs) != 11 {
		t.Fatalf("%d resources", len(configs))
	}
	for _, c := range configs {
		set, err := loadConfigs(t, c)
		if err != nil {
			t.Errorf("%s: %v", c.GetName(), err)
			continue
		}
		same(t, set, c)
	}
	// In any order the files are the same.
	domains := map[string]bool{}
	var some []*configpb.RateLimitConfig
	for _, c := range configs {
		if !domains[c.GetDomain()] {
			some = append(some, c)
		}
		domains[c.GetDomain()] = true
	}
	one, err := readAll(anys(t, some...), nil)
	slices.Reverse(some)
	other, failure := readAll(anys(t, some...), nil)
	if err != nil || failure != nil || len(one) < 2 {
		t.Fatal(err, failure, len(one))
	}
	for i := range one {
		if string(one[i].source.Data) != string(other[i].source.Data) || one[i].source.Name != other[i].source.Name {
			t.Errorf("%d: %s and %s", i, one[i].source.Name, other[i].source.Name)
		}
	}
}

type fataler interface {
	Errorf(format string, args ...any)
}

// same checks that the rules of a set are what a resource says.
func same(t fataler, set *rule.Set, c *configpb.RateLimitConfig) {
	var want, got []string
	var walk func(list []*configpb.RateLimitDescriptor, path string)
	walk = func(list []*configpb.RateLimitDescriptor, path string) {
		for _, d := range list {
			path := path + fmt.Sprintf(" %q=%q", d.GetKey(), d.GetValue())
			if p := d.GetRateLimit(); p != nil || len(d.GetDescriptors()) == 0 {
				unit := ""
				if p != nil && !p.GetUnlimited() {
					unit = p.GetUnit().String()
				}
				var replaces []string
				for _, r := range p.GetReplaces() {
					replaces = append(replaces, r.GetName())
				}
				n := p.GetRequestsPerUnit()
				if p.GetUnlimited() {
					n = 0
				}
				want = append(want, fmt.Sprint(path, n, unit, p.GetUnlimited(), d.GetShadowMode(),
					d.GetQuotaMode(), d.GetDetailedMetric(), fmt.Sprintf("%q %q", p.GetName(), replaces), d.GetMetadata().AsMap()))
			}
			walk(d.GetDescriptors(), path)
		}
	}
	walk(c.GetDescriptors(), fmt.Sprintf("%q", c.GetDomain()))
	for _, r := range set.Rules() {
		path := fmt.Sprintf("%q", r.Domain)
		for _, e := range r.Lyft.Path {
			path += fmt.Sprintf(" %q=%q", e.Key, e.Value)
		}
		metadata := r.Lyft.Metadata
		if metadata == nil {
			metadata = map[string]any{}
		}
		got = append(got, fmt.Sprint(path, r.Lyft.RequestsPerUnit, r.Lyft.Unit, r.Unlimited, r.Lyft.Shadow,
			r.Lyft.Quota, r.Lyft.DetailedMetric, fmt.Sprintf("%q %q", r.Lyft.LimitName, r.Replaces), metadata))
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("in force is\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestTextSaysTheSame: whatever the names, a rule file says what its resource does.
func TestTextSaysTheSame(t *testing.T) {
	texts := rapid.OneOf(rapid.StringN(1, 12, 40), rapid.SampledFrom([]string{"true", "1", "~", "a: b", "- x", "#c", "\"", "'", "\\",
		"\u2028", "\ufeff", "{}", "é", "null", "*", "a*b", " x ", "\t", "\r\n", "\x00", "\x7f", "%s"}))
	rapid.Check(t, func(t *rapid.T) {
		var descriptors func(depth int) []*configpb.RateLimitDescriptor
		descriptors = func(depth int) (list []*configpb.RateLimitDescriptor) {
			seen := map[string]bool{}
			for range rapid.IntRange(1, 3).Draw(t, "descriptors") {
				d := &configpb.RateLimitDescriptor{Key: texts.Draw(t, "key"), ShadowMode: rapid.Bool().Draw(t, "shadow"),
					QuotaMode: rapid.Bool().Draw(t, "quota"), DetailedMetric: rapid.Bool().Draw(t, "detailed")}
				if rapid.Bool().Draw(t, "fixed") {
					d.Value = texts.Draw(t, "value")
				}
				if seen[d.Key+"\xff"+d.Value] {
					continue
				}
				seen[d.Key+"\xff"+d.Value] = true
				if depth > 0 && rapid.Bool().Draw(t, "deeper") {
					d.Descriptors = descriptors(depth - 1)
				} else {
					d.RateLimit = &configpb.RateLimitPolicy{RequestsPerUnit: rapid.Uint32().Draw(t, "n"),
						Unit: configpb.RateLimitUnit(rapid.IntRange(1, 7).Draw(t, "unit")), Name: rapid.SampledFrom([]string{"", "a", "b: c"}).Draw(t, "name")}
				}
				list = append(list, d)
			}
			return list
		}
		c := &configpb.RateLimitConfig{Name: "n", Domain: texts.Draw(t, "domain"), Descriptors: descriptors(3)}
		value, err := proto.Marshal(c)
		if err != nil {
			t.Skip("no text of proto")
		}
		list, err := readAll([]*anypb.Any{{TypeUrl: typeURL, Value: value}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		set, _, err := file.Load(sources(list), file.Options{None: true})
		if err != nil {
			if c.GetDomain() == rule.CommandDomain || strings.Contains(err.Error(), "too long") {
				return
			}
			t.Fatalf("%v\n%s", placed(err, list), list[0].source.Data)
		}
		same(t, set, c)
	})
}

// TestKept: of many domains only those are read again that changed, and none of an unchanged set.
func TestKept(t *testing.T) {
	const domains = 200
	configs := make([]*configpb.RateLimitConfig, domains)
	for i := range configs {
		configs[i] = xdstest.Config(fmt.Sprint("domain-", i), 5, "a", "b")
	}
	b := newFollower()
	take := func(version string) {
		t.Helper()
		s := &stream{f: b, latest: nil}
		s.settle = stopped()
		if _, err := b.take(s, version, anys(t, configs...)); err != nil {
			t.Fatal(err)
		}
	}
	take("1")
	if n := b.kept.Reads(); n != domains {
		t.Errorf("%d files were read, want %d", n, domains)
	}
	was := b.Status().Loads
	slices.Reverse(configs)
	take("2")
	if st := b.Status(); b.kept.Reads() != domains || st.Loads != was || st.Version != "2" || b.Stats().Same != 1 {
		t.Errorf("%d files were read for an unchanged set, %+v", b.kept.Reads()-domains, st)
	}
	configs[7] = xdstest.Config(configs[7].GetDomain(), 6, "a")
	take("3")
	if n := b.kept.Reads(); n != domains+1 {
		t.Errorf("%d files were read where one changed", n-domains)
	}
	if set := b.first; len(set.Rules()) != 2*domains-1 {
		t.Errorf("%d rules", len(set.Rules()))
	}
}

// FuzzTake: no bytes of a server harm the process, or take rules away that are in force.
func FuzzTake(f *testing.F) {
	for _, c := range gatewayConfigs(f) {
		value, err := proto.Marshal(c)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(value)
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		b := newFollower()
		s := &stream{f: b, settle: stopped()}
		if _, err := b.take(s, "1", anys(t, xdstest.Config("kept", 5, "a"))); err != nil {
			t.Fatal(err)
		}
		before := b.first
		_, err := b.take(s, "2", []*anypb.Any{{TypeUrl: typeURL, Value: value}})
		if err != nil && b.first != before {
			t.Error("a refused set is in force")
		}
		if err != nil && (strings.Contains(told(err), "\n") || len(told(err)) > maxText+10) {
			t.Errorf("the server is told %q", told(err))
		}
	})
}
