package file

import (
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file/internal/lint"
)

// LintOptions tune Lint. The zero value is right where only the rules are known.
type LintOptions struct {
	// Identity is the configuration's identity, attribute → source ("user": "header:X-User-Id");
	// nil if it is not known.
	Identity map[string]string
	// Nodes is how many servers share the limits; 0 if it is not known.
	Nodes int
	// Quotas are the domains whose limits are lent to Envoys, from the configuration's
	// rlqs.domains; nil means none, or that they are not known.
	Quotas []string
	// NoLeases says why a server with the configuration lends nothing, such as
	// "redis.leases.max_keys is 0"; "" if it does, or if that is not known.
	NoLeases string
	// Regions is how many regions are configured; 0 if there are none, or if it is not known.
	Regions int
	// Weight is the weight of the region that is configured, and Weights the sum over all regions;
	// both 0 if they are not known, or all the same.
	Weight, Weights int
	// NoRegions says why a server with the configuration is in no region, such as "no regions are
	// configured"; "" if it is, or if that is not known.
	NoRegions string
}

// Lint warns of rules in s that are legal and useless or dangerous: limits that no request can
// meet, values that no request can have, limits that a tighter one always beats, keys that a client
// can forge or invent without end, or that keep credentials, concurrency at doors that cannot
// release, soft margins that round to nothing, queues that hold for long, bans that a client can
// bring upon others, costs that it can set, expressions that fail without a header, curves,
// schedules, leases and regions without effect. A warning is proven, or it says that it looks so.
//
// Warnings are in order of place; one that says the same of several rules of a file comes once.
// Warnings that a comment in the file silences (# lint: ignore NAME) are left out. A Problem
// without a Name is an error: such a comment with a name that is none of Warnings.
func Lint(s *rule.Set, o LintOptions) []rule.Problem { return lint.Check(s, lint.Options(o)) }

// Notes points out facts about rules in s that the rules do not show. Rules of the Lyft form are
// never met at doors without descriptors if their keys are no attributes there, and match paths to
// the letter: nothing to mend where Envoy is the only one to ask. Native limits on GET are met by
// HEAD too.
func Notes(s *rule.Set) []rule.Problem { return lint.Notes(s) }

// Useless returns the rules of s that no request can meet or that refuse none, as far as Lint warns
// of them.
func Useless(s *rule.Set) []Proof {
	found := lint.Useless(s)
	list := make([]Proof, len(found))
	for i, p := range found {
		list[i] = Proof(p)
	}
	return list
}

// Proof says why a rule is without use, as text: "never refuses anything, since …". With Unmet no
// request can meet it; else it refuses none, unless a grant gives a key more of another rule.
type Proof struct {
	Rule  *rule.Rule
	Unmet bool
	Why   string
}

// Warning is a kind of warning. Name is its short name, which does not change from version to
// version: it stands in brackets behind each warning, and in a comment that silences it.
type Warning struct{ Name, About string }

// Warnings lists all kinds of warnings of Load and Lint, by name.
func Warnings() []Warning {
	list := make([]Warning, 0, len(lint.Warnings))
	for _, w := range lint.Warnings {
		list = append(list, Warning(w))
	}
	return list
}

// UnverifiedIdentity names the warning of counters by an attribute that the configuration's
// identity takes from a field that clients can write. Only Lint with Options.Identity gives it.
const UnverifiedIdentity = lint.UnverifiedIdentity

// KeptSecret names the warning of counters whose keys hold credentials. For an attribute of the
// configuration's identity only Lint with Options.Identity gives it.
const KeptSecret = lint.KeptSecret

// UnusedLease names the warning of leases where the configuration lends nothing. Only Lint with
// Options.NoLeases gives it.
const UnusedLease = lint.UnusedLease

// QuotaNever names the warning of limits that quotas for Envoys cannot be taken from. Only Lint
// with Options.Quotas gives it.
const QuotaNever = lint.QuotaNever

// EachRegion names the warning of rules that each of several regions counts for itself. Only Lint
// with Options.Regions gives it.
const EachRegion = lint.EachRegion

// UnusedRegions names the warning of rules for several regions where there is one only. Only Lint
// with Options.NoRegions gives it.
const UnusedRegions = lint.UnusedRegions
