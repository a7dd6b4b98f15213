package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-rl/weir/store/cas"
)

// Database is a reading of a store in a database.
type Database struct {
	cas.Stats
	Nodes int    // alive; 0 if that is not known
	Swept uint64 // expired states that this node has deleted
}

var (
	descDatabaseCalls      = prometheus.NewDesc("weir_database_calls_total", "Round trips to the database that charged or read keys.", nil, nil)
	descDatabaseFailures   = prometheus.NewDesc("weir_database_failures_total", "Round trips that failed, or whose outcome is not known.", nil, nil)
	descDatabaseDecisions  = prometheus.NewDesc("weir_database_decisions_total", "Decisions that were written to the database, or compared with it.", nil, nil)
	descDatabaseGroups     = prometheus.NewDesc("weir_database_groups_total", "Tries to make decisions that share keys, each in one write.", nil, nil)
	descDatabaseConflicts  = prometheus.NewDesc("weir_database_conflicts_total", "Tries of weir_database_groups_total that found another node quicker.", nil, nil)
	descDatabaseUnknown    = prometheus.NewDesc("weir_database_unknown_values_total", "Tries of weir_database_groups_total that found a value which this node did not know of.", nil, nil)
	descDatabaseLocks      = prometheus.NewDesc("weir_database_locks_total", "Tries of weir_database_groups_total under a lock, since other nodes had been quicker again and again.", nil, nil)
	descDatabaseLost       = prometheus.NewDesc("weir_database_lost_decisions_total", "Decisions whose answer was lost, by what was learned of them: made, or unknown.", []string{"outcome"}, nil)
	descDatabaseGivenBack  = prometheus.NewDesc("weir_database_given_back_total", "Charges that were given back, since a limit at another place refused.", nil, nil)
	descDatabaseDamaged    = prometheus.NewDesc("weir_database_damaged_states_total", "States that could not be read, and counted as fresh.", nil, nil)
	descDatabaseRemembered = prometheus.NewDesc("weir_database_remembered_refusals_total", "Refusals that this node answered from memory, without asking the database.", nil, nil)
	descDatabaseSwept      = prometheus.NewDesc("weir_database_swept_states_total", "Expired states that this node has deleted.", nil, nil)
	descDatabaseNodes      = prometheus.NewDesc("weir_database_nodes", "Nodes alive, this one included, as the database last said; 0 if that is not known.", nil, nil)
)

var descsDatabase = []*prometheus.Desc{
	descDatabaseCalls, descDatabaseFailures, descDatabaseDecisions, descDatabaseGroups, descDatabaseConflicts, descDatabaseUnknown,
	descDatabaseLocks, descDatabaseLost, descDatabaseGivenBack, descDatabaseDamaged, descDatabaseRemembered, descDatabaseSwept,
	descDatabaseNodes,
}

// collectDatabase sends a reading of a database as metrics.
func collectDatabase(ch chan<- prometheus.Metric, d *Database) {
	counter := counterTo(ch)
	counter(descDatabaseCalls, d.Calls)
	counter(descDatabaseFailures, d.Failures)
	counter(descDatabaseDecisions, d.Decisions)
	counter(descDatabaseGroups, d.Groups)
	counter(descDatabaseConflicts, d.Conflicts)
	counter(descDatabaseUnknown, d.Unknown)
	counter(descDatabaseLocks, d.Locks)
	counter(descDatabaseLost, d.Learned, "made")
	counter(descDatabaseLost, d.Lost, "unknown")
	counter(descDatabaseGivenBack, d.GivenBack)
	counter(descDatabaseDamaged, d.Damaged)
	counter(descDatabaseRemembered, d.Remembered)
	counter(descDatabaseSwept, d.Swept)
	gaugeTo(ch)(descDatabaseNodes, float64(d.Nodes))
}
