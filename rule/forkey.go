package rule

// WindowFor returns the window under which r's limit with the given Counter.ID counts a key that Match made: one of Windows, or of
// the override for the key. It is nil if r has no such limit for the key, and for what is no key of r's.
func (r *Rule) WindowFor(counter uint64, key []byte) *Window {
	windows := r.Windows
	if r.compiled != nil && r.compiled.overrides != nil {
		if o := r.compiled.overrideOf(key); o != nil {
			windows = o.Windows
			if o.Unlimited {
				return nil
			}
		}
	}
	for _, w := range windows {
		if w.Counter != nil && w.Counter.ID == counter {
			return w
		}
	}
	return nil
}

// overrideOf is Matches.override for a key that need not be one of r's.
func (r *matchRule) overrideOf(key []byte) *Override {
	var zero []byte // with alternative 0 throughout
	for rest := key; len(rest) > 0; {
		_, after, err := cutPart(rest, r.ipv6Prefix)
		if err != nil {
			return nil
		}
		zero, _ = appendPartZero(zero, rest, 0, r.ipv6Prefix)
		rest = after
	}
	return r.overrides[string(zero)]
}
