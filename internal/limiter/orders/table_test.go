package orders

import (
	"encoding/binary"
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// A table does what a map of entries with ends does. It is small, so that entries are evicted.
func TestTableAgainstMap(t *testing.T) {
	const most = 6
	type entry struct {
		until int64
		value int
	}
	rapid.Check(t, func(t *rapid.T) {
		var table table[int]
		table.init(most)
		model, now := map[string]entry{}, int64(0)
		id := func() (group uint64, key []byte, name string) {
			group = rapid.Uint64Range(1, 3).Draw(t, "group")
			key = []byte(rapid.StringN(0, 1, 4).Draw(t, "key"))
			return group, key, fmt.Sprint(group, string(key))
		}
		expire := func() {
			for name, e := range model {
				if e.until <= now {
					delete(model, name)
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"set": func(*rapid.T) {
				group, key, name := id()
				e := entry{now + rapid.Int64Range(1, 50).Draw(t, "for"), rapid.Int().Draw(t, "value")}
				table.each(now, func(uint64, []byte, int64, int) {}) // what is over makes no room
				for _, other := range model {
					if other.until == e.until {
						t.Skip("which of two goes first is open")
					}
				}
				table.set(group, key, e.until, e.value)
				if model[name] = e; len(model) > most {
					first := ""
					for name, e := range model {
						if first == "" || e.until < model[first].until {
							first = name
						}
					}
					delete(model, first)
				}
			},
			"drop": func(*rapid.T) {
				group, key, name := id()
				want, is := model[name]
				if got, ok := table.drop(group, key, now); ok != is || ok && got != want.value {
					t.Fatalf("dropped %v, %v; want %+v, %v", got, ok, want, is)
				}
				delete(model, name)
			},
			"find": func(*rapid.T) {
				group, key, name := id()
				want, is := model[name]
				got, until, ok := table.find(group, key, now)
				if ok != is || ok && (got != want.value || until != want.until) {
					t.Fatalf("%v until %d, %v; want %+v, %v", got, until, ok, want, is)
				}
			},
			"replace": func(*rapid.T) {
				group, key, name := id()
				e, is := model[name]
				replace(&table, group, key, e.value+1, 7) // another value: nothing changes
				replace(&table, group, key, e.value, e.value+1)
				if is {
					e.value++
					model[name] = e
				}
			},
			"wait": func(*rapid.T) {
				now += rapid.Int64Range(1, 30).Draw(t, "µs")
				expire()
			},
			"": func(t *rapid.T) {
				n := 0
				table.each(now, func(group uint64, key []byte, until int64, value int) {
					n++
					if e, is := model[fmt.Sprint(group, string(key))]; !is || e != (entry{until, value}) {
						t.Fatalf("%d %q holds %d until %d; want %+v, %v", group, key, value, until, e, is)
					}
				})
				if n != len(model) || table.len() != int64(n) {
					t.Fatalf("%d entries, %d counted; want %d", n, table.len(), len(model))
				}
			},
		})
	})
}

// BenchmarkTable: a lookup on the deciding path, of a key that is there and of one that is not, and
// an entry that is set and later dropped.
func BenchmarkTable(b *testing.B) {
	for _, n := range []int{100, 100_000} {
		var table table[*BanOrder]
		table.init(2 * n)
		keys := make([][]byte, n)
		for i := range keys {
			keys[i] = binary.BigEndian.AppendUint64(nil, uint64(i)*0x9E3779B97F4A7C15)
			table.set(1, keys[i], int64(1_000_000+i*7919%n), &BanOrder{})
		}
		b.Run(fmt.Sprintf("hit/%d", n), func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				if _, _, ok := table.find(1, keys[i%n], 1); !ok {
					b.Fatal("not found")
				}
			}
		})
		b.Run(fmt.Sprintf("miss/%d", n), func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				if _, _, ok := table.find(2, keys[i%n], 1); ok {
					b.Fatal("found")
				}
			}
		})
		b.Run(fmt.Sprintf("set and drop/%d", n), func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				table.set(3, keys[i%n], int64(1_000_000+i*7919%n), &BanOrder{})
				table.drop(3, keys[i%n], 1)
			}
		})
	}
}
