package rule

import "github.com/cespare/xxhash/v2"

// Mode says how a charge takes part in the decision.
type Mode uint8

const (
	// Enforce: if it denies, the decision is a refusal and nothing is charged.
	Enforce Mode = iota
	// Shadow: charged by its own verdict, without influence on the decision.
	Shadow
	// Quota (Lyft quota_mode): the decision is a refusal if all Quota charges deny.
	Quota
)

// WindowFor returns the window under which r's limit with the given Counter.ID counts a key that
// Match made: one of Windows, or of the override for the key. It is nil if r has no such limit for
// the key, and if key is no key of r's.
func (r *Rule) WindowFor(counter uint64, key []byte) *Window {
	for _, w := range r.WindowsFor(key) {
		if w.Counter != nil && w.Counter.ID == counter {
			return w
		}
	}
	return nil
}

// WindowsFor returns the windows under which r counts a key that Match made: Windows, or the ones
// of the override for the key; none if the override is unlimited. The caller must not change it.
func (r *Rule) WindowsFor(key []byte) []*Window {
	if r.compiled != nil && r.compiled.overrides != nil {
		if o := r.compiled.overrideOf(key); o != nil {
			if o.Unlimited {
				return nil
			}
			return o.Windows
		}
	}
	return r.Windows
}

// ModeFor returns how r takes part in decisions on a key that Match made: in shadow, for one, where
// r is enforced on a share of its keys which is without this one.
func (r *Rule) ModeFor(key []byte) Mode {
	if r.compiled == nil {
		return Enforce
	}
	return r.compiled.modeFor(key)
}

// modeFor is how r takes part with this key: a rule that is enforced on a share of the keys only is
// in shadow on the others.
func (r *matchRule) modeFor(key []byte) Mode {
	if p := r.rule.EnforcePercent; p < 100 && int(mix(xxhash.Sum64(key)^r.salt)%100) >= p {
		return Shadow
	}
	return r.mode
}

// overrideOf returns the override that names a key, which need not be one of r's; nil if there is
// none.
func (r *matchRule) overrideOf(key []byte) *Override {
	var zero []byte // with alternative 0 throughout
	for rest := key; len(rest) > 0; {
		_, after, err := cutPart(rest, int(r.ipv6Prefix))
		if err != nil {
			return nil
		}
		zero, _ = appendPartZero(zero, rest, 0, int(r.ipv6Prefix))
		rest = after
	}
	if o := r.overrides[string(zero)]; o != nil {
		return o
	}
	return r.respelled[string(zero)].override
}
