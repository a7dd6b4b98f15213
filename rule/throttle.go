package rule

// SignalName reports whether name can be the name of a signal: 1 to 100 lower-case letters, digits,
// _, . and -. It is for programs that receive signals or read their names.
func SignalName(name string) bool { return isName(name, 100, "_.-", false) }

// Signals are the names of the signals that a server knows of itself; others are pushed to it.
var Signals = []string{"cpu", "memory", "pressure", "in_flight", "upstream_latency"}
