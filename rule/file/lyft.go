package file

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/util/suggest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file/internal/lint"
	"github.com/weir-rl/weir/rule/file/internal/message"
	"github.com/weir-rl/weir/rule/file/internal/yaml"
)

// lyftKeys are all keys of the Lyft form. envoyproxy/ratelimit checks keys against this list only,
// wherever they stand.
var lyftKeys = []string{
	"domain", "key", "value", "descriptors", "rate_limit", "unit", "requests_per_unit", "unlimited", "shadow_mode",
	"name", "replaces", "detailed_metric", "value_to_metric", "share_threshold", "quota_mode", "metadata",
}

var descriptorKeys = []string{
	"key", "value", "rate_limit", "descriptors", "shadow_mode", "quota_mode", "detailed_metric", "value_to_metric",
	"share_threshold", "metadata",
}

// rateLimitKeys are the keys of rate_limit: the form's own, and all of a native limit but paths.
var rateLimitKeys = sync.OnceValue(func() []string {
	keys := []string{"unit", "requests_per_unit", "unlimited", "calendar"}
	return append(keys, slices.DeleteFunc(slices.Clone(limitKeys), func(k string) bool { return k == "paths" })...)
})

// rateLimitAliases are spellings that are taken, too.
var rateLimitAliases = []string{"request_per_unit"}

var rateLimitMistakes = sync.OnceValue(func() map[string]string {
	return map[string]string{
		"burst": "write allow: {rate: 10/min, burst: 20} in place of unit and requests_per_unit",
		"rate":  "write unit and requests_per_unit, or allow: 10/min",
		"limit": "write unit and requests_per_unit, or allow: 10/min",
		"soft":  "it belongs into throttle, as in: throttle: {soft: 10%}",
		"paths": "descriptors match paths to the letter in any case",
	}
})

var descriptorMistakes = sync.OnceValue(func() map[string]string {
	m := map[string]string{"limits": "a native limit stands at the top of the file"}
	for _, k := range slices.Concat(rateLimitKeys(), rateLimitAliases) {
		m[k] = "it belongs into rate_limit"
	}
	return m
})

// step is one level on the way to a descriptor.
type step struct {
	rule.Entry
	varies bool // counters differ by the runtime value at this level
}

