package gather

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/insight/snapshot"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/rule"
	"pgregory.net/rapid"
)

// asked is a request of a script: a client asks for some units, a while after the one before.
type asked struct {
	user, hits int
	after      time.Duration
}

// told is everything that is known of a rule after some requests, except its limits themselves.
type told struct {
	Report   insight.RuleReport
	All      []snapshot.SampledKey
	Refused  []snapshot.RefusedKey
	Top      [2 * snapshot.TopKinds][]snapshot.TopKey
	With     []insight.Count
	Examples int
	Judged   []Judged
	Admitted float64
	Window   [2]uint64 // what its limits refused, L first
}

// tell plays the requests to a rule. limit is the place of L among its limits.
func tell(t *testing.T, algorithm, more, allow string, limit int, requests []asked) told {
	t.Helper()
	b := newBench(t, Options{Known: []string{"user"}}, fmt.Sprintf(`
domain: shop
limits:
  - { name: search, per: [user], algorithm: %s, allow: %s%s }
  - { name: all, per: [user], algorithm: fixed_window, allow: 15/min }
`, algorithm, allow, more))
	for _, r := range requests {
		b.pass(r.after)
		q := weir.Request{Door: "http", Hits: int64(r.hits),
			Attributes: rule.Pairs{{Name: "user", Value: fmt.Sprint("user-", r.user)}}}
		b.send(q)
		b.gather(false)
	}
	b.gather(true)
	b.judge()
	s := b.Snapshot(snapshot.Want{Samples: true, Top: true})
	r := &s.Rules[0]
	out := told{
		Report: *b.rule("search"), All: r.All.Keys, Refused: r.Refused.Keys, With: r.With, Examples: len(r.Examples),
		Judged: b.Judged(), Admitted: b.rules[0].liveAdmitted,
	}
	for i := range out.Window {
		if at := limit ^ i; at < len(r.Windows) {
			out.Window[i] = r.Windows[at].Refused
		}
	}
	for i := range out.Report.Verdicts {
		out.Report.Verdicts[i].Examples = nil // their ids are new each time
	}
	out.Report.Limits, out.Report.Windows, out.Report.CurveOf = nil, nil, ""
	for _, list := range [...][]insight.KeyCount{out.Report.Top, out.Report.NearNow} {
		for i := range list {
			list[i].Limit = ""
		}
	}
	windows := len(r.Windows) // of the rule, and as many of its override
	of := func(k *snapshot.SampledKey) {
		demands := k.Demands
		k.Demands = nil
		for at := limit; at < len(demands); at += windows {
			k.Demands = append(k.Demands, demands[at])
		}
	}
	for i := range out.All {
		of(&out.All[i])
	}
	for i := range out.Refused {
		of(&out.Refused[i].SampledKey)
	}
	for kind := range snapshot.TopKinds {
		out.Top[kind], out.Top[snapshot.TopKinds+kind] = r.Live[kind], r.Long[kind]
	}
	for _, list := range out.Top {
		for i := range list {
			if int(list[i].Window)%windows != limit && list[i].Fill > 0 {
				t.Errorf("%s: the fullest limit of %s is number %d", allow, list[i].Text, list[i].Window)
			}
			list[i].Window = 0
		}
	}
	return out
}

// A limit that nobody comes near does not change what is known of its rule, wherever it stands: who
// is refused, who comes back when, who behaves well, and what another limit would do.
func TestIdleWindowChangesNothing(t *testing.T) {
	effort.Fewer(t, 10)
	rapid.Check(t, func(rt *rapid.T) {
		algorithm := rapid.SampledFrom([]string{"fixed_window", "sliding_window", "token_bucket"}).Draw(rt, "algorithm")
		more := rapid.SampledFrom([]string{
			"", ", on_limit: shadow", ", enforce: 50%", ", throttle: {soft: 20%}", ", ban: {after: 3, within: 1m, for: 1m}",
			", override: {user-1: %s}",
		}).Draw(rt, "more")
		var requests []asked
		for range rapid.IntRange(1, 120).Draw(rt, "requests") {
			requests = append(requests, asked{
				user: rapid.IntRange(0, 4).Draw(rt, "user"), hits: rapid.SampledFrom([]int{1, 1, 1, 3, 12}).Draw(rt, "hits"),
				after: time.Duration(rapid.SampledFrom([]int{0, 0, 0, 200, 1300, 61_000}).Draw(rt, "after")) * time.Millisecond,
			})
		}
		with := func(allow, other string) (string, string) {
			if more == ", override: {user-1: %s}" {
				return allow, fmt.Sprintf(more, other)
			}
			return allow, more
		}
		allow, extra := with("10/min", "4/min")
		want := tell(t, algorithm, extra, allow, 0, requests)
		for limit, order := range []string{"[%s, 1000000/s]", "[1000000/s, %s]"} {
			allow, extra := with(fmt.Sprintf(order, "10/min"), fmt.Sprintf(order, "4/min"))
			got := tell(t, algorithm, extra, allow, limit, requests)
			w, g := reflect.ValueOf(want), reflect.ValueOf(got)
			for i := range w.NumField() {
				if !reflect.DeepEqual(w.Field(i).Interface(), g.Field(i).Interface()) {
					rt.Errorf("%s, %s%s: %s\n%+v\nof 10/min alone\n%+v", algorithm, allow, extra,
						w.Type().Field(i).Name, g.Field(i).Interface(), w.Field(i).Interface())
				}
			}
		}
	})
}

