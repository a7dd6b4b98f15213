package sim

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weir-rl/weir/internal/lab/accesslog"
	"github.com/weir-rl/weir/rule"
)

// expect adds the attributes that a rule of the Lyft form needs to the attributes that no request
// has had so far.
func (x *outcome) expect(r *rule.Rule) {
	if r.Lyft == nil {
		return
	}
	if x.unseen == nil {
		x.unseen = map[string]bool{}
	}
	for _, e := range r.Lyft.Path {
		x.unseen[e.Key] = true
	}
}

// look removes the attributes of a request from x.unseen. If the request has one of x.reads, it
// forgets x.reads.
func (x *outcome) look(a *attributes) {
	if len(x.reads) > 0 {
		x.find(a)
	}
	if len(x.unseen) == 0 {
		return
	}
	for name, value := range a.All() {
		if value == "" {
			continue
		}
		delete(x.unseen, name)
		if name == "ip" {
			delete(x.unseen, rule.RemoteAddress)
		}
	}
}

// find forgets x.reads if a request has one of them.
func (x *outcome) find(a *attributes) {
	for name := range a.All() {
		_, read := slices.BinarySearch(x.reads, name)
		if !read && name == "ip" {
			_, read = slices.BinarySearch(x.reads, rule.RemoteAddress)
		}
		if read {
			x.reads = nil
			return
		}
	}
}

// noteReading notes who the clients in a log are, and how the log was read, if that is uncertain.
func (rep *Report) noteReading(log *accesslog.Log) {
	s := log.Stats()
	if s.Unused > 0 {
		rep.note(
			fmt.Sprintf(
				"In %d of %d requests X-Forwarded-For names others than the client that was counted, who is the peer of the connection. "+
					"If that is a proxy of yours, name it with --trusted-proxies.", s.Unused, rep.Requests))
	}
	if s.Guessed > 0 {
		rep.note(
			fmt.Sprintf(
				"In %d of %d requests a list of addresses stands for the client: the first of them was counted, which a client can choose itself. "+
					"With --trusted-proxies the list is read as the server does.", s.Guessed, rep.Requests))
	}
	for _, r := range log.Readings() {
		if r.Told {
			rep.note(
				fmt.Sprintf(
					"The columns of %s were told by what stands in them. The first line was read as: %s. If that is wrong, say how the lines are made with --format.",
					r.Log, harmless(r.Fields)))
		}
	}
}

// noteUnseen notes rules of the Lyft form that no request could meet.
func (rep *Report) noteUnseen(x *outcome) {
	if len(x.unseen) == 0 {
		return
	}
	n := 0
	for _, r := range x.Set.Rules() {
		if r.Domain == x.Domain && r.Lyft != nil &&
			slices.ContainsFunc(r.Lyft.Path, func(e rule.Entry) bool { return x.unseen[e.Key] }) {
			n++
		}
	}
	rules := "1 rule of %s in the Lyft form was met by no request, since none has %s. --fields takes more from a log."
	if n > 1 {
		rules = fmt.Sprint(n) +
			" rules of %s in the Lyft form were met by no request, since none has %s. --fields takes more from a log."
	}
	names := slices.Sorted(maps.Keys(x.unseen))
	if more := len(names) - 8; more > 0 {
		names = append(names[:8], fmt.Sprintf("%d more", more))
	}
	rep.note(fmt.Sprintf(rules, x.Name, strings.Join(names, ", ")))
}

// inShadow reports whether a rule refuses no request.
func inShadow(r *rule.Rule) bool { return r.Shadow || r.Lyft != nil && r.Lyft.Shadow }
