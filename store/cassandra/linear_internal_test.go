package cassandra

import (
	"fmt"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/weir-rl/weir/internal/testkit/cassandratest"
	"github.com/weir-rl/weir/internal/testkit/patience"
)

// unit is a key's limit as porcupine is to see it: how many units are used.
func unit(limit int64) porcupine.Model {
	return (&porcupine.NondeterministicModel{
		Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
			byKey := map[int][]porcupine.Operation{}
			for _, o := range history {
				k := o.Input.(taken).Key
				byKey[k] = append(byKey[k], o)
			}
			parts := make([][]porcupine.Operation, 0, len(byKey))
			for _, part := range byKey {
				parts = append(parts, part)
			}
			return parts
		},
		Init: func() []any { return []any{int64(0)} },
		Step: func(state, input, _ any) []any {
			used, one := state.(int64), input.(taken)
			fits := used+one.Cost <= limit
			switch {
			case one.Unknown && fits:
				return []any{used, used + one.Cost}
			case one.Unknown:
				return []any{used}
			case one.Cost == 0: // who looks is always let through
				if one.Remaining != limit-used {
					return nil
				}
				return []any{used}
			case one.Allowed:
				if !fits || one.Remaining != limit-used-one.Cost {
					return nil
				}
				return []any{used + one.Cost}
			case fits || one.Remaining != limit-used:
				return nil
			}
			return []any{used}
		},
		Equal:             func(a, b any) bool { return a == b },
		DescribeOperation: func(input, _ any) string { return fmt.Sprintf("%+v", input) },
	}).ToModel()
}

// TestLinearizable: there is an order of all calls of three processes, each between its call and
// its return, in which a plain counter gives the same answers: while Cassandra is well, hangs for
// longer than calls wait, is killed, and comes back. A call of which nothing is known may have been
// charged at any time since, or never.
func TestLinearizable(t *testing.T) {
	const limit = 1000
	server := cassandratest.Shared(t)
	f := startFleet(t, 3, job{
		URL: server.URL(server.Keyspace()), Timeout: 500 * time.Millisecond, Limit: limit, Keys: 12, Clients: 8,
	})
	// For how long each of it lasts decides nothing.
	time.Sleep(time.Second)
	server.Pause()
	time.Sleep(1500 * time.Millisecond) // most calls give up meanwhile
	server.Resume()
	time.Sleep(time.Second)
	server.Kill()
	cassandratest.Shared(t)
	time.Sleep(time.Second)
	checkLinearizable(t, f.end(), limit)
}

// checkLinearizable checks what processes did on limits.
func checkLinearizable(t *testing.T, all []taken, limit int64) {
	t.Helper()
	var history []porcupine.Operation
	counts := map[string]int{}
	end := int64(0)
	for _, one := range all {
		end = max(end, int64(one.Returned))
	}
	for i, one := range all {
		switch {
		case one.Err == "" && one.Allowed:
			counts["admitted"]++
		case one.Err == "":
			counts["refused"]++
		case one.Unknown:
			counts["unknown"]++
		default:
			counts["not charged"]++
			continue // it was never there
		}
		o := porcupine.Operation{ClientId: i, Input: one, Call: int64(one.Called), Return: int64(one.Returned)}
		if one.Unknown {
			o.Return = end + 1
		}
		history = append(history, o)
	}
	t.Logf("%d calls: %v", len(all), counts)
	if counts["admitted"] == 0 || counts["not charged"] == 0 {
		t.Errorf("the run shows little: %v", counts)
	}
	switch result, _ := porcupine.CheckOperationsVerbose(unit(limit), history, patience.Left(t)); result {
	case porcupine.Illegal:
		t.Error("no order of the calls gives these answers")
	case porcupine.Unknown:
		t.Error("whether there is an order could not be found out in time")
	}
}
