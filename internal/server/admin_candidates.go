package server

import (
	"net/http"
	"time"
)

// Candidate tells what a rule in shadow, or one that is enforced on a share of its keys, would have done since it came into
// force on this node. Its fields are those of telemetry.Candidate.
type Candidate struct {
	Domain  string    `json:"domain"`
	Limit   string    `json:"limit"`
	Enforce int       `json:"enforce_percent"` // 0 for a rule in shadow
	Since   time.Time `json:"since"`

	// Of requests with keys on which it is not enforced.
	WouldRefuse uint64  `json:"would_refuse"` // admitted, but not by this rule
	WouldAdmit  uint64  `json:"would_admit"`  // refused, but not by this rule
	BothRefuse  uint64  `json:"both_refuse"`
	BothAdmit   uint64  `json:"both_admit"`
	Share       float64 `json:"share_would_refuse"`
	KeysRefused uint64  `json:"keys_would_refuse"` // an estimate

	// Of requests with keys on which it is enforced.
	EnforcedAdmitted    uint64 `json:"enforced_admitted"`
	EnforcedRefused     uint64 `json:"enforced_refused"`
	EnforcedKeysRefused uint64 `json:"enforced_keys_refused"` // an estimate

	Top []CandidateKey `json:"top"` // those that it would have refused most often, most often first
}

// CandidateKey is a key with how often a candidate would have refused it. It is an alias, so that a Candidate can be made of a
// telemetry.Candidate by conversion.
type CandidateKey = struct {
	Key   string `json:"key"`
	Count uint64 `json:"count"`                // at most
	Over  uint64 `json:"count_may_be_over_by"` // by how much Count may be too large
}

// candidates lists the candidates in force: ?domain=DOMAIN.
func (a *admin) candidates(w http.ResponseWriter, r *http.Request) {
	answer := struct {
		Candidates []Candidate `json:"candidates"`
	}{Candidates: []Candidate{}}
	for _, c := range a.o.Candidates(r.URL.Query().Get("domain")) {
		if c.Top == nil {
			c.Top = []CandidateKey{} // not null
		}
		answer.Candidates = append(answer.Candidates, c)
	}
	writeJSON(w, answer)
}
