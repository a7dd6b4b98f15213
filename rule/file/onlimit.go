package file

import (
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file/internal/message"
)

// maxWaitQueue is the most requests of one key that may be held at a time.
const maxWaitQueue = 100_000

// onLimit reads on_limit.
func (l *loader) onLimit(v *element, r *rule.Rule, s *settings) {
	if v.kind == scalarKind {
		switch v.text {
		case "reject":
			return
		case "shadow":
			r.Shadow = true
			return
		}
	}
	if v.kind != mapKind || len(v.pairs) != 1 {
		hint := ""
		switch {
		case v.kind == scalarKind && v.text == "wait":
			hint = "write the longest wait, as in: on_limit: {wait: 2s}"
		case v.kind == scalarKind && v.text == "defer":
			hint = "name the queue, as in: on_limit: {defer: orders}"
		}
		l.err(v, hint, "on_limit: expected reject, shadow, {wait: 2s} or {defer: queue}, got %s", describe(v))
		return
	}
	keys := l.keys(v, keyRules{known: []string{"wait", "defer"}, elsewhere: map[string]string{
		"queue": "it belongs beside max, as in: on_limit: {wait: {max: 2s, queue: 500}}",
		"max":   "as in: on_limit: {wait: {max: 2s, queue: 500}}",
	}})
	if d := keys.val("defer"); d != nil {
		if name, ok := l.text(d, "on_limit.defer"); ok {
			if r.Defer = name; !rule.ValidName(name) {
				l.err(d, "as in: on_limit: {defer: orders}", "on_limit.defer: expected the name of a queue, 1 to 200 letters, digits, -, _ and ., got %q", message.Clip(name))
			}
		}
	}
	if w := keys.val("wait"); w != nil {
		l.wait(w, r, s)
	}
}

func (l *loader) wait(v *element, r *rule.Rule, s *settings) {
	leaky := s.algorithm != nil && s.algorithm.Delays()
	if !leaky {
		r.WaitQueue = rule.DefaultWaitQueue
	}
	if v.kind != mapKind {
		r.Wait, _ = l.duration(v, "on_limit.wait")
		return
	}
	keys := l.keys(v, keyRules{known: []string{"max", "queue"}})
	if m := keys.val("max"); m != nil {
		r.Wait, _ = l.duration(m, "on_limit.wait.max")
	} else {
		l.err(v, "as in: on_limit: {wait: {max: 2s, queue: 500}}", "on_limit.wait: max is missing")
	}
	if q := keys.val("queue"); q != nil {
		if leaky {
			l.err(keys.key("queue"), "write allow: {rate: 10/s, burst: 500}: the queue of a leaky bucket is as long as the bucket is large", "on_limit.wait.queue does not fit leaky_bucket, which has a queue of its own")
		} else if n, ok := l.integer(q, "on_limit.wait.queue", 1, maxWaitQueue); ok {
			r.WaitQueue = int(n)
		}
	}
}

// checkTogether refuses what means nothing together.
func (l *loader) checkTogether(s *settings, r *rule.Rule, keys fields) {
	limited := len(r.Windows) > 0
	admits := len(s.phases) > 0
	all := append([]*rule.Window{}, r.Windows...)
	for i := range r.Overrides {
		limited = limited || len(r.Overrides[i].Windows) > 0
		all = append(all, r.Overrides[i].Windows...)
	}
	for _, w := range all {
		admits = admits || w.Limit.Config().N > 0
	}
	on := keys.key("on_limit")
	held := "" // how a refused request is held
	switch {
	case r.Wait > 0:
		held = "wait"
	case r.Defer != "":
		held = "defer"
	}
	if !limited {
		const hint = "leave it out, or give allow a rate"
		if v := keys.val("throttle"); v != nil && (s.soft > 0 || r.Elastic != nil) {
			l.err(keys.key("throttle"), hint, "throttle has no meaning where nothing is limited")
		}
		if s.lease.percent > 0 || r.Regions != nil {
			l.err(keys.key("consistency"), hint, "consistency has no meaning where nothing is limited")
		}
		if held != "" {
			l.err(on, hint, "on_limit.%s has no meaning where nothing is limited", held)
		}
		for _, key := range []string{"ban", "cost_after", "cost_timeout"} {
			if k := keys.key(key); k != nil {
				l.err(k, hint, "%s has no meaning where nothing is limited", key)
			}
		}
		return
	}
	switch {
	case held == "":
	case r.Lyft != nil && r.Lyft.Shadow:
		l.err(on, "remove it, or shadow_mode", "on_limit.%s: a rule in shadow holds nobody back", held)
	case !admits:
		l.err(on, "remove it, or allow more than 0", "on_limit.%s: a limit of 0 never lets anybody in, so that requests would be kept in vain", held)
	case s.counted:
		hint := "leave out count_denied: true"
		if r.Lyft != nil && keys.key("count_denied") == nil {
			hint = "add count_denied: false, which descriptors need to be told"
		}
		l.err(on, hint, "on_limit.%s does not fit count_denied: a request would be counted again each time that it asks, and push its own turn away", held)
	}
	if r.Lyft != nil && r.Lyft.Quota && r.Regions != nil && r.Regions.Over > 0 {
		l.err(s.regions.at, "write over: 0%, or sync", "consistency.regions: quota_mode does not fit over: %d%%, which counts twice: what this region used, and what all did", r.Regions.Over)
	}
	l.checkBan(s, r, keys)
	l.checkCostAfter(s, r, keys)
}
