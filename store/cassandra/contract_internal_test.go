package cassandra

import (
	"bytes"
	"context"
	"encoding/binary"
	"flag"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/cassandratest"
	"github.com/weir-rl/weir/internal/testkit/castest"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/cas"
	"github.com/weir-rl/weir/store/storetest"
)

// apart is a part of an engine that looks like an empty one: to make a keyspace for each of many
// tests takes longer than the tests.
type apart struct {
	cas.Engine
	salt uint64
}

func newApart(e cas.Engine) cas.Engine { return apart{e, rand.Uint64()} }

// Close leaves the engine to others.
func (apart) Close() error { return nil }

func (a apart) key(k cas.Key) cas.Key {
	return cas.Key{Place: k.Place ^ a.salt, Name: append(binary.BigEndian.AppendUint64(nil, a.salt), k.Name...)}
}

func (a apart) Read(ctx context.Context, keys []cas.Key) ([]cas.Value, int64, error) {
	own := make([]cas.Key, len(keys))
	for i := range keys {
		own[i] = a.key(keys[i])
	}
	return a.Engine.Read(ctx, own)
}

func (a apart) Swap(ctx context.Context, now int64, groups []cas.Group) (int64, error) {
	own := make([]cas.Group, len(groups))
	for i := range groups {
		for _, c := range groups[i].Changes {
			c.Key = a.key(c.Key)
			own[i].Changes = append(own[i].Changes, c)
		}
	}
	clock, err := a.Engine.Swap(ctx, now, own)
	for i := range groups {
		groups[i].Done, groups[i].Values, groups[i].Err = own[i].Done, own[i].Values, own[i].Err
	}
	return clock, err
}

func (a apart) Scan(
	ctx context.Context, from string, limit int, visit func(name []byte, v cas.Value),
) (string, int, error) {
	salt := binary.BigEndian.AppendUint64(nil, a.salt)
	return a.Engine.Scan(ctx, from, limit, func(name []byte, v cas.Value) {
		if own, ok := bytes.CutPrefix(name, salt); ok {
			visit(own, v)
		}
	})
}

// newStore opens a store over an engine that others may use too.
func newStore(t testing.TB, e cas.Engine, clock func() int64) *cas.Store {
	t.Helper()
	s, err := cas.New(e, cas.Options{Timeout: patient, Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// fewer has the suite make the calls of a quick run: fewer than where one takes a few µs.
func fewer(t *testing.T) {
	t.Helper()
	t.Setenv("WEIR_TEST", "quick")
	checks := flag.Lookup("rapid.checks")
	before := checks.Value.String()
	if err := checks.Value.Set("5"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = checks.Value.Set(before) })
}

// TestContract: the store keeps the whole contract. Several keys are decided exactly together where
// they lie in one partition, as a subject's keys do; here all do.
func TestContract(t *testing.T) {
	server := cassandratest.Shared(t)
	fewer(t)
	e := openEngine(t, Options{URL: server.URL(server.Keyspace())})
	scanned := openEngine(t, Options{URL: server.URL(server.Keyspace())}) // what walks through all
	storetest.Run(t, func(t *testing.T, clock func() int64) store.Store {
		of := e
		if strings.Contains(t.Name(), "Inspect") {
			of = scanned
		}
		return newStore(t, castest.Together(newApart(of)), clock)
	})
}

// TestDifferential: decisions equal a plain model's, step by step; each takes some ms.
func TestDifferential(t *testing.T) {
	server := cassandratest.Shared(t)
	e := openEngine(t, Options{URL: server.URL(server.Keyspace())})
	storetest.Differential(t, func(t *testing.T, clock func() int64) store.Store {
		return newStore(t, castest.Together(newApart(e)), clock)
	}, 300, 0)
}
