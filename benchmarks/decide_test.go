package benchmarks

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"testing"
	"time"
)

// makes is what c makes, until the test or benchmark ends.
func (c Contestant) makes(b testing.TB, l Limit, keys int) func() Decider {
	deciders, closed, err := c.Make(l, keys)
	return lasts(b, deciders, closed, err)
}

// limiterOf is a whole limiter with these rules, asked by user.
func limiterOf(b testing.TB, rules string) func() Decider {
	deciders, closed, err := MakeLimiter(0, rules)
	return lasts(b, deciders, closed, err)
}

func lasts(b testing.TB, deciders func() Decider, closed func() error, err error) func() Decider {
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := closed(); err != nil {
			b.Error(err)
		}
	})
	return deciders
}

const keyLength = 16

// randomKeys returns n keys, one after the other.
func randomKeys(n int) []byte {
	keys := make([]byte, n*keyLength)
	rand.NewChaCha8([32]byte{}).Read(keys)
	return keys
}

// TestContestants holds all of them to the same limit, so that the benchmarks compare like with
// like.
func TestContestants(t *testing.T) {
	keys := randomKeys(3)
	for _, c := range Contestants {
		decide := c.makes(t, Limit{5, time.Hour}, 3)()
		for k := range 3 {
			for i := range 7 {
				if ok := decide(keys[k*keyLength:][:keyLength]); ok != (i < 5) {
					t.Errorf("%s: request %d of key %d: %v", c.Name, i, k, ok)
				}
			}
		}
	}
}

// BenchmarkHot asks for one key all the time. All is admitted.
func BenchmarkHot(b *testing.B) {
	key := randomKeys(1)
	for _, c := range Contestants {
		b.Run(c.Name, func(b *testing.B) {
			deciders := c.makes(b, Limit{100_000_000, time.Second}, 1)
			deciders()(key)
			b.ReportAllocs()
			b.ResetTimer()
			defer reportCPU(b, cpuTime())
			b.RunParallel(func(pb *testing.PB) {
				decide := deciders()
				for pb.Next() {
					if !decide(key) {
						b.Error("refused")
						return
					}
				}
			})
		})
	}
}

// BenchmarkMillion asks for a random one of a million keys that are all there.
func BenchmarkMillion(b *testing.B) {
	const n = 1_000_000
	keys := randomKeys(n)
	pick := func(r uint64) []byte {
		i, _ := bits.Mul64(r, n)
		return keys[i*keyLength:][:keyLength]
	}
	b.Run("nothing", func(b *testing.B) { // choosing and reading the key alone
		defer reportCPU(b, cpuTime())
		b.RunParallel(func(pb *testing.PB) {
			r, sum := rand.Uint64(), byte(0)
			for pb.Next() {
				r = r*6364136223846793005 + 1442695040888963407
				sum += pick(r)[0]
			}
			sink.Add(uint64(sum))
		})
	})
	for _, c := range Contestants {
		b.Run(c.Name, func(b *testing.B) {
			deciders := filled(b, c, keys)
			b.ReportAllocs()
			b.ResetTimer()
			defer reportCPU(b, cpuTime())
			b.RunParallel(func(pb *testing.PB) {
				decide, r := deciders(), rand.Uint64()
				for pb.Next() {
					r = r*6364136223846793005 + 1442695040888963407
					decide(pick(r))
				}
			})
		})
	}
}

// BenchmarkLimits asks for one key that meets 1 to 50 limits, each of a rule of its own, and for
// 10,000 keys in turn; for two limits of one rule; and for two limits on two keys. All is admitted.
func BenchmarkLimits(b *testing.B) {
	const many = 10_000
	all := randomKeys(many)
	one := func(i int, per, allow string) string {
		return fmt.Sprintf("  - { name: limit-%d, when: { path: /api/** }, per: [%s], allow: %s }\n", i, per, allow)
	}
	hourly := func(i int) string { return fmt.Sprintf("%d/h", 1_000_000_000-i) }
	ask := func(name, rules string, keys int) {
		b.Run(name, func(b *testing.B) {
			decide := limiterOf(b, "limits:\n"+rules)()
			key := func(i int) []byte { return all[i%keys*keyLength:][:keyLength] }
			for i := range keys {
				decide(key(i))
			}
			b.ReportAllocs()
			b.ResetTimer()
			defer reportCPU(b, cpuTime())
			for i := range b.N {
				if !decide(key(i)) {
					b.Fatal("refused")
				}
			}
		})
	}
	rules := ""
	for i := range 50 {
		rules += one(i, "user", hourly(i))
		switch n := i + 1; n {
		case 1, 2, 3, 5, 8, 10, 20, 50:
			ask(fmt.Sprint(n), rules, 1)
			ask(fmt.Sprintf("%d-of-%d-keys", n, many), rules, many)
		}
	}
	ask("2-of-one-rule", one(0, "user", "[1000000000/h, 1000000000/d]"), 1)
	ask("2-on-two-keys", one(0, "user", hourly(0))+one(1, "method", hourly(1)), 1)
}
