package main

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/internal/lab/accesslog"
	"github.com/weir-rl/weir/internal/lab/sim"
)

// clientFinder returns what finds the client of a line of a log as the doors do, by the proxies
// that are trusted; nil if there are none. It keeps memory of its own: one line at a time.
func clientFinder(trusted []string) (func(peer, list string) netip.Addr, error) {
	if len(trusted) == 0 {
		return nil, nil
	}
	isUnix := func(s string) bool { return s == "unix" }
	unix := slices.ContainsFunc(trusted, isUnix)
	prefixes, err := httplimit.ParseTrusted(slices.DeleteFunc(slices.Clone(trusted), isUnix))
	if err != nil {
		return nil, err
	}
	c := httplimit.ClientIP{Trusted: prefixes}
	lines := make([]string, 1)
	field := c.Field()
	r := http.Request{Header: http.Header{}}
	return func(peer, list string) netip.Addr {
		// Only a server which believed its peer logs the list alone.
		c.TrustUnix = peer == "" || unix && strings.HasPrefix(peer, "unix:")
		r.RemoteAddr = peer
		if lines[0] = list; list == "" {
			delete(r.Header, field)
		} else {
			r.Header[field] = lines
		}
		return c.Of(&r)
	}, nil
}

// wrongClients is an error if what stands where the client should be in a log is mostly something
// else.
func wrongClients(readings []accesslog.Reading) error {
	for i := range readings {
		r := &readings[i]
		if !r.Wrong() {
			continue
		}
		return misreadError(r,
			fmt.Sprintf("what stands where the client should be is neither an address nor a name with a dot "+
				"in %d of %d lines, such as %q", r.Doubtful, r.Clients, r.Client))
	}
	return nil
}

// misread is an error if a log was not read as it was meant, so that the report says nothing.
func misread(readings []accesslog.Reading, result *sim.Report) error {
	if err := wrongClients(readings); err != nil {
		return err
	}
	outcomes := []*sim.Outcome{&result.Outcome}
	if result.Compare != nil {
		outcomes = append(outcomes, &result.Compare.Outcome)
	}
	for _, o := range outcomes {
		if len(o.Lacking) == 0 || result.Requests == 0 || len(result.MissingFields) > 0 {
			continue
		}
		const most = 8
		lacking := o.Lacking
		if more := len(lacking) - most; more > 0 {
			lacking = append(lacking[:most:most], fmt.Sprintf("%d more", more))
		}
		at := max(slices.IndexFunc(readings, func(r accesslog.Reading) bool { return r.Text != "" }), 0)
		return misreadError(&readings[at], fmt.Sprintf("no line has an attribute that the rules of %s read (%s)",
			o.Rules, strings.Join(lacking, ", ")))
	}
	return nil
}

func misreadError(r *accesslog.Reading, what string) error {
	return &exitError{code: exitFailure, err: fmt.Errorf("replay: %s: %s\n%s\n"+
		"Say how its lines are made with --format, as the server's configuration has it, or name the fields with --fields, as in --fields ip=KEY. "+
		"If clients have names of your own, --fields must name their field: --fields ip=KEY, or --format 'WORDS…' --fields ip=WORD", r.Log, what, r.Said())}
}
