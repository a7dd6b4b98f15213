package xds

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"

	configpb "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
)

// typeURL is the type of the resources.
const typeURL = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"

// resource is one RateLimitConfig as a rule file. Immutable.
type resource struct {
	raw     *anypb.Any // as it came
	hash    [sha256.Size]byte
	name    string
	domain  string
	source  file.Source
	fields  []string // of each line of source
	unknown []string // fields that this version does not know
}

// read reads one resource.
func read(raw *anypb.Any, hash [sha256.Size]byte) (*resource, error) {
	if raw.GetTypeUrl() != typeURL {
		return nil, fmt.Errorf("a resource of the type %q, which is not %s", clip(raw.GetTypeUrl()), typeURL)
	}
	var c configpb.RateLimitConfig
	if err := proto.Unmarshal(raw.GetValue(), &c); err != nil {
		return nil, fmt.Errorf("a resource cannot be read: %w", err)
	}
	r := &resource{raw: raw, hash: hash, name: c.GetName(), domain: c.GetDomain()}
	if r.name == "" {
		r.name = r.domain
	}
	t, err := writeText(&c)
	if err != nil {
		return nil, fmt.Errorf("resource %q: %w", clip(r.name), err)
	}
	r.source = file.Source{Name: r.name + ".yaml", Data: []byte(t.b.String())}
	r.fields, r.unknown = t.fields, t.unknown
	return r, nil
}

// readAll reads the resources of an answer, sorted by name. Those that are among known, by their
// hash, it takes from there.
func readAll(raw []*anypb.Any, known map[[sha256.Size]byte]*resource) ([]*resource, error) {
	list := make([]*resource, 0, len(raw))
	for _, any := range raw {
		hash := sha256.Sum256(any.GetValue())
		r := known[hash]
		if r == nil || r.raw.GetTypeUrl() != any.GetTypeUrl() {
			var err error
			if r, err = read(any, hash); err != nil {
				return nil, err
			}
		}
		list = append(list, r)
	}
	list = sorted(list)
	domains := map[string]string{}
	for i, r := range list {
		if i > 0 && list[i-1].name == r.name {
			return nil, fmt.Errorf("resource %q: there are two of this name", clip(r.name))
		}
		if other, twice := domains[r.domain]; twice {
			return nil, fmt.Errorf("resource %q: the resource %q has its domain, %q, too", clip(r.name), clip(other),
				clip(r.domain))
		}
		domains[r.domain] = r.name
	}
	return list, nil
}

// sorted sorts resources as file.Load does.
func sorted(list []*resource) []*resource {
	slices.SortFunc(list, func(a, b *resource) int { return strings.Compare(a.source.Name, b.source.Name) })
	return list
}

// sources are the rule files of resources, in their order.
func sources(list []*resource) []file.Source {
	files := make([]file.Source, len(list))
	for i, r := range list {
		files[i] = r.source
	}
	return files
}

// placed makes problems name the resource and the field in place of file and line.
func placed(err error, list []*resource) error {
	problems, ok := errors.AsType[rule.Problems](err)
	if !ok {
		return err
	}
	return rule.Problems(placedAll(problems, list))
}

func placedAll(problems []rule.Problem, list []*resource) []rule.Problem {
	byFile := map[string]*resource{}
	for _, r := range list {
		byFile[r.source.Name] = r
	}
	out := slices.Clone(problems)
	for i := range out {
		p := &out[i]
		r := byFile[p.Pos.File]
		if r == nil {
			continue
		}
		if line := p.Pos.Line; line > 0 && line <= len(r.fields) {
			p.Message = r.fields[line-1] + ": " + p.Message
		}
		p.Pos, p.Quote = rule.Position{File: fmt.Sprintf("resource %q", clip(r.name))}, ""
	}
	return out
}

// maxText bounds what a server is told about its resources, in problems and in bytes.
const (
	maxTold = 10
	maxText = 4 << 10
)

// told is an error as the server is told it: in one line.
func told(err error) string {
	text := err.Error()
	if problems, ok := errors.AsType[rule.Problems](err); ok {
		var parts []string
		for i := range problems[:min(len(problems), maxTold)] {
			parts = append(parts, problems[i].Error())
		}
		if len(problems) > maxTold {
			parts = append(parts, fmt.Sprintf("and %d more", len(problems)-maxTold))
		}
		text = strings.Join(parts, "; ")
	}
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "") + " …"
	}
	return text
}

// clip shortens a name of a server's for messages.
func clip(s string) string {
	const most = 200
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

// fieldAt returns the number of the field at the beginning of b, and its length.
func fieldAt(b []byte) (number protowire.Number, n int) {
	number, _, n = protowire.ConsumeField(b)
	return number, n
}
