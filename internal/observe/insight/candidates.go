package insight

import "time"

// Candidate says what a rule in shadow, or one that is enforced on a share of its keys, would have
// done. It counts requests since the rule came into force. Figures of keys cover the last 24 to 36
// hours, as in RuleReport.
type Candidate struct {
	Domain  string    `json:"domain"`
	Limit   string    `json:"limit"`           // name of the rule
	Enforce int       `json:"enforce_percent"` // of its keys; 0 for a rule in shadow
	Since   time.Time `json:"since"`

	// Requests on keys for which the rule is not enforced, by the rule's verdict and the live
	// decision.
	WouldRefuse uint64 `json:"would_refuse"` // admitted, but not by this rule
	WouldAdmit  uint64 `json:"would_admit"`  // refused, but not by this rule
	BothRefuse  uint64 `json:"both_refuse"`
	BothAdmit   uint64 `json:"both_admit"`
	// Share of these requests that were admitted, and that this rule would refuse; 0 to 1.
	Share float64 `json:"share_would_refuse"`
	// KeysRefused estimates how many distinct keys it would have refused at least once.
	KeysRefused uint64 `json:"keys_would_refuse"`

	// Requests on keys for which it is enforced, by its own verdict.
	EnforcedAdmitted    uint64 `json:"enforced_admitted"`
	EnforcedRefused     uint64 `json:"enforced_refused"`
	EnforcedKeysRefused uint64 `json:"enforced_keys_refused"` // an estimate, as KeysRefused

	// Top are the keys that it would have refused most often, most often first.
	Top []CandidateKey `json:"top"`
}

// CandidateKey is a key with how often a candidate would have refused it.
type CandidateKey struct {
	Key   string `json:"key"`
	Count uint64 `json:"count"`                // at most
	Over  uint64 `json:"count_may_be_over_by"` // by how much Count may be too large
}
