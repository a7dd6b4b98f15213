package capacity

// holder is what a node knows of a key.
type holder struct {
	key, node int32
	life      int32 // of the node
	// the operation into which a further decision could be merged: the batch, and its place there
	batch uint64
	op    int32
	until int64 // a refusal is remembered until then, in ns; 0: none is
}

// decide decides a request here, or leaves it to the store.
func (h *holder) decide(w *world) (allowed, here bool) {
	if h.until > w.now {
		return false, true
	}
	return false, false
}

// answered takes in what the store says of an operation, as store/redis remembers refusals: from
// when the call was sent.
func (h *holder) answered(w *world, c *call, op *operation) {
	if w.s.RememberRefusals == 0 || op.result.Allowed || w.s.Limit.Lease() != nil {
		return
	}
	h.until = c.sent + int64(w.s.RememberRefusals)
	if r := op.result.RetryAfter; r >= 0 {
		h.until = min(h.until, c.sent+r*1000)
	}
}
