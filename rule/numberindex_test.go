package rule

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-rl/weir/rule/internal/asked"
)

// The index finds what a look at each range finds, whether they lie apart, overlap, lie in each
// other, are empty, or reach to the ends of the axis.
func TestNumberIndexAgainstLinear(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		wide := int64(rapid.SampledFrom([]int{3, 40, 1000}).Draw(rt, "wide"))
		point := rapid.Custom(func(t *rapid.T) int64 {
			if rapid.IntRange(0, 19).Draw(t, "end") == 0 {
				return rapid.SampledFrom([]int64{math.MinInt64, math.MaxInt64}).Draw(t, "which")
			}
			return rapid.Int64Range(-wide, wide).Draw(t, "point")
		})
		x := numberIndex{of: asked.Int}
		var all []asked.Range
		for id := range rapid.IntRange(0, 200).Draw(rt, "ranges") {
			r := asked.Range{Of: asked.Int, Least: point.Draw(rt, "least"), Most: point.Draw(rt, "most")}
			if rapid.IntRange(0, 9).Draw(rt, "empty") > 0 && r.Empty() {
				r.Least, r.Most = r.Most, r.Least
			}
			all = append(all, r)
			x.add(&r, int32(id))
		}
		x.finish()
		var c crowds
		for i := range all {
			c.add(3, &all[i])
		}
		c.finish()
		for i := range 20 {
			at := point.Draw(rt, "at")
			var want []int32
			for id, r := range all {
				if r.Least <= at && at <= r.Most {
					want = append(want, int32(id))
				}
			}
			got := x.appendIDs(nil, fmt.Sprint(at))
			slices.Sort(got)
			if !slices.Equal(got, want) {
				rt.Fatalf("%d is in %v of %v, found are %v", at, want, all, got)
			}
			if i < len(all) {
				meet := 0
				for _, r := range all {
					if both := r.And(all[i]); !both.Empty() && !r.Empty() {
						meet++
					}
				}
				if got := c.in(3, &all[i]); got != meet {
					rt.Fatalf("%v meets %d of %v, not %d", all[i], meet, all, got)
				}
			}
		}
	})
}

// A look-up in ranges that lie in each other takes no more steps than one in ranges that lie apart,
// except for those that it finds.
func TestNumberIndexIsBounded(t *testing.T) {
	const n = 4096
	x := numberIndex{of: asked.Int}
	for i := range int64(n) {
		x.add(&asked.Range{Of: asked.Int, Least: -i, Most: i}, int32(i))
	}
	x.finish()
	if got := x.appendIDs(nil, fmt.Sprint(n-2)); !slices.Equal(got, []int32{n - 1, n - 2}) {
		t.Errorf("found %v", got)
	}
	for i := range x.spans {
		x.spans[i].most = math.MaxInt64 // each that is looked at is found now
	}
	if got := appendHolding(nil, x.spans, n-2); len(got) > 2*12 {
		t.Errorf("looked at %d ranges, a tree of 4096 is twelve deep", len(got))
	}
}

// What the index takes a comparison for is what CEL makes of it.
func FuzzNumberRange(f *testing.F) {
	for i, text := range []string{
		"5", "-0", "+7", "007", "", " 5", "5_0", "0x10", "9223372036854775807", "-9223372036854775808",
		"9223372036854775808", "18446744073709551615", "nan", "inf", "-Inf", "1e3", "1e999", "4.9e-324", "é\xff",
	} {
		f.Add(text, uint8(i), int64(5), 0.5)
		f.Add(text, uint8(i*7), int64(math.MinInt64), math.Copysign(0, -1))
		f.Add(text, uint8(i*5), int64(math.MaxInt64), math.MaxFloat64)
	}
	operators := []string{"<", "<=", ">", ">=", "==", "in"}
	f.Fuzz(func(t *testing.T, text string, form uint8, i int64, d float64) {
		literal := fmt.Sprint(i)
		function := []string{"int", "uint", "double", "size"}[form%4]
		switch function {
		case "uint":
			literal = fmt.Sprintf("%du", uint64(i))
		case "double":
			if math.IsNaN(d) || math.IsInf(d, 0) {
				return
			}
			literal = fmt.Sprintf("%.1074f", d) // CEL has no %g of whole numbers
		}
		operator := operators[form/4%6]
		if operator == "in" {
			literal = "[" + literal + "]"
		}
		source := fmt.Sprintf("%s(attr.n) %s %s", function, operator, literal)
		p, err := CompileIf(source)
		if err != nil || text == "" {
			return
		}
		list, all := p.(asker).Asks(false)
		if len(list) != 1 || !all {
			t.Fatalf("%s asks %v", source, list)
		}
		r := list[0].OneOf[0].Ranges[0]
		key, ok := r.Of.Key(text)
		want, failed := ok && r.Least <= key && key <= r.Most, 0
		if !ok {
			failed = 1
		}
		rule := testRule(t, "r")
		rule.If, rule.Exprs = source, &Exprs{If: p}
		m := matchMap(linear(testSet(t, &File{Rules: []*Rule{rule}})), Map{"n": text})
		if got := len(m.Hits) == 1; got != want || m.CELErrors != failed {
			t.Fatalf("%s of %q holds %v, with %d failed; its range %v says %v, and %d", source, text, got, m.CELErrors,
				r, want, failed)
		}
	})
}
