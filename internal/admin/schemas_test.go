package admin

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/admin/audit"
	"github.com/weir-rl/weir/internal/door/proxy/deferred"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/recent"
	"github.com/weir-rl/weir/internal/testkit/doortest"
)

// describedTypes are the types that schemas describe, by the names of the schemas.
var describedTypes = map[string]any{
	"Session": Session{}, "Overview": insight.Overview{}, "RuleReport": insight.RuleReport{}, "Verdict": insight.Verdict{}, "KeyCount": insight.KeyCount{},
	"KeyReport": insight.KeyReport{}, "Nodes": insight.Nodes{}, "Series": insight.Series{}, "NodeState": insight.NodeState{},
	"PreviewResult": insight.PreviewResult{}, "PreviewProgress": insight.PreviewProgress{}, "Decision": recent.Entry{}, "DecisionLimit": recent.Limit{},
	"StreamedOverview": streamedOverview{}, "StreamedDecisions": StreamedDecisions{}, "AuditRecord": audit.Entry{}, "Ban": ListedBan{}, "Grant": ListedGrant{}, "GrantChange": GrantChange{},
	"KeyState": KeyInfo{}, "KeyList": KeyList{}, "Signal": SignalState{}, "RuleFiles": RuleFiles{}, "Rule": ruleInfo{}, "RulesSource": RulesSource{},
	"Candidate": insight.Candidate{}, "CandidateList": CandidateList{}, "BanRequest": change{}, "GrantRequest": change{}, "Target": change{}, "RegionsReport": RegionsReport{}, "RegionState": RegionState{}, "RegionalLimit": RegionalLimit{},
	"RegionalWindow": RegionalWindow{}, "RegionalUnits": insight.RegionalUnits{}, "VersionList": VersionList{}, "Version": Version{}, "VersionChange": VersionChange{}, "Pushed": Pushed{},
	"NetUnits": insight.NetUnits{}, "KeyRegions": KeyRegions{}, "Ticket": deferred.Ticket{},
	"OutageList": OutageList{}, "Outage": insight.Outage{}, "OutageNode": insight.OutageNode{},
}

// asked are the schemas of bodies of requests, which need not hold all members of their types.
var asked = []string{"BanRequest", "GrantRequest", "Target", "VersionChange"}

// TestSchemas: the schemas describe the types that are encoded, member by member, and what may
// be null and what may be left out.
func TestSchemas(t *testing.T) {
	d, err := doortest.ReadDescription(openAPI)
	if err != nil {
		t.Fatal(err)
	}
	h := schemaHolder{t, d, map[string]bool{}}
	for name, v := range describedTypes {
		s := d.Components.Schemas[name]
		if s == nil {
			t.Errorf("%s is not described", name)
			continue
		}
		h.object(name, s, reflect.TypeOf(v), slices.Contains(asked, name))
	}
}

type schemaHolder struct {
	*testing.T
	d    *doortest.Described
	seen map[string]bool
}

// object holds the schema of a struct.
func (h schemaHolder) object(at string, s *doortest.Schema, typ reflect.Type, asked bool) {
	if h.seen[at] {
		return
	}
	h.seen[at] = true
	if !slices.Equal(s.Types(), []string{"object"}) {
		h.Errorf("%s is an object, and described as %v", at, s.Type)
	}
	members := map[string]bool{}
	var always []string
	for _, f := range reflect.VisibleFields(typ) {
		name, option, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous || !f.IsExported() || name == "" || name == "-" {
			continue
		}
		members[name] = true
		absent := strings.HasPrefix(option, "omit")
		if !absent {
			always = append(always, name)
		}
		p := s.Properties[name]
		if p == nil {
			if !asked {
				h.Errorf("%s.%s is not described", at, name)
			}
			continue
		}
		h.value(at+"."+name, p, f.Type, absent)
	}
	for name := range s.Properties {
		if !members[name] {
			h.Errorf("%s.%s is described, and does not exist", at, name)
		}
	}
	required := slices.Clone(s.Required)
	slices.Sort(required)
	slices.Sort(always)
	if !asked && !slices.Equal(required, always) {
		h.Errorf("%s always has %q, and requires %q", at, always, required)
	}
}

// value holds the schema of a value; absent: it is left out where it is nil.
func (h schemaHolder) value(at string, s *doortest.Schema, typ reflect.Type, absent bool) {
	null := false
	if typ.Kind() == reflect.Pointer {
		typ, null = typ.Elem(), !absent
	}
	if len(s.OneOf) == 2 && slices.Equal(s.OneOf[1].Types(), []string{"null"}) { // a type or null
		if !null {
			h.Errorf("%s is never null", at)
		}
		s, null = s.OneOf[0], false
	}
	if len(s.AllOf) == 1 { // with a description of its own
		s = s.AllOf[0]
	}
	if s.Ref != "" {
		at = strings.TrimPrefix(s.Ref, "#/components/schemas/")
		s = h.d.Components.Schemas[at]
	}
	kind, format := "", ""
	switch {
	case typ == reflect.TypeFor[recent.Seconds]():
		kind, format, null = "number", "double", true
	case typ == reflect.TypeFor[time.Time]():
		kind, format = "string", "date-time"
	case typ == reflect.TypeFor[weir.DecisionID](), typ == reflect.TypeFor[[]byte]():
		kind = "string"
	default:
		switch typ.Kind() {
		case reflect.Bool:
			kind = "boolean"
		case reflect.String:
			kind = "string"
		case reflect.Float64:
			kind, format = "number", "double"
		case reflect.Struct:
			h.object(at, s, typ, false)
			return
		case reflect.Map:
			kind = "object"
		case reflect.Slice, reflect.Array:
			kind = "array"
			if s.Items != nil {
				h.value(at+"[]", s.Items, typ.Elem(), true)
			}
		case reflect.Interface:
		default:
			kind, format = "integer", "int64"
		}
	}
	var want []string
	if kind != "" {
		want = append(want, kind)
	}
	if null {
		want = append(want, "null")
	}
	if s.Format == "date-time" && format == "" { // a text that is looked at later
		format = s.Format
	}
	if !slices.Equal(s.Types(), want) || s.Format != format {
		h.Errorf("%s is %v of the format %q, and described as %v %q", at, want, format, s.Types(), s.Format)
	}
}
