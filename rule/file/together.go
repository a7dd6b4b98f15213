package file

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

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
		l.err(on, "remove it, or allow more than 0",
			"on_limit.%s: a limit of 0 never lets anybody in, so that requests would be kept in vain", held)
	case s.counted:
		hint := "leave out count_denied: true"
		if r.Lyft != nil && keys.key("count_denied") == nil {
			hint = "add count_denied: false, which descriptors need to be told"
		}
		l.err(on, hint,
			"on_limit.%s does not fit count_denied: a request would be counted again each time that it asks, and push its own turn away", held)
	}
	if r.Lyft != nil && r.Lyft.Quota && r.Regions != nil && r.Regions.Over > 0 {
		l.err(s.regions.at, "write over: 0%, or sync",
			"consistency.regions: quota_mode does not fit over: %d%%, which counts twice: what this region used, and what all did", r.Regions.Over)
	}
	l.checkBan(s, r, keys)
	l.checkCostAfter(s, r, keys)
}

// checkFit reports the options that fit none of the algorithms in use.
func (l *loader) checkFit(s *settings) {
	for option, v := range s.at {
		if option == "algorithm" || option == "timezone" && len(s.phases) > 0 {
			continue
		}
		if !slices.ContainsFunc(optionFits()[option], func(a algo.Algorithm) bool { return s.used[a] }) {
			var names []string
			for _, a := range algo.Algorithms() {
				if s.used[a] {
					names = append(names, a.String())
				}
			}
			hint := ""
			if s.at["algorithm"] == nil {
				hint = fmt.Sprintf("no algorithm is named, so it is %s; name one with algorithm",
					strings.Join(names, " and "))
			}
			l.err(v, hint, "%s does not fit %s: it fits %s", option, strings.Join(names, " and "), fits(option))
			continue
		}
		if option == "timezone" && !s.calendars && s.location != nil {
			hint := "as in: allow: 100/day"
			switch {
			case s.first:
				hint = "leave out align: first_request, whose windows know no time zone"
			case s.lyft && !s.calendar:
				hint = "add calendar: true, and a unit of day, week, month or year"
			}
			l.err(v, hint, "timezone needs windows of the calendar: day, week, month or year")
		}
		if option == "calendar" && s.calendar && !s.calendars {
			l.err(v, "", "calendar: true needs a unit of day, week, month or year, and no align: first_request")
		}
	}
}

// checkBan refuses a ban that the rest of the rule leaves nothing to do.
func (l *loader) checkBan(s *settings, r *rule.Rule, keys fields) {
	at := keys.key("ban")
	if at == nil || r.Ban == nil {
		return
	}
	on := keys.key("on_limit")
	switch {
	case r.Shadow || r.Lyft != nil && r.Lyft.Shadow:
		l.err(at, "remove ban, or the shadow", "ban: a rule in shadow bans nobody")
		return
	case r.Lyft != nil && r.Lyft.Quota:
		l.err(at, "remove ban, or quota_mode",
			"ban: a rule in quota_mode refuses only together with others, so that its denials say nothing of a client")
		return
	case s.parts == 0:
		l.err(at, "add per, as in: per: [ip]",
			"ban needs per: with the one counter that this limit has, a ban would refuse everybody")
		return
	}
	if r.Ban.NFTables && !(len(r.Per) == 1 && slices.Equal(r.Per[0], rule.Key{"ip"})) {
		l.err(at, "take per: [ip], or leave nftables out of at",
			"ban.at: nftables drops the packets of addresses, so that the key must be an address and nothing else")
	}
	if r.Ban.Domain && len(r.Per) == 0 {
		l.err(at, "add per, or leave scope out",
			"ban.scope: domain needs per: other requests have no descriptor to make this one's key of")
	}
	switch {
	case r.Defer != "":
		l.err(on, "make two limits of it: one that defers, and one that allows more and bans",
			"ban does not fit on_limit.defer: what is deferred has not been refused to anybody")
	case r.Wait > 0 && !s.uses(algo.Algorithm.Delays):
		l.err(on, "make two limits of it: one that waits, and one that allows more and bans",
			"ban does not fit on_limit.wait, except for leaky_bucket: the limit denies a request that waits, and it is served all the same")
	}
}

// checkCostAfter refuses a cost that cannot be put right afterwards.
func (l *loader) checkCostAfter(s *settings, r *rule.Rule, keys fields) {
	for _, key := range []string{"cost_after", "cost_timeout"} {
		at := keys.key(key)
		switch {
		case at == nil:
		case s.uses(algo.Algorithm.Delays):
			l.err(at, "leave it out, or take token_bucket",
				"%s does not fit leaky_bucket: turns in a queue cannot be changed afterwards", key)
		case s.uses(algo.Algorithm.HasSlots):
			l.err(at, "leave it out: a slot comes back when the request is over",
				"%s does not fit concurrency: slots cannot be changed afterwards", key)
		}
	}
}
