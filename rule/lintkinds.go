package rule

import (
	"slices"
	"strings"
	"time"

	"github.com/weir-rl/weir/algo"
)

// longWait is from when on it is asked whether a client still waits.
const longWait = time.Minute

// kinds warns of what a rule says about requests that it would refuse.
func (l *linter) kinds(r *Rule) {
	l.waits(r)
	l.bans(r)
	l.elastic(r)
	l.schedule(r)
	if r.Priority != DefaultPriority && r.Shadow {
		l.warn(r, r.Pos, "", "%s: priority has no effect while the rule is in shadow", r.Name)
	}
	if r.CostAfter != "" && r.Lyft != nil {
		l.warn(r, r.Pos, "a limit under limits may have it", "%s: cost_after: doors that ask with descriptors never see the response, so that cost stands", r.Name)
	}
}

func (l *linter) waits(r *Rule) {
	switch {
	case r.Wait == 0 && r.Defer == "":
		return
	case r.Lyft != nil:
		l.warn(r, r.Pos, "a limit under limits may have it", "%s: on_limit: doors that ask with descriptors cannot keep a request, and refuse it", r.Name)
		return
	case r.Wait > longWait:
		l.warn(r, r.Pos, "clients and proxies between give up earlier; on_limit: {defer: NAME} keeps a request without its connection", "%s: on_limit.wait holds a request, and its connection, for up to %s", r.Name, daysOrMinutes(r.Wait))
	}
	var shortest time.Duration // until the first units come back, at the latest
	for _, w := range r.Windows {
		c := w.Limit.Config()
		if c.Algorithm != algo.FixedWindow && !c.RefillInterval {
			return
		}
		shortest = max(shortest, c.Window)
	}
	if r.Wait > 0 && shortest > 10*r.Wait {
		l.warn(r, r.Pos, "take token_bucket or sliding_log, which give back little by little", "%s: on_limit.wait of %s rarely helps: what is used comes back all at once, at the end of the window of %s", r.Name, r.Wait, daysOrMinutes(shortest))
	}
}

// daysOrMinutes spells a duration without empty units.
func daysOrMinutes(d time.Duration) string {
	if d >= day && d%time.Hour == 0 {
		return daysOrHours(d)
	}
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

func (l *linter) bans(r *Rule) {
	b := r.Ban
	if b == nil {
		return
	}
	// With the address in the key nobody can bring a ban upon somebody else.
	if !slices.ContainsFunc(r.Per, func(k Key) bool { return slices.Equal(k, Key{"ip"}) }) {
		for _, k := range r.Per {
			for _, attribute := range k {
				if (attribute == "user" || forgeable(attribute)) && !pinned(r, attribute) {
					l.warn(r, r.Pos, "add ip to per, or be sure that the attribute is verified", "%s: ban per %s: whoever sends the %s of somebody else can have them banned", r.Name, attribute, attribute)
				}
			}
		}
	}
	if b.After >= largeLog {
		l.warn(r, r.Pos, "ban after fewer denials", "%s: ban: counting %d denials needs up to %d KB for each key", r.Name, b.After, b.After*5/1000)
	}
	var shortest time.Duration
	for _, w := range r.Windows {
		if c := w.Limit.Config(); shortest == 0 || c.Window < shortest {
			shortest = c.Window
		}
	}
	if b.For < shortest/10 {
		l.warn(r, r.Pos, "ban for longer than the limit itself refuses", "%s: ban.for of %s is short beside the window of %s, for which the limit refuses anyway", r.Name, daysOrMinutes(b.For), daysOrMinutes(shortest))
	}
	if b.NFTables && !b.Domain {
		l.warn(r, r.Pos, "say so with scope: domain", "%s: ban.at: nftables drops all packets of an address, not only what meets this limit", r.Name)
	}
}

// forgeable reports whether any client can send any value of an attribute.
func forgeable(attribute string) bool {
	return strings.HasPrefix(attribute, "header.") || strings.HasPrefix(attribute, "query.") || attribute == "path" || attribute == "host"
}

func (l *linter) elastic(r *Rule) {
	e := r.Elastic
	if e == nil {
		return
	}
	if !slices.Contains(Signals, e.Signal) {
		if near := Nearest(e.Signal, Signals); near != "" {
			l.warn(r, e.Pos, "did you mean "+near+"? A signal that nobody pushes counts as 100%", "%s: throttle.elastic: %s is no signal that the server knows of itself", r.Name, e.Signal)
		}
	}
	if !slices.ContainsFunc(e.Curve, func(p Point) bool { return p.Share != 100 }) {
		l.warn(r, e.Pos, "leave elastic out", "%s: throttle.elastic: the curve is flat at 100%%, so that nothing follows the signal", r.Name)
	} else if !slices.ContainsFunc(e.Curve, func(p Point) bool { return p.Share != 0 }) {
		l.warn(r, e.Pos, "leave some of the limit", "%s: throttle.elastic: the curve is flat at 0%%, so that nobody is ever admitted", r.Name)
	}
}

func (l *linter) schedule(r *Rule) {
	var reached minutesOfWeek
	for i := range r.Schedule {
		p := &r.Schedule[i]
		if !reached.add(p) {
			l.warn(r, p.Pos, "put the narrower one first", "%s: schedule: %s is never reached, since what stands before it holds all that time", r.Name, p.When())
		}
	}
	if len(r.Schedule) > 0 && reached.full() {
		l.warn(r, r.Schedule[len(r.Schedule)-1].Pos, "leave times to allow, or write the last entry as allow", "%s: schedule: its entries hold at all times, so that allow never does", r.Name)
	}
}