// A request that two limits of a rule refuse is one refusal of the rule, and one of each of them.
// The curve is about the limit that refuses most, wherever it stands.
func TestTwoWindowsRefuse(t *testing.T) {
	const clients = 10
	for limit, allow := range []string{"[10/min, 10/hour]", "[10/hour, 10/min]"} {
		b := newBench(t, Options{Known: []string{"user"}},
			"domain: shop\nlimits: [{name: search, per: [user], algorithm: fixed_window, allow: "+allow+"}]")
		refused := uint64(0)
		for range 4 {
			for i := range clients {
				for range 12 {
					if !b.ask(fmt.Sprint("user-", i)) {
						refused++
					}
					b.gather(false)
				}
			}
			b.pass(time.Minute)
		}
		r := b.rule("search")
		// Both refuse each client twice in the first minute, and the one by the hour from then on.
		minute, hour := r.Windows[limit].Refused, r.Windows[1-limit].Refused
		if refused != clients*(2+3*12) || r.Refused != refused || minute != clients*2 || hour != refused {
			t.Errorf("%s: %d refusals, %d of the rule, %d by the minute, %d by the hour", allow, refused, r.Refused,
				minute, hour)
		}
		if keys := b.keys(insight.KeysQuery{By: insight.ByRefused, Over: time.Hour}); len(keys) != clients ||
			keys[0].Count != refused/clients {
			t.Errorf("%s: %d keys refused, %+v", allow, len(keys), keys[:min(1, len(keys))])
		}
		if door := r.By["door"]; len(door) != 1 || door[0].Count != refused {
			t.Errorf("%s: by door %+v", allow, door)
		}
		if r.CurveOf != r.Windows[1-limit].Name ||
			!slices.ContainsFunc(r.Curve,
				func(p insight.CurvePoint) bool { return p.Limit == 10 && p.Keys == clients }) ||
			r.Curve[len(r.Curve)-1].Limit < 48 || r.Curve[len(r.Curve)-1].Keys != 0 {
			t.Errorf("%s: the curve is of %s: %+v", allow, r.CurveOf, r.Curve)
		}
		// Told to come back in the next hour, all come before.
		if r.Episodes != (insight.Episodes{Early: clients}) {
			t.Errorf("%s: episodes %+v", allow, r.Episodes)
		}
	}
}

// Impatient clients, and good ones that are refused, are found by any limit that refuses them.
func TestVerdictByAnyWindow(t *testing.T) {
	for _, allow := range []string{"10/min", "[10/min, 1000/s]", "[1000/s, 10/min]"} {
		for verdict, requests := range map[string]int{insight.Ignored: 12, insight.Strict: 11} {
			b := newBench(t, Options{Known: []string{"user"}},
				"domain: shop\nlimits: [{name: search, per: [user], algorithm: fixed_window, allow: "+allow+"}]")
			for range 10 {
				for i := range 30 {
					for range requests { // with 12, the last ones knock
						b.ask(fmt.Sprint("user-", i))
						b.gather(false)
					}
					if i%8 == 7 {
						b.pass(time.Second)
					}
				}
				b.pass(57 * time.Second)
			}
			if r := b.rule("search"); r.Verdicts[0].Verdict != verdict {
				t.Errorf("%s, %d requests a minute: %+v of %+v, good %+v", allow, requests, r.Verdicts, r.Episodes,
					r.Good)
			}
		}
	}
}
