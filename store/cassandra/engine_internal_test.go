package cassandra

import (
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/cassandratest"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/store/cas"
	"github.com/weir-rl/weir/store/storetest"
)

// patient is longer than any call takes, also on a busy machine.
const patient = 10 * time.Minute

// openEngine opens an engine that is connected. A machine that is slow must not make a call fail.
func openEngine(t testing.TB, o Options) *engine {
	t.Helper()
	if o.Timeout == 0 {
		o.Timeout = patient
	}
	target, err := o.complete()
	if err != nil {
		t.Fatal(err)
	}
	e := newEngine(o, target)
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	patience.Until(t, "Cassandra is connected", func() bool { return e.connection.Load() != nil })
	return e
}

func TestEngine(t *testing.T) {
	server := cassandratest.Shared(t)
	storetest.Engine(t, func(t *testing.T) cas.Engine {
		return openEngine(t, Options{URL: server.URL(server.Keyspace())})
	})
}