// descriptors reads a list of descriptors that stands under path.
func (l *loader) descriptors(v *yaml.Node, f *rule.File, path []step) []*rule.Node {
	switch v.Kind {
	case yaml.Null:
		l.warn(lint.EmptyValue, v, "remove the key, or list descriptors under it", "descriptors is empty")
		return nil
	case yaml.List:
	default:
		l.err(v, "as in: descriptors: [{key: user}]", "error loading config file: descriptors: expected a list, got %s",
			v)
		return nil
	}
	var nodes []*rule.Node
	for _, item := range v.Items {
		if n := l.descriptor(item, f, path); n != nil {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// descriptor reads one descriptor. It is nil if that has no usable key.
func (l *loader) descriptor(v *yaml.Node, f *rule.File, path []step) *rule.Node {
	l.rule = pathName(path)
	keys, ok := l.keys(v, keyRules{known: descriptorKeys, misplaced: lyftKeys, elsewhere: descriptorMistakes(),
		lenient: true, lyft: true})
	if !ok {
		return nil
	}
	n := &rule.Node{Pos: v.Position}
	usable := true
	if k := keys.val("key"); k != nil {
		n.Key, usable = l.lyftText(k, "key")
	}
	if val := keys.val("value"); val != nil {
		n.Value, _ = l.lyftText(val, "value")
	}
	if n.Key == "" {
		if usable {
			l.err(v, "as in: {key: user}", "descriptor has empty key")
		}
		usable = false
	}
	wildcard := strings.Contains(n.Value, "*")
	flag := func(key string) bool {
		v := keys.val(key)
		return v != nil && l.lyftBool(v, key)
	}
	n.ValueToMetric, n.ShareThreshold = flag("value_to_metric"), flag("share_threshold")
	path = append(path[:len(path):len(path)],
		step{rule.Entry{Key: n.Key, Value: n.Value}, n.Value == "" || wildcard && !n.ShareThreshold})
	length := 0
	for _, e := range path {
		length += len(e.Key) + len(e.Value) + 2
	}
	if l.compiled.names += length; length > maxName || l.compiled.names > maxNames {
		l.err(v, "",
			"the keys and values on the way to this descriptor are too long: at most %d bytes, and %d for all rules", maxName, maxNames)
		return nil
	}
	name := pathName(path)
	l.rule = message.Clip(name)
	lyft := &rule.Lyft{
		Shadow: flag("shadow_mode"), Quota: flag("quota_mode"), DetailedMetric: flag("detailed_metric"),
		StatsKey: f.Domain + "." + name,
	}
	for _, e := range path {
		lyft.Path = append(lyft.Path, e.Entry)
	}
	if n.ShareThreshold && !wildcard && usable {
		l.err(keys.key("share_threshold"), "",
			"share_threshold can only be used with wildcard values (containing '*'), but found key '%s'", message.Clip(
				message.Level(path[len(path)-1].Entry)))
	}
	if m := keys.val("metadata"); m != nil {
		lyft.Metadata = l.metadata(m)
	}
	limit := keys.val("rate_limit")
	if limit != nil && limit.Kind == yaml.Null {
		l.warn(lint.EmptyValue, limit, "remove the key, or give it unit and requests_per_unit",
			"rate_limit is empty: this descriptor is not limited")
		limit = nil
	}
	if d := keys.val("descriptors"); d != nil {
		n.Children = l.descriptors(d, f, path)
		l.rule = message.Clip(name)
	}
	if limit != nil || len(n.Children) == 0 {
		r, within := l.newRule(v, f)
		r.Name, r.Lyft = name, lyft
		switch {
		case !within:
		case limit != nil:
			before := len(l.errors)
			l.rateLimit(limit, r, path)
			if len(l.errors) > before {
				r.Windows, r.Overrides = nil, nil // only good for finding descriptors twice
			}
		}
		n.Rule = r
	}
	if !usable {
		return nil
	}
	return n
}

// pathName is the name of the rule at path.
func pathName(path []step) string {
	names := make([]string, len(path))
	for i, e := range path {
		names[i] = message.Level(e.Entry)
	}
	return strings.Join(names, ".")
}

// rateLimit reads rate_limit into r.
func (l *loader) rateLimit(v *yaml.Node, r *rule.Rule, path []step) {
	keys, ok := l.keys(v, keyRules{
		expected: "error loading config file: rate_limit: expected a mapping", example: "as in: rate_limit: {unit: minute, requests_per_unit: 10}",
		known: rateLimitKeys(), aliases: rateLimitAliases, misplaced: lyftKeys, elsewhere: rateLimitMistakes(), lenient: true, lyft: true,
	})
	if !ok {
		return
	}
	if n := keys.val("name"); n != nil {
		r.Lyft.LimitName, _ = l.lyftText(n, "name")
	}
	if rep := keys.val("replaces"); rep != nil {
		r.Replaces = l.lyftReplaces(rep, r.Lyft.LimitName)
	}
	if w := keys.val("when"); w != nil {
		r.When = l.conditions(w, "when")
	}
	if p := keys.val("per"); p != nil {
		r.Per = l.per(p)
	}
	s := l.settings(keys, r, true)
	if s.parts = len(r.Per); s.parts == 0 {
		for _, e := range path {
			if e.varies {
				s.parts++
			}
		}
	}
	if c := keys.val("calendar"); c != nil {
		s.calendar = l.lyftBool(c, "calendar")
		s.at["calendar"] = keys.key("calendar")
	}
	entries := l.lyftAllow(v, keys, r, s)
	l.compile(s, r, entries, keys)
}

// lyftAllow reads unit, requests_per_unit and unlimited, or the native allow in their place.
func (l *loader) lyftAllow(v *yaml.Node, keys fields, r *rule.Rule, s *settings) []allowance {
	if a := keys.val("allow"); a != nil {
		for _, other := range []string{"unit", "requests_per_unit", "request_per_unit", "unlimited"} {
			if o := keys.key(other); o != nil {
				l.err(o, "keep one of them", "%s and allow say the same thing twice", other)
			}
		}
		entries, unlimited := l.allow(a, "allow")
		r.Unlimited = unlimited
		if len(entries) > 1 {
			l.err(a, "a limit under limits may have several",
				"allow: a descriptor has one limit, since its status can speak of one only")
			return nil
		}
		for _, e := range entries {
			r.Lyft.RequestsPerUnit = uint32(min(e.rate.N, math.MaxUint32))
			r.Lyft.Unit = strings.ToUpper(e.rate.Unit)
			if e.rate.Unit == "" {
				r.Lyft.Unit = strings.ToUpper(message.UnitOf(e.rate.Window))
			}
		}
		return entries
	}
	requests := keys.val("requests_per_unit")
	if other := keys.val("request_per_unit"); other != nil {
		if requests != nil {
			l.err(keys.key("request_per_unit"), "keep requests_per_unit",
				"request_per_unit and requests_per_unit say the same thing twice")
		} else {
			requests = other
		}
	}
	var n uint32
	if requests != nil {
		n, _ = l.lyftUint32(requests, "requests_per_unit")
	}
	unit, unitOK := "", true
	if u := keys.val("unit"); u != nil {
		unit, unitOK = l.lyftText(u, "unit")
	}
	known := slices.Contains(message.Units, strings.ToLower(unit))
	if u := keys.val("unlimited"); u != nil && l.lyftBool(u, "unlimited") {
		r.Unlimited = true
		switch {
		case known:
			l.err(keys.key("unit"), "remove unit", "should not specify rate limit unit when unlimited")
		case unit != "":
			l.warn(lint.NoEffect, keys.key("unit"), "remove unit",
				"the unit '%s' is unknown, and has no effect on an unlimited descriptor", message.Clip(unit))
		}
		return nil
	}
	if !known {
		if !unitOK {
			return nil // reported
		}
		at, hint := keys.val("unit"), "expected second, minute, hour, day, week, month or year"
		if at == nil {
			at = v
		}
		if near := suggest.Nearest(unit, message.Units); near != "" {
			hint = fmt.Sprintf("did you mean %q?", near)
		}
		l.err(at, hint, "invalid rate limit unit '%s'", message.Clip(unit))
		return nil
	}
	r.Lyft.RequestsPerUnit, r.Lyft.Unit = n, strings.ToUpper(unit)
	a := allowance{at: requests, rate: message.PerUnit(int64(n), strings.ToLower(unit))}
	if a.at == nil {
		a.at = v
	}
	if n > algo.MaxN && (s.algorithm != nil && !s.algorithm.ResetsAtOnce() || s.lease.percent > 0 || s.regions.counts) {
		l.warn(lint.TooLarge, a.at, "write unlimited: true if that is meant",
			"requests_per_unit: %d is more than can be counted; %d are admitted, while current_limit says %d", n, algo.MaxN, n)
		a.rate.N = algo.MaxN
	}
	return []allowance{a}
}

// lyftReplaces reads a list of {name: …}.
func (l *loader) lyftReplaces(v *yaml.Node, own string) []string {
	switch v.Kind {
	case yaml.Null:
		l.warn(lint.EmptyValue, v, "remove the key", "replaces is empty")
		return nil
	case yaml.List:
	default:
		l.err(v, "as in: replaces: [{name: other}]", "error loading config file: replaces: expected a list, got %s", v)
		return nil
	}
	var names []string
	for _, item := range v.Items {
		keys, ok := l.keys(item, keyRules{known: []string{"name"}, misplaced: lyftKeys, lenient: true, lyft: true})
		if !ok {
			continue
		}
		name := ""
		if n := keys.val("name"); n != nil {
			name, ok = l.lyftText(n, "name")
		}
		switch {
		case !ok:
		case name == "":
			l.err(item, "as in: {name: other}", "should not have an empty replaces entry")
		case name == own:
			l.err(item, "", "replaces should not contain name of same descriptor")
		default:
			names = append(names, name)
		}
	}
	return names
}

// metadata reads a mapping that must fit a protobuf Struct.
func (l *loader) metadata(v *yaml.Node) map[string]any {
	if v.Kind == yaml.Null {
		l.warn(lint.EmptyValue, v, "remove the key", "metadata is empty")
		return nil
	}
	if v.Kind != yaml.Mapping {
		l.err(v, "", "error loading config file: metadata: expected a mapping, got %s", v)
		return nil
	}
	m, _ := l.metadataValue(v).(map[string]any)
	return m
}

// metadataValue converts v as a protobuf Struct holds it: all numbers are float64.
func (l *loader) metadataValue(v *yaml.Node) any {
	switch v.Kind {
	case yaml.List:
		list := make([]any, 0, len(v.Items))
		for _, i := range v.Items {
			list = append(list, l.metadataValue(i))
		}
		return list
	case yaml.Mapping:
		m := make(map[string]any, len(v.Pairs))
		for _, p := range v.Pairs {
			if p.Key.Kind != yaml.Scalar || plainType(p.Key) != "string" && len(p.Key.Text) > 1 {
				l.err(p.Key, "quote it", "error parsing metadata: a key must be text, got %s", p.Key)
				continue
			}
			m[p.Key.Text] = l.metadataValue(p.Value)
		}
		return m
	case yaml.Scalar:
		switch plainType(v) {
		case "bool":
			b, _ := yamlBool(v.Text)
			return b
		case "int", "float":
			plain := strings.ReplaceAll(v.Text, "_", "")
			f, err := strconv.ParseFloat(plain, 64)
			if n, failure := strconv.ParseInt(plain, 0, 64); failure == nil {
				f, err = float64(n), nil
			} else if n, failure := strconv.ParseUint(plain, 0, 64); failure == nil {
				f, err = float64(n), nil
			}
			if err != nil || math.IsInf(f, 0) || math.IsNaN(f) {
				l.err(v, "quote it if it is text", "error parsing metadata: %s is no number that JSON knows",
					message.Clip(v.Text))
				return nil
			}
			return f
		case "timestamp":
			l.err(v, "quote it", "error parsing metadata: a timestamp such as %s has no place in a Struct",
				message.Clip(v.Text))
			return nil
		}
		return v.Text
	}
	return nil
}
