package file

import (
	"strings"
	"testing"

	"github.com/weir-rl/weir/rule/file/internal/lint"
)

func TestLint(t *testing.T) {
	for _, c := range []struct {
		name string
		text string
		want []string // parts of the warnings, in order
	}{
		{"nothing to say", "limits: [{name: a, per: [ip], allow: [10/min, 500/hour]}]", nil},
		{"user, of whom nothing is known", "limits: [{name: a, per: [user], allow: 1/s}]", nil},
		{"header with ip beside it", "limits: [{name: a, per: [header.x], allow: 1/s}, {name: b, per: [ip], allow: 9/s}]", nil},
		{"header with user or ip beside it", "limits: [{name: a, per: [header.x], allow: 1/s}, {name: b, per: [user|ip], allow: 9/s}]", nil},
		{"header with user beside it", "limits: [{name: a, per: [header.x], allow: 1/s}, {name: b, per: [user], allow: 9/s}]", []string{"a: per header.x: "}},
		{"header and user with user beside it", "limits: [{name: a, per: [header.x, user], allow: 1/s}, {name: b, per: [user], allow: 9/s}]", nil},
		{"ip for other requests only", "limits: [{name: a, per: [header.x], allow: 1/s}, {name: b, when: {path: /x}, per: [ip], allow: 9/s}]", []string{"a: per header.x"}},
		{"ip for wider requests", "limits: [{name: a, when: {path: /x/y, method: GET}, per: [header.x], allow: 1/s}, {name: b, when: {path: /x/**}, per: [ip], allow: 9/s}]", nil},
		{"ip in shadow", "limits: [{name: a, per: [header.x], allow: 1/s}, {name: b, per: [ip], allow: 9/s, on_limit: shadow}]", []string{"a: per header.x"}},
		{"the same of several", "limits: [{name: a, per: [header.x], allow: 1/s}, {name: b, per: [header.x], allow: 2/s, when: {path: /x}}, {name: c, per: [header.x, ip], allow: 2/s, when: {path: /y}}]", []string{"a, b and c: per header.x"}},
		{"header", "limits: [{name: a, per: [header.x-key], allow: 1/s}]", []string{"a client can send any header.x-key"}},
		{"path", "limits: [{name: a, per: [ip, path], allow: 1/s}]", []string{"per path"}},
		{"path pinned", "limits: [{name: a, when: {path: [/a, /b]}, per: [ip, path], allow: 1/s}]", nil},
		{"path not pinned by a glob", "limits: [{name: a, when: {path: /a/*}, per: [ip, path], allow: 1/s}]", []string{"per path"}},
		{"concurrency", "limits: [{name: a, per: [ip], allow: 5 concurrent}]", []string{"a: a slot that nobody releases is held for 30s"}},
		{"concurrency with a timeout", "limits: [{name: a, per: [ip], allow: 5 concurrent, timeout: 30s}]", nil},
		{"soft to nothing", "limits: [{name: a, per: [ip], allow: 5/min, throttle: {soft: 10%}}]", []string{"soft margin of 10% of N 5 rounds to nothing (20% or more"}},
		{"soft of a bucket", "limits: [{name: a, per: [ip], allow: {rate: 100/min, burst: 5}, throttle: {soft: 10%}}]", []string{"of the bucket's size 5"}},
		{"soft enough", "limits: [{name: a, per: [ip], allow: 10/min, throttle: {soft: 10%}}]", nil},
		{"long queue", "limits: [{name: a, per: [ip], allow: {rate: 1/s, burst: 60}, algorithm: leaky_bucket}]", []string{"holds requests for 1m0s"}},
		{"long queue with wait", "limits: [{name: a, per: [ip], allow: {rate: 1/s, burst: 60}, algorithm: leaky_bucket, on_limit: {wait: 2s}}]", nil},
		{"short queue", "limits: [{name: a, per: [ip], allow: {rate: 1/s, burst: 6}, algorithm: leaky_bucket}]", nil},
		{"large log", "limits: [{name: a, per: [ip], allow: 50000/min, algorithm: sliding_log}]", []string{"up to 250 KB"}},
		{"cost 0", "limits: [{name: a, per: [ip], allow: 5/min, cost: 0}]", []string{"cost is 0"}},
		{"enforce 0", "limits: [{name: a, per: [ip], allow: 5/min, enforce: 0%}]", []string{"enforce is 0%"}},
		{"excluded and allowed", "limits: [{name: a, per: [ip], allow: 5/min, when: {plan: [free, \"!free\"]}}]", []string{"allows free and excludes !free: no request can meet that"}},
		{"excluded as a whole", "limits: [{name: a, per: [ip], allow: 5/min, when: {path: [/a/x, '/a/*.php', '!/a/**']}}]",
			[]string{"allows /a/x and excludes !/a/**, so that /a/x has no effect",
				"allows /a/*.php and excludes !/a/**: only other spellings of it can meet that"}},
		{"excluded in part", "limits: [{name: a, per: [ip], allow: 5/min, when: {path: [/a/**, '!/a/x']}}]", nil},
		{"space in override", "limits: [{name: a, per: [ip], allow: 5/min, override: {\" 10.0.0.1\": 1/s}}]", []string{"begins or ends with a space"}},

		{"long wait", "limits: [{name: a, per: [ip], allow: 5/min, on_limit: {wait: 90s}}]", []string{"holds a request, and its connection, for up to 1m30s"}},
		{"short wait", "limits: [{name: a, per: [ip], allow: 5/min, on_limit: {wait: 1m}}]", nil},
		{"wait for the end of a window", "limits: [{name: a, per: [ip], allow: 5/h, algorithm: fixed_window, on_limit: {wait: 10s}}]", []string{"rarely helps: what is used comes back all at once, at the end of the window of 1h"}},
		{"wait for a window that ends soon", "limits: [{name: a, per: [ip], allow: 5/s, algorithm: fixed_window, on_limit: {wait: 10s}}]", nil},
		{"wait of a descriptor", "domain: d\ndescriptors: [{key: k, rate_limit: {unit: minute, requests_per_unit: 1, count_denied: false, on_limit: {wait: 1s}, cost_after: response.status}}]",
			[]string{"cannot keep a request", "never see the response"}},
		{"ban by address", "limits: [{name: a, per: [ip], allow: 5/min, ban: {after: 5, within: 10m, for: 1h}}]", nil},
		{"ban by header", "limits: [{name: a, per: [header.x-key], allow: 5/min, ban: {after: 5, within: 10m, for: 1h}}]", []string{"whoever sends the header.x-key of somebody else can have them banned", "a client can send any"}},
		{"ban by user", "limits: [{name: a, per: [user], allow: 5/min, ban: {after: 5, within: 10m, for: 1h}}, {name: b, per: [ip], allow: 9/min}]", []string{"whoever sends the user"}},
		{"ban by user and address", "limits: [{name: a, per: [user, ip], allow: 5/min, ban: {after: 5, within: 10m, for: 1h}}, {name: b, per: [ip], allow: 9/min}]", nil},
		{"ban by what is pinned", "limits: [{name: a, when: {path: /login}, per: [path], allow: 5/min, ban: {after: 5, within: 10m, for: 1h}}]", nil},
		{"ban of many denials", "limits: [{name: a, per: [ip], allow: 5/min, ban: {after: 50000, within: 10m, for: 1h}}]", []string{"up to 250 KB"}},
		{"ban for a moment", "limits: [{name: a, per: [ip], allow: 5/h, ban: {after: 5, within: 10m, for: 1m}}]", []string{"ban.for of 1m is short beside the window of 1h"}},
		{"ban by the kernel", "limits: [{name: a, per: [ip], allow: 5/min, ban: {after: 5, within: 10m, for: 1h, at: nftables}}]", []string{"drops all packets of an address"}},
		{"ban by the kernel, said", "limits: [{name: a, per: [ip], allow: 5/min, ban: {after: 5, within: 10m, for: 1h, at: nftables, scope: domain}}]", nil},
		{"signal misspelt", "limits: [{name: a, allow: 5/min, throttle: {elastic: {signal: cpus, curve: {50%: 50%}}}}]", []string{"cpus is no signal that the server knows of itself (did you mean cpu?"}},
		{"signal pushed", "limits: [{name: a, allow: 5/min, throttle: {elastic: {signal: queue_depth, curve: {50%: 50%}}}}]", nil},
		{"curve without effect", "limits: [{name: a, allow: 5/min, throttle: {elastic: {signal: cpu, curve: {50%: 100%, 90%: 100%}}}}]", []string{"flat at 100%"}},
		{"curve without mercy", "limits: [{name: a, allow: 5/min, throttle: {elastic: {signal: cpu, curve: {50%: 0%}}}}]", []string{"flat at 0%"}},
		{"phase never reached", "limits: [{name: a, allow: 5/min, schedule: [{days: mon-fri, allow: 6/min}, {days: tue, between: '08:00-20:00', allow: 7/min}]}]", []string{"tue 08:00-20:00 is never reached"}},
		{"phase reached by night", "limits: [{name: a, allow: 5/min, schedule: [{days: mon, allow: 6/min}, {days: mon, between: '20:00-01:00', allow: 7/min}]}]", nil},
		{"phases together", "limits: [{name: a, allow: 5/min, schedule: [{between: '06:00-18:00', allow: 6/min}, {between: '18:00-06:00', allow: 7/min}]}]", []string{"its entries hold at all times, so that allow never does"}},
		{"phase that always holds", "limits: [{name: a, allow: 5/min, schedule: [{days: mon, allow: 6/min}, {allow: 7/min}]}]", []string{"its entries hold at all times"}},
		{"priority in shadow", "limits: [{name: a, allow: 5/min, priority: critical, on_limit: shadow}]", []string{"no effect while the rule is in shadow"}},
		{"soft to nothing at times", "limits: [{name: a, allow: 50/min, throttle: {soft: 10%}, schedule: [{days: mon, allow: 5/min}]}]", []string{"soft margin of 10% of N 5 rounds to nothing"}},
		{"cost 0, known afterwards", "limits: [{name: a, allow: 50/min, cost: 0, cost_after: response.bytes}]", nil},
		{"windows of a schedule", "limits: [{name: a, per: [ip], allow: [10/min, 1000/hour], algorithm: sliding_log, schedule: [{days: sun, allow: 1000/hour}]}]", nil},
		{"beside a limit with a schedule", "limits: [{name: a, per: [ip], allow: 10/min, schedule: [{days: sun, allow: unlimited}]}, {name: b, per: [ip], allow: 100/min}]", nil},

		{"window never bites", "limits: [{name: a, per: [ip], allow: [10/min, 1000/hour], algorithm: sliding_log}]", []string{"1000/hour never refuses anything, since 10/minute"}},
		{"window bites", "limits: [{name: a, per: [ip], allow: [10/min, 599/hour], algorithm: sliding_log}]", nil},
		{"window of an approximation", "limits: [{name: a, per: [ip], allow: [10/min, 5000/hour]}]", []string{"5000/hour never"}},
		{"limit never bites", "limits: [{name: a, per: [ip], allow: 10/min}, {name: b, per: [ip], allow: 100/min}]", []string{"b: never refuses anything, since a is always tighter, except for keys that are granted more there"}},
		{"limit with a finer key never bites", "limits: [{name: a, per: [ip], allow: 10/min, algorithm: sliding_log}, {name: b, per: [ip, method], allow: 10/min, algorithm: sliding_log}]", []string{"b: never"}},
		{"limit with a coarser key bites", "limits: [{name: a, per: [ip, method], allow: 10/min}, {name: b, per: [ip], allow: 10/min}]", []string{"a: never"}},
		{"other conditions", "limits: [{name: a, when: {path: /x}, per: [ip], allow: 10/min}, {name: b, per: [ip], allow: 100/min}]", nil},
		{"with overrides", "limits: [{name: a, per: [ip], allow: 10/min, override: {1.2.3.4: 99/s}}, {name: b, per: [ip], allow: 100/min}]", nil},
		{"replaces the tighter", "limits: [{name: a, per: [ip], allow: 10/min}, {name: b, per: [ip], allow: 100/min, replaces: [a]}]", []string{"a: no request can meet it: b replaces it"}},
		{"known afterwards, beside requests", "limits: [{name: reqs, per: [ip], allow: 10/min}, {name: bytes, per: [ip], allow: 100/min, cost_after: response.bytes}]", nil},
		{"both known afterwards", "limits: [{name: a, per: [ip], allow: 10/min, cost_after: response.bytes}, {name: b, per: [ip], allow: 100/min, cost_after: response.bytes}]", []string{"b: never"}},
		{"replaced for some by a third", "limits: [{name: a, per: [ip], allow: 10/min}, {name: b, per: [ip], allow: 100/min}, {name: c, when: {path: /big/**}, per: [ip], allow: 1000/min, replaces: [a]}]", nil},
		{"replaced behind a first", "groups: first\nlimits: [{name: a, when: {path: /x}, per: [ip], allow: 1/min}, {name: b, per: [ip], allow: 10/min, replaces: [a]}]", nil},
		{"replaced by the first", "groups: first\nlimits: [{name: b, per: [ip], allow: 10/min, replaces: [a]}, {name: a, when: {path: /x}, per: [ip], allow: 1/min}]", []string{"a: no request can meet it: groups: first", "a: no request can meet it: b replaces"}},
		{"replaces for some", "limits: [{name: a, per: [ip], allow: 10/min}, {name: b, when: {plan: x}, per: [ip], allow: 100/min, replaces: [a]}]", nil},
		{"behind the first", "groups: first\nlimits: [{name: a, per: [ip], allow: 10/min}, {name: b, when: {path: /x}, per: [ip], allow: 1/min}]", []string{"b: no request can meet it: groups: first"}},
		{"before the first", "groups: first\nlimits: [{name: b, when: {path: /x}, per: [ip], allow: 1/min}, {name: a, per: [ip], allow: 10/min}]", nil},
		{"behind a first of folders", "groups: first\nlimits: [{name: a, when: {path: /api/**}, per: [ip], allow: 10/min}, {name: b, when: {path: /api/x}, per: [ip], allow: 1/min}]", []string{"b: no request can meet it: groups: first, and a takes all"}},
		{"behind several firsts", "groups: first\nlimits: [{name: a, when: {path: /api/**}, per: [ip], allow: 10/min}, {name: b, when: {path: ~^/static/}, per: [ip], allow: 1/min}, {name: c, when: {path: [/api/x, /static/y], method: GET}, per: [ip], allow: 1/min}]", []string{"c: no request can meet it: groups: first, and a and b take all"}},
		{"behind a first for others", "groups: first\nlimits: [{name: a, when: {path: /api/**, method: POST}, per: [ip], allow: 10/min}, {name: b, when: {path: /api/x}, per: [ip], allow: 1/min}]", nil},
		{"behind a first with a wider key", "groups: first\nlimits: [{name: a, per: [user|ip], allow: 10/min}, {name: b, per: [ip], allow: 1/min}]", []string{"b: no request"}},
		{"behind a first with a key that when holds", "groups: first\nlimits: [{name: a, per: [path], when: {path: [/x/y, /x/z]}, allow: 10/min}, {name: b, when: {path: /x/y}, allow: 1/min}]", []string{"b: no request"}},
		{"behind a first that has exceptions", "groups: first\nlimits: [{name: a, when: {path: [/api/**, '!/api/x']}, per: [ip], allow: 10/min}, {name: b, when: {path: /api/x}, per: [ip], allow: 1/min}, {name: c, when: {path: '/api/y*'}, per: [ip], allow: 1/min}]", []string{"c: no request"}},
		{"behind a first in shadow", "groups: first\nlimits: [{name: a, per: [ip], allow: 10/min, on_limit: shadow}, {name: b, per: [ip], allow: 1/min}]", nil},
		{"both in shadow", "groups: first\nlimits: [{name: a, per: [ip], allow: 10/min, on_limit: shadow}, {name: b, per: [ip], allow: 1/min, on_limit: shadow}]", []string{"b: no request"}},
		{"behind a first of networks", "groups: first\nlimits: [{name: a, when: {ip: 10.0.0.0/8}, allow: 10/min}, {name: b, when: {ip: [10.1.0.0/16, 10.2.3.4]}, allow: 1/min}]", []string{"b: no request"}},
		{"behind the first, but with another key", "groups: first\nlimits: [{name: a, per: [org], allow: 10/min}, {name: b, per: [ip], allow: 1/min}]", nil},
		{"exempt", "exempt: {ip: [10.0.0.1]}\nlimits: [{name: a, when: {ip: 10.0.0.1}, allow: 10/min}, {name: b, per: [ip], allow: 1/min}]", []string{"a: no request can meet it: exempt"}},

		{"no address", "limits: [{name: a, when: {ip: 999.1.1.1}, allow: 10/min}]", []string{"a: when.ip: 999.1.1.1 never matches: no door that sees"}},
		{"exempt without an address", "exempt: {ip: [10.0.0.1, 10.0.0.O]}\nlimits: [{name: a, per: [ip], allow: 10/min}]", []string{"exempt: ip: 10.0.0.O never matches"}},
		{"no address excluded", "limits: [{name: a, when: {ip: '!localhost'}, allow: 10/min}]", nil},
		{"glob of addresses", "limits: [{name: a, when: {ip: ['10.0.*', '2001:db8:*', '~^10[.]']}, allow: 10/min}]", nil},
		{"glob of no addresses", "limits: [{name: a, when: {ip: ['2001:DB8:*', '~^host-']}, allow: 10/min}]", []string{"2001:DB8:* never", "~^host- never"}},
		{"bits of a host", "limits: [{name: a, when: {ip: 10.0.0.1/8}, allow: 10/min}]", []string{"10.0.0.1/8 stands for all of 10.0.0.0/8 (write 10.0.0.0/8"}},
		{"override of no address", "limits: [{name: a, per: [ip], allow: 10/min, override: {999.1.1.1: 1/s, 10.0.0.1: 1/s}}]", []string{"override: 999.1.1.1 is no IP"}},
		{"override of a key of IPv6", "limits: [{name: a, per: [ip], allow: 10/min, override: {'2001:db8:1:2::/64': 50/min}}]", nil},
		{"override of a block", "limits: [{name: a, per: [ip], allow: 10/min, override: {'2001:db8::/32': 50/min}}]", []string{"override: 2001:db8::/32 is no IP"}},
		{"methods", "limits: [{name: a, when: {method: [get, POST, PROPFIND, FROBNICATE, '~^(GET|HEAD)$', '~(?i)post', 'P*']}, allow: 10/min}]", nil},
		{"bad methods", "limits: [{name: a, when: {method: [GTE, 'GET|POST', 'GET, POST', '~^(get|post)$']}, allow: 10/min}]", []string{"GTE is no method that is known (did you mean GET?)", "GET|POST is taken as one method (several are a list", "GET, POST never matches", "~^(get|post)$ never matches"}},
		{"paths", "limits: [{name: a, when: {path: ['**.php', '/a//b/../c', '*/login', '/%2f', '~login$', '~^/a.*/b', '~[?]?$', '~^(/a|b)', '~%2F']}, allow: 10/min}]", nil},
		{"bad paths", "limits: [{name: a, paths: exact, when: {path: ['*', '*.php', '~^api/', '~^/a[?]b', '~//', '~%2f', '~café', '~^/x/../y']}, allow: 10/min}]",
			[]string{"* never matches: a * does not stand for a slash",
				"*.php never matches: a path begins with a slash (** stands", "~^api/ never", "~^/a[?]b never", "~// never matches: repeated slashes", "~%2f never matches: percent-encoding is in upper case", "~café never"}},
		{"escapes in lower case", "limits: [{name: a, when: {path: '~%2f'}, allow: 10/min}]", nil},
		{"spellings of a path", "limits: [{name: a, when: {path: [/login, /login/]}, allow: 5/min}, {name: b, when: {path: /Login}, allow: 10/min}, {name: c, paths: exact, when: {path: /LOGIN}, allow: 10/min}]",
			[]string{"a: when.path: /login/ is the same path as /login (write paths: exact",
				"b: when.path: /Login is the same path as /login of a, so that a request meets both"}},
		{"spellings of a path, told apart", "paths: exact\nlimits: [{name: a, when: {path: [/login, /login/]}, allow: 5/min}]", nil},
		{"a final slash", "limits: [{name: a, when: {path: ['**/', '~/$']}, allow: 5/min}]", []string{"**/ asks for a final slash", "~/$ asks for a final slash"}},
		{"hosts", "limits: [{name: a, when: {host: [Shop.Example, '*.example', '[::1]', '~^api[.]', '~(?i)^API']}, allow: 10/min}]", nil},
		{"bad hosts", "limits: [{name: a, when: {host: ['~^https://', '~shop.example[.]$', '~^API[.]', 'straße.example']}, allow: 10/min}]",
			[]string{"~^https:// never", "~shop.example[.]$ never matches: hosts come without a final dot",
				"~^API[.] never", "straße.example never"}},
		{"attribute names", "limits: [{name: a, when: {cost: x, post: y, hash: z, org: w, id: v, pat: t, hosts: s, ghost: r, users: q}, per: [users-id], allow: 10/min}]", nil},
		{"bad attribute names", "limits: [{name: a, when: {mehtod: GET, headers.x-plan: pro, methd: x, paht: /x}, allow: 10/min}]", []string{"mehtod is no attribute that doors supply of themselves (did you mean method?)", "did you mean header.x-plan?", "did you mean method?", "did you mean path?"}},
		{"replaces nobody", "domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1, replaces: [{name: x}]}}]", []string{`replaces "x", which no descriptor bears`}},
		{"replaces somebody", "domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1, replaces: [{name: x}]}}, {key: j, rate_limit: {unit: day, requests_per_unit: 1, name: x}}]", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			set, _, err := load(t, "x.yaml", c.text)
			if err != nil {
				t.Fatal(err)
			}
			got := Lint(set, LintOptions{})
			if len(got) != len(c.want) {
				t.Fatalf("got %d warnings, want %d: %v", len(got), len(c.want), got)
			}
			for i, p := range got {
				if !strings.Contains(p.Error(), c.want[i]) {
					t.Errorf("warning %d: got %q, want one with %q", i, p.Error(), c.want[i])
				}
				if p.Pos.File != "x.yaml" || p.Pos.Line == 0 || p.Quote == "" ||
					p.Rule == "" && !strings.HasPrefix(p.Message, "exempt: ") {
					t.Errorf("warning without a place: %+v", p)
				}
				if !lint.Named(p.Name) || !strings.Contains(p.Error(), " ["+p.Name+"]\n") {
					t.Errorf("warning %q is none of Warnings, or not told", p.Name)
				}
			}
		})
	}
	if Lint(nil, LintOptions{}) != nil {
		t.Error("a nil Set has warnings")
	}
}
