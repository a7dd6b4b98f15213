package metrics

import "github.com/weir-rl/weir/store/cas"

// Database is a reading of a store in a database.
type Database struct {
	cas.Stats
	Nodes int    // alive; 0 if that is not known
	Swept uint64 // expired states that this node has deleted
}

var databaseRows = []row[Database]{
	counter("weir_database_calls_total", "Round trips to the database that charged or read keys.",
		func(d Database) uint64 { return d.Calls }),
	counter("weir_database_failures_total", "Round trips that failed, or whose outcome is not known.",
		func(d Database) uint64 { return d.Failures }),
	counter("weir_database_decisions_total", "Decisions that were written to the database, or compared with it.",
		func(d Database) uint64 { return d.Decisions }),
	counter("weir_database_groups_total", "Tries to make decisions that share keys, each in one write.",
		func(d Database) uint64 { return d.Groups }),
	counter("weir_database_conflicts_total", "Tries of weir_database_groups_total that found another node quicker.",
		func(d Database) uint64 { return d.Conflicts }),
	counter("weir_database_unknown_values_total",
		"Tries of weir_database_groups_total that found a value which this node did not know of.",
		func(d Database) uint64 { return d.Unknown }),
	counter("weir_database_locks_total",
		"Tries of weir_database_groups_total under a lock, since other nodes had been quicker again and again.",
		func(d Database) uint64 { return d.Locks }),
	counters("weir_database_lost_decisions_total", "outcome",
		"Decisions whose answer was lost, by their outcome as far as it is known: made, or unknown.",
		func(d Database, n count) {
			n(d.Learned, "made")
			n(d.Lost, "unknown")
		}),
	counter("weir_database_given_back_total", "Charges that were given back, since a limit at another place refused.",
		func(d Database) uint64 { return d.GivenBack }),
	counter("weir_database_damaged_states_total", "States that could not be read, and counted as fresh.",
		func(d Database) uint64 { return d.Damaged }),
	counter("weir_database_remembered_refusals_total",
		"Refusals that this node answered from memory, without asking the database.",
		func(d Database) uint64 { return d.Remembered }),
	counter("weir_database_swept_states_total", "Expired states that this node has deleted.",
		func(d Database) uint64 { return d.Swept }),
	gauge("weir_database_nodes", "Nodes alive, this one included, as the database last said; 0 if that is not known.",
		func(d Database) int { return d.Nodes }),
}
