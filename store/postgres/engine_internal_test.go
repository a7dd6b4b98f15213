package postgres

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/pgtest"
	"github.com/weir-rl/weir/store/cas"
	"github.com/weir-rl/weir/store/storetest"
)

// engineAt opens an engine.
func engineAt(t testing.TB, url string) *engine {
	t.Helper()
	target, err := parseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	d, err := openDatabase(target, 8, 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	e := newEngine(d)
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// TestEngine: the contract of engines, in a schema of its own for each that a test asks for.
func TestEngine(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	for name, url := range map[string]string{
		"Direct":      s.URL(),
		"Session":     s.Bouncer("session").URL(),
		"Transaction": s.Bouncer("transaction").URL(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			storetest.Engine(t, func(t *testing.T) cas.Engine {
				return engineAt(t, url+"&weir_schema="+newSchema())
			})
		})
	}
}

var schemas atomic.Int64

// newSchema returns the name of a schema that no test has used.
func newSchema() string { return fmt.Sprint("weir_", schemas.Add(1)) }
