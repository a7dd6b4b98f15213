package rls

import "time"

// cases are the facts of envoyproxy/ratelimit's protocol, and where weir departs from it.
var cases = table()

func table() []testCase {
	const (
		s  = time.Second
		m  = time.Minute
		h  = time.Hour
		dd = 24 * time.Hour
	)
	// k2 counts two a minute for each value of k.
	const k2 = `{key: k, rate_limit: {unit: minute, requests_per_unit: 2}}`
	return []testCase{
		// Matching.
		{name: "a default rule counts each value apart", descriptors: []string{k2}, steps: []step{
			{0, "d: k=a", "OK: OK 2/MINUTE left 1 reset 60"},
			{0, "d: k=a", "OK: OK 2/MINUTE left 0 reset 60"},
			{0, "d: k=a", "OVER_LIMIT: OVER_LIMIT 2/MINUTE left 0 reset 60"},
			{0, "d: k=b", "OK: OK 2/MINUTE left 1 reset 60"}}},
		{name: "an exact value beats a wildcard beats the default", descriptors: []string{
			`{key: k, rate_limit: {unit: minute, requests_per_unit: 1}}`,
			`{key: k, value: "a*", rate_limit: {unit: minute, requests_per_unit: 2}}`,
			`{key: k, value: ab, rate_limit: {unit: minute, requests_per_unit: 3}}`}, steps: []step{
			{0, "d: k=ab", "OK: OK 3/MINUTE left 2 reset 60"},
			{0, "d: k=ac", "OK: OK 2/MINUTE left 1 reset 60"},
			{0, "d: k=x", "OK: OK 1/MINUTE left 0 reset 60"}}},
		{name: "among wildcards the first in the file holds", descriptors: []string{
			`{key: k, value: "a*", rate_limit: {unit: minute, requests_per_unit: 1}}`,
			`{key: k, value: "ab*", rate_limit: {unit: minute, requests_per_unit: 2}}`}, steps: []step{
			{0, "d: k=ab1", "OK: OK 1/MINUTE left 0 reset 60"}}},
		{name: "an empty value meets the default", descriptors: []string{k2}, steps: []step{
			{0, "d: k=", "OK: OK 2/MINUTE left 1 reset 60"}}},
		{name: "an empty value meets a bare star", descriptors: []string{
			k2, `{key: k, value: "*", rate_limit: {unit: minute, requests_per_unit: 5}}`}, steps: []step{
			{0, "d: k=", "OK: OK 5/MINUTE left 4 reset 60"}}},
		{name: "a star in the middle", descriptors: []string{
			`{key: k, value: "a*c", rate_limit: {unit: minute, requests_per_unit: 1}}`}, steps: []step{
			{0, "d: k=abbc", "OK: OK 1/MINUTE left 0 reset 60"},
			{0, "d: k=ac", "OK: OK 1/MINUTE left 0 reset 60"},
			{0, "d: k=abcd", "OK: OK"}}},
		{name: "several stars", descriptors: []string{
			`{key: k, value: "*a*b*", rate_limit: {unit: minute, requests_per_unit: 1}}`}, steps: []step{
			{0, "d: k=xaybz", "OK: OK 1/MINUTE left 0 reset 60"},
			{0, "d: k=ba", "OK: OK"}}},
		{name: "a request deeper than the rule", descriptors: []string{k2}, steps: []step{
			{0, "d: k=a l=b", "OK: OK"}}},
		{name: "a request less deep than the rule", descriptors: []string{
			`{key: k, descriptors: [{key: l, rate_limit: {unit: minute, requests_per_unit: 2}}]}`}, steps: []step{
			{0, "d: k=a", "OK: OK"},
			{0, "d: k=a l=b", "OK: OK 2/MINUTE left 1 reset 60"}}},
		{name: "a limit on the way down does not count", descriptors: []string{
			`{key: k, rate_limit: {unit: minute, requests_per_unit: 0}, descriptors: [{key: l, rate_limit: {unit: minute, requests_per_unit: 2}}]}`},
			steps: []step{
				{0, "d: k=a l=b", "OK: OK 2/MINUTE left 1 reset 60"},
				{0, "d: k=a", "OVER_LIMIT: OVER_LIMIT 0/MINUTE left 0 reset 60"}}},
		{name: "nested values count each pair", descriptors: []string{
			`{key: k, descriptors: [{key: l, rate_limit: {unit: minute, requests_per_unit: 1}}]}`}, steps: []step{
			{0, "d: k=a l=b", "OK: OK 1/MINUTE left 0 reset 60"},
			{0, "d: k=a l=c", "OK: OK 1/MINUTE left 0 reset 60"},
			{0, "d: k=b l=b", "OK: OK 1/MINUTE left 0 reset 60"},
			{0, "d: k=a l=b", "OVER_LIMIT: OVER_LIMIT 1/MINUTE left 0 reset 60"}}},
		{name: "no way back from a chosen subtree", descriptors: []string{
			`{key: k, value: a, descriptors: [{key: l, value: x, rate_limit: {unit: minute, requests_per_unit: 1}}]}`,
			`{key: k, descriptors: [{key: l, rate_limit: {unit: minute, requests_per_unit: 2}}]}`}, steps: []step{
			{0, "d: k=a l=y", "OK: OK"},
			{0, "d: k=b l=y", "OK: OK 2/MINUTE left 1 reset 60"}}},
		{name: "no rule", descriptors: []string{k2}, steps: []step{{0, "d: x=y", "OK: OK"}}},
		{name: "an unknown domain", descriptors: []string{k2}, steps: []step{{0, "other: k=a; k=b", "OK: OK; OK"}}},
		{name: "domains are matched byte for byte", descriptors: []string{k2}, steps: []step{{0, "D: k=a", "OK: OK"}}},
		{name: "values are matched byte for byte", descriptors: []string{
			`{key: k, value: a, rate_limit: {unit: minute, requests_per_unit: 1}}`}, steps: []step{
			{0, "d: k=A; K=a", "OK: OK; OK"}}},
		{name: "a descriptor without entries", descriptors: []string{k2}, steps: []step{{0, "d: none", "OK: OK"}}},
		{name: "an entry without a key", descriptors: []string{k2}, steps: []step{{0, "d: =v", "OK: OK"}}},
		{name: "a leaf without a limit allows", descriptors: []string{
			k2, `{key: k, value: free}`}, steps: []step{{0, "d: k=free", "OK: OK"}}},
		{name: "key and value do not run into each other", descriptors: []string{
			`{key: a_b, rate_limit: {unit: minute, requests_per_unit: 0}}`,
			`{key: k, value: "*", rate_limit: {unit: minute, requests_per_unit: 0}}`}, steps: []step{
			{0, "d: a=b; k_x=y", "OK: OK; OK"}}},
		{name: "counters do not run into each other", descriptors: []string{
			`{key: a, rate_limit: {unit: minute, requests_per_unit: 1}}`,
			`{key: a_b, rate_limit: {unit: minute, requests_per_unit: 1}}`}, steps: []step{
			{0, "d: a=b_c; a_b=c", "OK: OK 1/MINUTE left 0 reset 60; OK 1/MINUTE left 0 reset 60"}}},
		{name: "statuses come in the order of the request", descriptors: []string{
			k2, `{key: l, rate_limit: {unit: hour, requests_per_unit: 9}}`}, steps: []step{
			{0, "d: x=1; l=1; none; k=1", "OK: OK; OK 9/HOUR left 8 reset 3600; OK; OK 2/MINUTE left 1 reset 60"},
			{0, "d: k=1; l=1", "OK: OK 2/MINUTE left 0 reset 60; OK 9/HOUR left 7 reset 3600"}}},

		// Windows.
		{name: "a second resets in a second",
			descriptors: []string{`{key: k, rate_limit: {unit: second, requests_per_unit: 1}}`}, steps: []step{
				{300 * time.Millisecond, "d: k=a", "OK: OK 1/SECOND left 0 reset 1"},
				{999 * time.Millisecond, "d: k=a", "OVER_LIMIT: OVER_LIMIT 1/SECOND left 0 reset 1"},
				{1 * s, "d: k=a", "OK: OK 1/SECOND left 0 reset 1"}}},
		{name: "a minute ends on the minute", descriptors: []string{k2}, steps: []step{
			{59*s + 999*time.Millisecond, "d+2: k=a", "OK: OK 2/MINUTE left 0 reset 1"},
			{60 * s, "d: k=a", "OK: OK 2/MINUTE left 1 reset 60"}}},
		{name: "a part of a second is rounded up", descriptors: []string{k2}, steps: []step{
			{40*s + time.Microsecond, "d: k=a", "OK: OK 2/MINUTE left 1 reset 20"},
			{41 * s, "d: k=a", "OK: OK 2/MINUTE left 0 reset 19"}}},
		{name: "an hour", descriptors: []string{`{key: k, rate_limit: {unit: hour, requests_per_unit: 1}}`},
			steps: []step{
				{20 * m, "d: k=a", "OK: OK 1/HOUR left 0 reset 2400"}}},
		{name: "a day", descriptors: []string{`{key: k, rate_limit: {unit: day, requests_per_unit: 1}}`}, steps: []step{
			{23 * h, "d: k=a", "OK: OK 1/DAY left 0 reset 3600"},
			{24 * h, "d: k=a", "OK: OK 1/DAY left 0 reset 86400"}}},
		{name: "a week begins on Thursday",
			descriptors: []string{`{key: k, rate_limit: {unit: week, requests_per_unit: 1}}`}, steps: []step{
				{6 * dd, "d: k=a", "OK: OK 1/WEEK left 0 reset 86400"},
				{7 * dd, "d: k=a", "OK: OK 1/WEEK left 0 reset 604800"}}},
		{name: "a month is 30 days", descriptors: []string{`{key: k, rate_limit: {unit: month, requests_per_unit: 1}}`},
			steps: []step{
				{0, "d: k=a", "OK: OK 1/MONTH left 0 reset 518400"},
				{6 * dd, "d: k=a", "OK: OK 1/MONTH left 0 reset 2592000"}}},
		{name: "a year is 365 days", descriptors: []string{`{key: k, rate_limit: {unit: year, requests_per_unit: 1}}`},
			steps: []step{
				{0, "d: k=a", "OK: OK 1/YEAR left 0 reset 30326400"}}},
		{name: "a calendar month where it is asked for", descriptors: []string{
			`{key: k, rate_limit: {unit: month, requests_per_unit: 1, calendar: true}}`}, steps: []step{
			{0, "d: k=a", "OK: OK 1/MONTH left 0 reset 2678400"},
			{30 * dd, "d: k=a", "OVER_LIMIT: OVER_LIMIT 1/MONTH left 0 reset 86400"},
			{31 * dd, "d: k=a +0", "OK: OK 1/MONTH left 1 reset 2419200"}}},
		{name: "a calendar week begins on Monday", descriptors: []string{
			`{key: k, rate_limit: {unit: week, requests_per_unit: 1, calendar: true}}`}, steps: []step{
			{0, "d: k=a +0", "OK: OK 1/WEEK left 1 reset 345600"},
			{0, "d: k=a", "OK: OK 1/WEEK left 0 reset 345600"},
			{4 * dd, "d: k=a", "OK: OK 1/WEEK left 0 reset 604800"}}},
		{name: "a calendar year", descriptors: []string{
			`{key: k, rate_limit: {unit: year, requests_per_unit: 1, calendar: true}}`}, steps: []step{
			{0, "d: k=a +0", "OK: OK 1/YEAR left 1 reset 31536000"}}},
		{name: "the unit in any case",
			descriptors: []string{`{key: k, rate_limit: {unit: HoUr, requests_per_unit: 1}}`}, steps: []step{
				{0, "d: k=a", "OK: OK 1/HOUR left 0 reset 3600"}}},

		// Counting.
		{name: "nothing passes a limit of zero",
			descriptors: []string{`{key: k, rate_limit: {unit: hour, requests_per_unit: 0}}`}, steps: []step{
				{0, "d: k=a", "OVER_LIMIT: OVER_LIMIT 0/HOUR left 0 reset 3600"}}},
		{name: "no number is zero", descriptors: []string{`{key: k, rate_limit: {unit: hour}}`}, steps: []step{
			{10 * m, "d: k=a", "OVER_LIMIT: OVER_LIMIT 0/HOUR left 0 reset 3000"}}},
		{name: "the largest number loads",
			descriptors: []string{`{key: k, rate_limit: {unit: hour, requests_per_unit: 1000000000}}`}, steps: []step{
				{0, "d: k=a", "OK: OK 1000000000/HOUR left 999999999 reset 3600"}}},
		{name: "refused requests count",
			descriptors: []string{`{key: k, rate_limit: {unit: minute, requests_per_unit: 5}}`}, steps: []step{
				{0, "d+3: k=a", "OK: OK 5/MINUTE left 2 reset 60"},
				{0, "d+3: k=a", "OVER_LIMIT: OVER_LIMIT 5/MINUTE left 0 reset 60"},
				{0, "d+1: k=a", "OVER_LIMIT: OVER_LIMIT 5/MINUTE left 0 reset 60"}}},
		{name: "the same descriptor twice counts twice",
			descriptors: []string{`{key: k, rate_limit: {unit: minute, requests_per_unit: 5}}`}, steps: []step{
				{0, "d+3: k=a; k=a", "OVER_LIMIT: OK 5/MINUTE left 2 reset 60; OVER_LIMIT 5/MINUTE left 0 reset 60"}}},
		{name: "what passes counts though another descriptor refuses", descriptors: []string{
			k2, `{key: l, rate_limit: {unit: minute, requests_per_unit: 0}}`}, steps: []step{
			{0, "d: k=a; l=b", "OVER_LIMIT: OK 2/MINUTE left 1 reset 60; OVER_LIMIT 0/MINUTE left 0 reset 60"},
			{0, "d: k=a; l=b", "OVER_LIMIT: OK 2/MINUTE left 0 reset 60; OVER_LIMIT 0/MINUTE left 0 reset 60"},
			{0, "d: k=a", "OVER_LIMIT: OVER_LIMIT 2/MINUTE left 0 reset 60"}}},

		// Hits.
		{name: "no hits are one", descriptors: []string{k2}, steps: []step{
			{0, "d+0: k=a", "OK: OK 2/MINUTE left 1 reset 60"}}},
		{name: "hits of the request are for each descriptor",
			descriptors: []string{`{key: k, rate_limit: {unit: minute, requests_per_unit: 9}}`}, steps: []step{
				{0, "d+4: k=a; k=b", "OK: OK 9/MINUTE left 5 reset 60; OK 9/MINUTE left 5 reset 60"}}},
		{name: "a descriptor's own hits win",
			descriptors: []string{`{key: k, rate_limit: {unit: minute, requests_per_unit: 9}}`}, steps: []step{
				{0, "d+4: k=a +2; k=b", "OK: OK 9/MINUTE left 7 reset 60; OK 9/MINUTE left 5 reset 60"}}},
		{name: "a descriptor's zero looks only", descriptors: []string{k2}, steps: []step{
			{15 * s, "d: k=a +0", "OK: OK 2/MINUTE left 2 reset 45"},
			{15 * s, "d+2: k=a", "OK: OK 2/MINUTE left 0 reset 45"},
			{15 * s, "d: k=a +0", "OK: OK 2/MINUTE left 0 reset 45"},
			{15 * s, "d: k=a", "OVER_LIMIT: OVER_LIMIT 2/MINUTE left 0 reset 45"},
			{15 * s, "d: k=a +0", "OVER_LIMIT: OVER_LIMIT 2/MINUTE left 0 reset 45"}}},
		{name: "negative hits refund",
			descriptors: []string{`{key: k, rate_limit: {unit: minute, requests_per_unit: 5}}`}, steps: []step{
				{0, "d+4: k=a", "OK: OK 5/MINUTE left 1 reset 60"},
				{0, "d: k=a -3", "OK: OK 5/MINUTE left 4 reset 60"},
				{0, "d: k=a", "OK: OK 5/MINUTE left 3 reset 60"}}},
		{name: "a refund never goes above fresh",
			descriptors: []string{`{key: k, rate_limit: {unit: minute, requests_per_unit: 5}}`}, steps: []step{
				{0, "d+4: k=a", "OK: OK 5/MINUTE left 1 reset 60"},
				{0, "d: k=a -18446744073709551615", "OK: OK 5/MINUTE left 5 reset 60"},
				{0, "d+5: k=a", "OK: OK 5/MINUTE left 0 reset 60"}}},
		{name: "a refund of what was not taken", descriptors: []string{k2}, steps: []step{
			{20 * s, "d: k=a -3", "OK: OK 2/MINUTE left 2 reset 40"}}},
		{name: "a refund passes a limit that is over", descriptors: []string{k2}, steps: []step{
			{0, "d+4: k=a", "OVER_LIMIT: OVER_LIMIT 2/MINUTE left 0 reset 60"},
			{0, "d: k=a -1", "OK: OK 2/MINUTE left 0 reset 60"},
			{0, "d: k=a -2", "OK: OK 2/MINUTE left 1 reset 60"}}},
		{name: "negative without a number refunds the request's hits",
			descriptors: []string{`{key: k, rate_limit: {unit: minute, requests_per_unit: 9}}`}, steps: []step{
				{0, "d+7: k=a", "OK: OK 9/MINUTE left 2 reset 60"},
				{0, "d+4: k=a -", "OK: OK 9/MINUTE left 6 reset 60"},
				{0, "d: k=a -", "OK: OK 9/MINUTE left 7 reset 60"}}},
		{name: "hits beyond every capacity are refused",
			descriptors: []string{`{key: k, rate_limit: {unit: minute, requests_per_unit: 1000000000}}`}, steps: []step{
				{0, "d+4294967295: k=a", "OVER_LIMIT: OVER_LIMIT 1000000000/MINUTE left 0 reset 60"}}},
		{name: "own hits beyond every capacity are refused",
			descriptors: []string{`{key: k, rate_limit: {unit: minute, requests_per_unit: 1000000000}}`}, steps: []step{
				{0, "d: k=a +18446744073709551615", "OVER_LIMIT: OVER_LIMIT 1000000000/MINUTE left 0 reset 60"}}},

		// Limits that the request brings.
		{name: "a limit of the request's own", descriptors: []string{k2}, steps: []step{
			{0, "d: k=a @3/HOUR", "OK: OK 3/HOUR left 2 reset 3600"},
			{0, "d+3: k=a @3/HOUR", "OVER_LIMIT: OVER_LIMIT 3/HOUR left 0 reset 3600"}}},
		{name: "its number may change under the counter", descriptors: []string{k2}, steps: []step{
			{0, "d+3: x=a @4/HOUR", "OK: OK 4/HOUR left 1 reset 3600"},
			{0, "d: x=a @9/HOUR", "OK: OK 9/HOUR left 5 reset 3600"},
			{0, "d: x=a @2/HOUR", "OVER_LIMIT: OVER_LIMIT 2/HOUR left 0 reset 3600"}}},
		{name: "another unit is another counter", descriptors: []string{k2}, steps: []step{
			{0, "d+3: x=a @4/HOUR", "OK: OK 4/HOUR left 1 reset 3600"},
			{0, "d: x=a @4/DAY", "OK: OK 4/DAY left 3 reset 86400"}}},
		{name: "it needs no rule", descriptors: []string{k2}, steps: []step{
			{0, "d: a=1 b=2 c=3 @1/SECOND", "OK: OK 1/SECOND left 0 reset 1"},
			{0, "d: a=1 b=2 c=3 @1/SECOND", "OVER_LIMIT: OVER_LIMIT 1/SECOND left 0 reset 1"},
			{0, "d: a=1 b=2 c=4 @1/SECOND", "OK: OK 1/SECOND left 0 reset 1"}}},
		{name: "its months and years", descriptors: []string{k2}, steps: []step{
			{0, "d: x=a @4/MONTH; x=a @4/YEAR; x=a @4/MINUTE", "OK: OK 4/MONTH left 3 reset 518400; OK 4/YEAR left 3 reset 30326400; OK 4/MINUTE left 3 reset 60"}}},
		{name: "seven is a week there too", descriptors: []string{k2}, steps: []step{
			{dd, "d: x=a @4/7", "OK: OK 4/WEEK left 3 reset 518400"}}},
		{name: "it puts a rule's mode and name aside", descriptors: []string{
			`{key: k, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 0, name: n}}`}, steps: []step{
			{0, "d: k=a", "OK: OK n 0/MINUTE left 0 reset 60"},
			{0, "d: k=a @0/MINUTE", "OVER_LIMIT: OVER_LIMIT 0/MINUTE left 0 reset 60"}}},
		{name: "it is ignored in an unknown domain", descriptors: []string{k2}, steps: []step{
			{0, "other: k=a @0/MINUTE", "OK: OK"}}},
		{name: "a unit of zero is refused", descriptors: []string{k2}, steps: []step{
			{0, "d: k=a; k=a @5/0", "InvalidArgument: descriptors[1].limit.unit: 0 is no unit; use 1 (SECOND) to 6 (YEAR), or 7 (WEEK)"},
			{0, "d: k=a", "OK: OK 2/MINUTE left 1 reset 60"}}},
		{name: "an unknown unit is refused", descriptors: []string{k2}, steps: []step{
			{0, "d: k=a @5/8", "InvalidArgument: descriptors[0].limit.unit: 8 is no unit; use 1 (SECOND) to 6 (YEAR), or 7 (WEEK)"}}},
		{name: "its largest number", descriptors: []string{k2}, steps: []step{
			{0, "d: x=a @1000000000/HOUR", "OK: OK 1000000000/HOUR left 999999999 reset 3600"}}},

		// Errors.
		{name: "no domain", descriptors: []string{k2}, steps: []step{
			{0, ": k=a", "InvalidArgument: rate limit domain must not be empty"}}},
		{name: "no descriptors", descriptors: []string{k2}, steps: []step{
			{0, "d:", "InvalidArgument: rate limit descriptor list must not be empty"}}},

		// Modes.
		{name: "a shadow is never over", descriptors: []string{
			`{key: k, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}`}, steps: []step{
			{0, "d: k=a", "OK: OK 1/MINUTE left 0 reset 60"},
			{0, "d: k=a", "OK: OK 1/MINUTE left 0 reset 60"}}},
		{name: "a shadow beside a refusal", descriptors: []string{
			`{key: k, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 0}}`,
			`{key: l, rate_limit: {unit: minute, requests_per_unit: 0}}`}, steps: []step{
			{0, "d: k=a; l=a", "OVER_LIMIT: OK 0/MINUTE left 0 reset 60; OVER_LIMIT 0/MINUTE left 0 reset 60"}}},
		{name: "one quota alone refuses", descriptors: []string{
			`{key: k, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}`}, steps: []step{
			{0, "d: k=a", "OK: OK 1/MINUTE left 0 reset 60"},
			{0, "d: k=a", "OVER_LIMIT: OVER_LIMIT 1/MINUTE left 0 reset 60"}}},
		{name: "quotas refuse together", descriptors: []string{
			`{key: k, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}`,
			`{key: l, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 2}}`}, steps: []step{
			{0, "d: k=a; l=a", "OK: OK 1/MINUTE left 0 reset 60; OK 2/MINUTE left 1 reset 60"},
			{0, "d: k=a; l=a", "OK: OVER_LIMIT 1/MINUTE left 0 reset 60; OK 2/MINUTE left 0 reset 60"},
			{0, "d: k=a; l=a", "OVER_LIMIT: OVER_LIMIT 1/MINUTE left 0 reset 60; OVER_LIMIT 2/MINUTE left 0 reset 60"}}},
		{name: "a limit refuses beside a quota that is left", descriptors: []string{
			`{key: k, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 9}}`,
			`{key: l, rate_limit: {unit: minute, requests_per_unit: 0}}`}, steps: []step{
			{0, "d: k=a; l=a", "OVER_LIMIT: OK 9/MINUTE left 8 reset 60; OVER_LIMIT 0/MINUTE left 0 reset 60"}}},
		{name: "an exhausted quota beside a limit that passes", descriptors: []string{
			`{key: k, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 0}}`, `{key: l, rate_limit: {unit: minute, requests_per_unit: 9}}`},
			steps: []step{
				{0, "d: k=a; l=a", "OVER_LIMIT: OVER_LIMIT 0/MINUTE left 0 reset 60; OK 9/MINUTE left 8 reset 60"}}},

		// Unlimited and replaces.
		{name: "unlimited", descriptors: []string{`{key: k, rate_limit: {unlimited: true}}`}, steps: []step{
			{0, "d+4000: k=a", "OK: OK left 4294967295"}}},
		{name: "unlimited takes no part", descriptors: []string{
			`{key: k, rate_limit: {unlimited: true}}`, `{key: l, rate_limit: {unit: minute, requests_per_unit: 0}}`}, steps: []step{
			{0, "d: k=a; l=a", "OVER_LIMIT: OK left 4294967295; OVER_LIMIT 0/MINUTE left 0 reset 60"}}},
		{name: "a name is echoed",
			descriptors: []string{`{key: k, rate_limit: {unit: minute, requests_per_unit: 1, name: by-k}}`},
			steps: []step{
				{0, "d: k=a", "OK: OK by-k 1/MINUTE left 0 reset 60"}}},
		{name: "a replaced rule is not counted", descriptors: []string{
			`{key: k, rate_limit: {unit: minute, requests_per_unit: 1, name: old}}`,
			`{key: l, rate_limit: {unit: minute, requests_per_unit: 9, name: new, replaces: [{name: old}]}}`}, steps: []step{
			{0, "d: k=a; l=a", "OK: OK; OK new 9/MINUTE left 8 reset 60"},
			{0, "d: l=a; k=a", "OK: OK new 9/MINUTE left 7 reset 60; OK"},
			{0, "d: k=a", "OK: OK old 1/MINUTE left 0 reset 60"}}},
		{name: "an unlimited rule replaces", descriptors: []string{
			`{key: k, rate_limit: {unit: minute, requests_per_unit: 0, name: old}}`,
			`{key: l, rate_limit: {unlimited: true, replaces: [{name: old}]}}`}, steps: []step{
			{0, "d: k=a; l=a", "OK: OK; OK left 4294967295"}}},
		{name: "a replaced rule still replaces", descriptors: []string{
			`{key: a, rate_limit: {unit: minute, requests_per_unit: 1, name: a, replaces: [{name: b}]}}`,
			`{key: b, rate_limit: {unit: minute, requests_per_unit: 1, name: b, replaces: [{name: c}]}}`,
			`{key: c, rate_limit: {unit: minute, requests_per_unit: 1, name: c}}`}, steps: []step{
			{0, "d: a=1; b=1; c=1", "OK: OK a 1/MINUTE left 0 reset 60; OK; OK"}}},

		// Shared counters and metrics' keys.
		{name: "a wildcard counts each value apart", descriptors: []string{
			`{key: k, value: "a*", rate_limit: {unit: minute, requests_per_unit: 2}}`}, steps: []step{
			{0, "d: k=a1; k=a2", "OK: OK 2/MINUTE left 1 reset 60; OK 2/MINUTE left 1 reset 60"}}},
		{name: "share_threshold counts them together", descriptors: []string{
			`{key: k, value: "a*", share_threshold: true, rate_limit: {unit: minute, requests_per_unit: 2}}`}, steps: []step{
			{0, "d: k=a1; k=a2", "OK: OK 2/MINUTE left 1 reset 60; OK 2/MINUTE left 0 reset 60"},
			{0, "d: k=a3", "OVER_LIMIT: OVER_LIMIT 2/MINUTE left 0 reset 60"}}},
		{name: "value_to_metric and detailed_metric change no count", descriptors: []string{
			`{key: k, value_to_metric: true, rate_limit: {unit: minute, requests_per_unit: 1, name: n}}`,
			`{key: l, detailed_metric: true, rate_limit: {unit: minute, requests_per_unit: 1}}`}, steps: []step{
			{0, "d: k=a; l=a", "OK: OK n 1/MINUTE left 0 reset 60; OK 1/MINUTE left 0 reset 60"},
			{0, "d: k=b; l=b", "OK: OK n 1/MINUTE left 0 reset 60; OK 1/MINUTE left 0 reset 60"},
			{0, "d: k=a", "OVER_LIMIT: OVER_LIMIT n 1/MINUTE left 0 reset 60"}}},

		// Other algorithms in the Lyft form.
		{name: "a token bucket", descriptors: []string{
			`{key: k, rate_limit: {unit: minute, requests_per_unit: 4, algorithm: token_bucket}}`}, steps: []step{
			{0, "d+4: k=a", "OK: OK 4/MINUTE left 0 reset 60"},
			{0, "d: k=a", "OVER_LIMIT: OVER_LIMIT 4/MINUTE left 0 reset 15"},
			{15 * s, "d: k=a", "OK: OK 4/MINUTE left 0 reset 60"},
			{16 * s, "d+2: k=a", "OVER_LIMIT: OVER_LIMIT 4/MINUTE left 0 reset 29"}}},
		{name: "a sliding log", descriptors: []string{
			`{key: k, rate_limit: {unit: minute, requests_per_unit: 2, algorithm: sliding_log}}`}, steps: []step{
			{40 * s, "d: k=a", "OK: OK 2/MINUTE left 1 reset 60"},
			{50 * s, "d: k=a", "OK: OK 2/MINUTE left 0 reset 60"},
			{70 * s, "d: k=a", "OVER_LIMIT: OVER_LIMIT 2/MINUTE left 0 reset 30"},
			{100 * s, "d: k=a", "OK: OK 2/MINUTE left 0 reset 60"}}},
		{name: "a leaky bucket passes nothing that would have to wait", descriptors: []string{
			`{key: k, rate_limit: {unit: second, requests_per_unit: 1, algorithm: leaky_bucket}}`}, steps: []step{
			{0, "d: k=a", "OK: OK 1/SECOND left 1 reset 1"},
			{0, "d: k=a", "OVER_LIMIT: OVER_LIMIT 1/SECOND left 1 reset 1"},
			{1 * s, "d: k=a", "OK: OK 1/SECOND left 1 reset 1"}}},
		{name: "more than a bucket ever holds", descriptors: []string{
			`{key: k, rate_limit: {unit: minute, requests_per_unit: 4, algorithm: token_bucket}}`}, steps: []step{
			{0, "d+5: k=a", "OVER_LIMIT: OVER_LIMIT 4/MINUTE left 4 reset 60"}}},
		{name: "another algorithm does not count refused requests", descriptors: []string{
			`{key: k, rate_limit: {unit: minute, requests_per_unit: 4, algorithm: sliding_log}}`,
			`{key: l, rate_limit: {unit: minute, requests_per_unit: 0}}`}, steps: []step{
			{0, "d: k=a; l=a", "OVER_LIMIT: OK 4/MINUTE left 4 reset 0; OVER_LIMIT 0/MINUTE left 0 reset 60"},
			{0, "d: k=a", "OK: OK 4/MINUTE left 3 reset 60"}}},

		{name: "a window that the protocol has no unit for", descriptors: []string{
			`{key: k, rate_limit: {allow: 2/15m, algorithm: fixed_window}}`}, steps: []step{
			{10 * m, "d: k=a", "OK: OK 2/UNKNOWN left 1 reset 300"}}},
		{name: "a window of less than a second", descriptors: []string{
			`{key: k, rate_limit: {allow: 2/100ms, algorithm: fixed_window}}`}, steps: []step{
			{0, "d: k=a", "OK: OK 2/UNKNOWN left 1 reset 1"}}},
		{name: "as much as a descriptor can say",
			descriptors: []string{`{key: k, rate_limit: {unit: hour, requests_per_unit: 4294967295}}`}, steps: []step{
				{0, "d: k=a; x=a @4294967295/HOUR", "OK: OK 4294967295/HOUR left 4294967294 reset 3600; OK 4294967295/HOUR left 4294967294 reset 3600"},
				{0, "d+4294967294: k=a", "OK: OK 4294967295/HOUR left 0 reset 3600"},
				{0, "d: k=a", "OVER_LIMIT: OVER_LIMIT 4294967295/HOUR left 0 reset 3600"}}},
		{name: "more than a status can say", descriptors: []string{`{key: k, rate_limit: {allow: 9000000000/hour}}`},
			steps: []step{
				{0, "d+4294967295: k=a", "OK: OK 4294967295/HOUR left 4294967295 reset 3600"},
				{0, "d+4294967295: k=a", "OK: OK 4294967295/HOUR left 410065410 reset 3600"},
				{0, "d+4294967295: k=a", "OVER_LIMIT: OVER_LIMIT 4294967295/HOUR left 0 reset 3600"}}},
		{name: "more than another algorithm can count",
			descriptors: []string{`{key: k, rate_limit: {unit: hour, requests_per_unit: 4294967295, algorithm: sliding_window}}`}, steps: []step{
				{0, "d: k=a", "OK: OK 4294967295/HOUR left 4294967294 reset 7200"}}},
		{name: "other numbers for a named value, of which the tighter is told", descriptors: []string{
			`{key: k, rate_limit: {unit: minute, requests_per_unit: 1, override: {a: [3/min, 5/hour], b: unlimited}}}`}, steps: []step{
			{0, "d: k=x", "OK: OK 1/MINUTE left 0 reset 60"},
			{0, "d: k=b", "OK: OK left 4294967295"},
			{0, "d+3: k=a", "OK: OK 3/MINUTE left 0 reset 60"},
			{1 * m, "d+3: k=a", "OVER_LIMIT: OVER_LIMIT 5/HOUR left 0 reset 3540"}}},

		// Native limits at this door.
		{name: "a native limit refuses the whole", descriptors: []string{k2},
			limits: []string{`{name: n, per: [k], allow: 1/min, algorithm: fixed_window}`}, steps: []step{
				{0, "d: k=a", "OK: OK 2/MINUTE left 1 reset 60"},
				{0, "d: k=a", "OVER_LIMIT: OK 2/MINUTE left 0 reset 60"},
				{0, "d: k=b", "OK: OK 2/MINUTE left 1 reset 60"}}},
		{name: "a native limit sees all descriptors together",
			limits: []string{`{name: n, when: {a: "1", b: "2"}, allow: 1/min}`}, steps: []step{
				{0, "d: a=1; b=2", "OK: OK; OK"},
				{0, "d: a=1", "OK: OK"},
				{0, "d: b=2; a=1", "OVER_LIMIT: OK; OK"}}},
		{name: "the first value of a key holds there", limits: []string{`{name: n, when: {a: "1"}, allow: 0/min}`},
			steps: []step{
				{0, "d: a=2; a=1", "OK: OK; OK"},
				{0, "d: a=1; a=2", "OVER_LIMIT: OK; OK"}}},
		{name: "remote_address is the ip there", limits: []string{`{name: n, per: [ip], allow: 1/min}`}, steps: []step{
			{0, "d: remote_address=192.0.2.1", "OK: OK"},
			{0, "d: remote_address=192.0.2.1", "OVER_LIMIT: OK"},
			{0, "d: remote_address=192.0.2.2", "OK: OK"},
			{0, "d: ip=192.0.2.3 remote_address=192.0.2.1", "OK: OK"}}},
		{name: "a native limit is charged the request's hits, not a descriptor's", descriptors: []string{k2},
			limits: []string{`{name: n, allow: 5/min, algorithm: fixed_window}`}, steps: []step{
				{0, "d+3: k=a +0", "OK: OK 2/MINUTE left 2 reset 60"},
				{0, "d+3: k=a +0", "OVER_LIMIT: OK 2/MINUTE left 2 reset 60"},
				{0, "d+2: k=a +0", "OK: OK 2/MINUTE left 2 reset 60"}}},
		{name: "a native shadow refuses nothing", descriptors: []string{k2},
			limits: []string{`{name: n, allow: 0/min, on_limit: shadow}`}, steps: []step{
				{0, "d: k=a", "OK: OK 2/MINUTE left 1 reset 60"}}},
		{name: "a native exemption lifts all", descriptors: []string{k2}, more: "exempt: {k: [ada]}\n",
			limits: []string{`{name: n, allow: 0/min}`}, steps: []step{
				{0, "d+5: k=ada", "OK: OK"},
				{0, "d: k=bob", "OVER_LIMIT: OK 2/MINUTE left 1 reset 60"}}},
	}
}
