package lint

// Warning is a kind of warning: file.Warning.
type Warning struct{ Name, About string }

// The names of the warnings.
const (
	warnAbsentKey       = "absent-key"
	warnAttributeName   = "attribute-name"
	warnBanTooShort     = "ban-too-short"
	warnCommitLost      = "commit-lost"
	warnCostZero        = "cost-zero"
	warnDescriptorDoor  = "descriptor-door"
	warnEnforceZero     = "enforce-zero"
	warnFlatCurve       = "flat-curve"
	warnForgeableBan    = "forgeable-ban"
	warnForgeableCost   = "forgeable-cost"
	warnForgeableKey    = "forgeable-key"
	warnHostBits        = "host-bits"
	warnKernelBan       = "kernel-ban"
	warnLargeLog        = "large-log"
	warnLeaseKind       = "lease-kind"
	warnLeaseLate       = "lease-late"
	warnLeaseNever      = "lease-never"
	warnLeaseSmall      = "lease-small"
	warnLongQueue       = "long-queue"
	warnLongWait        = "long-wait"
	warnNeverMet        = "never-met"
	warnNeverRefuses    = "never-refuses"
	warnPathParameter   = "path-parameter"
	warnPathSpelling    = "path-spelling"
	warnQuotaSmall      = "quota-small"
	warnRegionsSmall    = "regions-small"
	warnSoftZero        = "soft-zero"
	warnUnindexed       = "unindexed"
	warnUnknownMethod   = "unknown-method"
	warnUnknownReplaced = "unknown-replaced"
	warnUnknownSignal   = "unknown-signal"
	warnUnreleasedSlots = "unreleased-slots"
	warnUnusedIgnore    = "unused-ignore"
	warnUselessWait     = "useless-wait"
)

// The names of the warnings that loading gives too.
const (
	DuplicateKey   = "duplicate-key"
	EmptyValue     = "empty-value"
	MisplacedKey   = "misplaced-key"
	NeverMatches   = "never-matches"
	NoEffect       = "no-effect"
	NumberAsText   = "number-as-text"
	SecondDocument = "second-document"
	TooLarge       = "too-large"
)

// The names of the warnings that need the configuration: see package file.
const (
	UnverifiedIdentity = "unverified-identity"
	KeptSecret         = "kept-secret"
	UnusedLease        = "lease-unused"
	QuotaNever         = "quota-never"
	EachRegion         = "regions-each"
	UnusedRegions      = "regions-unused"
)

// Warnings are all kinds of warnings of Load and Lint, by name.
var Warnings = []Warning{
	{warnAbsentKey, "an `if` that fails on a request without a header, and would be true if that were empty ([expressions.md](expressions.md))"},
	{warnAttributeName, "an attribute that looks like a misspelt or foreign name of `ip`, `method`, `path`, `host`, `user`, `header.…` or `query.…`; a key of a limit below `when`"},
	{warnBanTooShort, "a ban that is short beside the window of its limit"},
	{warnCommitLost, "a `cost_after` of a `token_bucket` that refills the estimate while it waits to be put right ([costs.md](../guides/costs.md#which-algorithm))"},
	{warnCostZero, "`cost: 0`, which never refuses anything"},
	{warnDescriptorDoor, "an option that doors which ask with descriptors cannot follow"},
	{DuplicateKey, "a key that stands twice in one mapping (Lyft form)"},
	{EmptyValue, "a key without a value"},
	{warnEnforceZero, "`enforce: 0%`, which refuses nobody"},
	{warnFlatCurve, "a curve on which nothing follows the signal"},
	{warnForgeableBan, "a ban that a client can bring upon others"},
	{warnForgeableCost, "a `cost` that a client sets by a header, a query parameter, or an attribute of `identity` that it writes, without `cost_after`"},
	{warnForgeableKey, "`per` on what any client can write (a header, a query parameter, a path), with no limit beside it that holds them"},
	{warnHostBits, "an address block with bits behind its prefix (`10.0.0.1/8`)"},
	{KeptSecret, "`per` on what lets a client in (an API key, a session), which stores and pages then have as it is"},
	{warnKernelBan, "`at: nftables` with a ban that is meant for one limit only"},
	{warnLargeLog, "a log that takes much memory for each key"},
	{warnLeaseKind, "a lease (`consistency`) of a rule whose requests the store is asked for all the same"},
	{warnLeaseLate, "a lease of a sliding window or log whose units are counted late, by more of the window than its share"},
	{warnLeaseNever, "a lease of fewer than four units"},
	{warnLeaseSmall, "a lease of too few units to save most questions to the store"},
	{UnusedLease, "a lease where the configuration lends nothing"},
	{warnLongQueue, "a leaky bucket whose full queue holds requests for long"},
	{warnLongWait, "`on_limit: {wait: …}` for longer than clients wait"},
	{MisplacedKey, "a known key in a place where it has no effect (Lyft form)"},
	{NeverMatches, "a value of `when`, `exempt` or `override` that no request can have"},
	{warnNeverMet, "a limit that no request can meet, or a part of its conditions"},
	{warnNeverRefuses, "a limit or a window beside which a tighter one always stands"},
	{NoEffect, "what has no effect where it stands"},
	{NumberAsText, "a number or a bool that is taken as text (Lyft form)"},
	{warnPathParameter, "a path with a parameter as routers write it (`{id}`, `:id`), which stands for itself"},
	{warnPathSpelling, "paths that differ only in case or a final slash, and are one path to rules; a pattern that asks for a final slash alone"},
	{QuotaNever, "a limit of a domain of `rlqs.domains` that quotas for Envoys cannot be taken from ([rlqs.md](../guides/rlqs.md))"},
	{warnQuotaSmall, "a limit of such a domain that quotas cannot use up, since its lease is too small"},
	{EachRegion, "a limit that each of the configured regions counts for itself, so that together they admit it once each"},
	{warnRegionsSmall, "a limit too small to be shared out among the regions"},
	{UnusedRegions, "`regions` where none are configured, or the store is not shared"},
	{SecondDocument, "a second YAML document in one file, which is not read (Lyft form)"},
	{warnSoftZero, "a soft margin that rounds to nothing"},
	{TooLarge, "a number that is more than can be counted"},
	{warnUnindexed, "a limit that each request is tried on one by one, since no text tells it apart ([capacity.md](../operating/capacity.md))"},
	{warnUnknownMethod, "a method that looks misspelt"},
	{warnUnknownReplaced, "`replaces` with a name that no descriptor bears (Lyft form)"},
	{warnUnknownSignal, "a signal that looks misspelt"},
	{warnUnreleasedSlots, "`concurrency` without `timeout`, where a door cannot release"},
	{UnverifiedIdentity, "`per` on an attribute that `identity` takes from what any client can write, with no limit beside it that holds them"},
	{warnUnusedIgnore, "a `lint: ignore` that ignores nothing"},
	{warnUselessWait, "a wait that ends before anything comes back"},
}

// Named reports whether there is a warning of that name.
func Named(name string) bool {
	for _, w := range Warnings {
		if w.Name == name {
			return true
		}
	}
	return false
}

func warningNames() []string {
	names := make([]string, len(Warnings))
	for i, w := range Warnings {
		names[i] = w.Name
	}
	return names
}
