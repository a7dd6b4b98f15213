package file

import (
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file/internal/message"
	"github.com/weir-rl/weir/rule/file/internal/yaml"
)

// maxWaitQueue is the most requests of one key that may be held at a time.
const maxWaitQueue = 100_000

// onLimit reads on_limit.
func (l *loader) onLimit(v *yaml.Node, r *rule.Rule, s *settings) {
	if v.Kind == yaml.Scalar {
		switch v.Text {
		case "reject":
			return
		case "shadow":
			r.Shadow = true
			return
		}
	}
	if v.Kind != yaml.Mapping || len(v.Pairs) != 1 {
		hint := ""
		switch {
		case v.Kind == yaml.Scalar && v.Text == "wait":
			hint = "write the longest wait, as in: on_limit: {wait: 2s}"
		case v.Kind == yaml.Scalar && v.Text == "defer":
			hint = "name the queue, as in: on_limit: {defer: orders}"
		}
		l.err(v, hint, "on_limit: expected reject, shadow, {wait: 2s} or {defer: queue}, got %s", v)
		return
	}
	keys, _ := l.keys(v, keyRules{known: []string{"wait", "defer"}, elsewhere: map[string]string{
		"queue": "it belongs beside max, as in: on_limit: {wait: {max: 2s, queue: 500}}",
		"max":   "as in: on_limit: {wait: {max: 2s, queue: 500}}",
	}})
	if d := keys.val("defer"); d != nil {
		if name, ok := l.text(d, "on_limit.defer"); ok {
			if r.Defer = name; !rule.ValidName(name) {
				l.err(d, "as in: on_limit: {defer: orders}",
					"on_limit.defer: expected the name of a queue, 1 to 200 letters, digits, -, _ and ., got %q", message.Clip(name))
			}
		}
	}
	if w := keys.val("wait"); w != nil {
		l.wait(w, r, s)
	}
}

func (l *loader) wait(v *yaml.Node, r *rule.Rule, s *settings) {
	leaky := s.algorithm != nil && s.algorithm.Delays()
	if !leaky {
		r.WaitQueue = rule.DefaultWaitQueue
	}
	if v.Kind != yaml.Mapping {
		r.Wait, _ = l.duration(v, "on_limit.wait")
		return
	}
	keys, _ := l.keys(v, keyRules{known: []string{"max", "queue"}})
	if m := keys.val("max"); m != nil {
		r.Wait, _ = l.duration(m, "on_limit.wait.max")
	} else {
		l.err(v, "as in: on_limit: {wait: {max: 2s, queue: 500}}", "on_limit.wait: max is missing")
	}
	if q := keys.val("queue"); q != nil {
		if leaky {
			l.err(keys.key("queue"),
				"write allow: {rate: 10/s, burst: 500}: the queue of a leaky bucket is as long as the bucket is large", "on_limit.wait.queue does not fit leaky_bucket, which has a queue of its own")
		} else if n, ok := l.integer(q, "on_limit.wait.queue", 1, maxWaitQueue); ok {
			r.WaitQueue = int(n)
		}
	}
}
