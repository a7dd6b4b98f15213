package insight

// Summary is what the samples of a rule say.
type Summary struct {
	Keys, KeysRefused       float64
	KeysError, RefusedError float64
	Fill                    [11]uint64
	MaxFill                 float64
	Episodes                Episodes
	Good                    Good
	Confident               bool // Good tells by an identity
}

// RefusedKey is a key of the sample of refused ones.
type RefusedKey struct {
	Hash     uint64
	Text     string
	Refused  uint64
	Known    bool
	Episodes Episodes
}

func (r *RuleSnapshot) curve() []CurvePoint { return nil }

// obeyOf returns the share of its episodes in which a key came back when it was told; below 0 if
// that is not known.
func (r *RuleSnapshot) obeyOf(hash uint64) float64 {
	for i := range r.Refused {
		if k := &r.Refused[i]; k.Hash == hash && k.Episodes.Obeyed+k.Episodes.Early > 0 {
			return float64(k.Episodes.Obeyed) / float64(k.Episodes.Obeyed+k.Episodes.Early)
		}
	}
	return -1
}
