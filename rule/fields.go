package rule

import (
	"cmp"
	"slices"
	"strings"

	"github.com/weir-rl/weir/internal/util/httpfield"
)

// Fields are the fields of an HTTP request by which a domain decides: those that its rules and
// exemptions read. Rules in shadow decide nothing, and do not count. Immutable.
//
// Of a field that comes twice, or under a name that is not quite its own, servers read different
// values. A door that sees the requests of clients refuses these for the fields listed here.
type Fields struct {
	// Headers are those that have one value, in order of their names. Fields that RFC 9110 5.3 lets
	// come in several lines are not among them.
	Headers []httpfield.HeaderField
	// Query are the parameters of the query, in order of their names.
	Query []string
	// Paths says that a native limit matches paths or counts by them, and folds them. Servlet
	// containers read such a path without what stands behind a semicolon.
	Paths bool
	// AllHeaders and AllQuery say that an expression goes through all of them, or computes the name
	// of the one that it reads.
	AllHeaders, AllQuery bool
}

// Fields returns the fields by which a domain decides; nil if there are none, and of a nil Set.
// "" is the domain of requests that name none (DomainFor).
func (s *Set) Fields(domain string) *Fields {
	if s == nil {
		return nil
	}
	d := s.domain(s.DomainFor(domain))
	if d == nil {
		return nil
	}
	return d.fields
}

// wholeReader is a Reader that knows which maps of fields it may read any entry of, as the
// expressions of package rule/file do. Another Reader that may read any attribute is taken to read
// all fields.
type wholeReader interface {
	ReadsWhole() (headers, query bool)
}

// addFields finds the fields by which d decides.
func (d *domain) addFields(lyft []*Rule) {
	f := &Fields{}
	names := map[string]bool{}
	add := func(name string) {
		if strings.HasPrefix(name, headerPrefix) || strings.HasPrefix(name, queryPrefix) {
			names[name] = true
		}
	}
	for i := range d.exempt {
		add(d.exempt[i].Attribute)
		f.Paths = f.Paths || d.exempt[i].Attribute == "path"
	}
	of := func(m *matchRule) {
		r := m.rule
		if m.mode == Shadow || r.EnforcePercent == 0 {
			return
		}
		add := func(name string) {
			f.Paths = f.Paths || name == "path" && m.folds&pathSpelled != 0
			add(name)
		}
		for i := range r.When {
			add(r.When[i].Attribute)
		}
		for _, key := range r.Per {
			for _, name := range key {
				add(name)
			}
		}
		if r.Lyft != nil {
			for _, e := range r.Lyft.Path {
				add(e.Key)
			}
		}
		for _, e := range []Reader{r.predicate(), r.amount()} {
			if e != nil {
				f.addExpr(e, add)
				_, all := e.Reads()
				f.Paths = f.Paths || all && m.folds&pathSpelled != 0
			}
		}
	}
	for _, m := range d.rules {
		of(m)
	}
	for _, r := range lyft {
		of(r.compiled)
	}
	for name := range names {
		if query, ok := strings.CutPrefix(name, queryPrefix); ok {
			f.Query = append(f.Query, query)
			continue
		}
		header := strings.TrimPrefix(name, headerPrefix)
		if field, single := httpfield.NewHeaderField(header); single && field.Name == header { // else no request has it
			f.Headers = append(f.Headers, field)
		}
	}
	slices.SortFunc(f.Headers, func(a, b httpfield.HeaderField) int { return cmp.Compare(a.Name, b.Name) })
	slices.Sort(f.Query)
	if len(f.Headers) > 0 || len(f.Query) > 0 || f.AllHeaders || f.AllQuery || f.Paths {
		d.fields = f
	}
}

const (
	headerPrefix = "header."
	queryPrefix  = "query."
)

// addExpr adds the fields that an expression reads.
func (f *Fields) addExpr(e Reader, add func(string)) {
	names, all := e.Reads()
	for _, name := range names {
		add(name)
	}
	if !all {
		return
	}
	headers, query := true, true
	if w, ok := e.(wholeReader); ok {
		headers, query = w.ReadsWhole()
	}
	f.AllHeaders, f.AllQuery = f.AllHeaders || headers, f.AllQuery || query
}
