package gather

import (
	"context"
	"encoding/binary"
	"testing"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store/memory"
)

// BenchmarkDecide is a decision with and without the hook, admitted and refused, of one hot key and
// of a million. docs/operating/capacity.md has its figures.
func BenchmarkDecide(b *testing.B) {
	for _, keys := range []struct {
		name string
		n    uint64
	}{{"hot", 1}, {"million", 1 << 20}} {
		for _, outcome := range []struct{ name, rules string }{
			{"admitted", "domain: shop\nlimits: [{name: a, per: [user], when: {path: /api/**}, allow: {rate: 1000000/s, burst: 1000000000}, algorithm: token_bucket}]"},
			{"refused", "domain: shop\nlimits: [{name: a, per: [user], when: {path: /api/**}, allow: 1/day}]"},
		} {
			for _, with := range []bool{false, true} {
				name := keys.name + "/" + outcome.name + "/without"
				if with {
					name = keys.name + "/" + outcome.name + "/with"
				}
				b.Run(name, func(b *testing.B) { benchmarkDecide(b, keys.n, outcome.rules, with) })
			}
		}
	}
}

func benchmarkDecide(b *testing.B, keys uint64, rules string, with bool) {
	l := gathered(b, load(b, rules), with)
	b.ReportAllocs()
	b.RunParallel(func(p *testing.PB) {
		var d weir.Decision
		user := make([]byte, 16)
		attributes := rule.Pairs{{Name: "path", Value: "/api/x"}, {Name: "user", Value: ""}}
		names := make([]string, min(keys, 1<<16))
		for i := range names {
			binary.BigEndian.PutUint64(user, hashKey(7, binary.BigEndian.AppendUint64(nil, uint64(i)))%keys)
			names[i] = "user-" + string(hex(user[:8]))
		}
		r := weir.Request{Domain: "shop", Attributes: &attributes}
		for i := 0; p.Next(); i++ {
			attributes[1].Value = names[i&(len(names)-1)]
			if err := l.Decide(b.Context(), &r, &d); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// gathered returns a limiter, with a collector behind it that runs or without one.
func gathered(b *testing.B, rules *rule.Set, with bool) *weir.Limiter {
	store, err := memory.New(memory.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = store.Close() })
	options := []weir.Option{weir.WithRules(rules)}
	if with {
		c := New(Options{Known: []string{"user"}})
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { c.Run(ctx); close(done) }()
		b.Cleanup(func() { cancel(); <-done })
		options = append(options, weir.WithHooks(c.Hooks()))
	}
	l, err := weir.New(store, options...)
	if err != nil {
		b.Fatal(err)
	}
	return l
}

func hex(b []byte) []byte {
	const digits = "0123456789abcdef"
	out := make([]byte, 0, 2*len(b))
	for _, c := range b {
		out = append(out, digits[c>>4], digits[c&15])
	}
	return out
}
