package resp

import (
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/weir-rl/weir/internal/util/chars"
)

// spokenVersion is the version of Redis whose protocol is spoken, for clients that look at it.
const spokenVersion = "7.2.0"

// info answers INFO [section …]. Its first lines are those by which clients identify the server,
// and learn whether it is ready.
func (c *conn) info(args [][]byte) error {
	wanted := map[string]bool{}
	for _, a := range args {
		wanted[strings.ToLower(shown(a))] = true
	}
	if wanted["all"] || wanted["default"] || wanted["everything"] {
		clear(wanted)
	}
	st := c.Stats()
	sections := []struct {
		name   string
		fields []string
	}{
		{"Server", []string{"redis_version:" + spokenVersion, "redis_mode:standalone", "server_name:weir",
			"weir_version:" + c.o.Version,
			"process_id:" + strconv.Itoa(os.Getpid()),
			"uptime_in_seconds:" + strconv.FormatInt(int64(time.Since(c.begun)/time.Second), 10)}},
		{"Clients", []string{"connected_clients:" + strconv.Itoa(st.Connections)}},
		{"Memory", []string{"mem_clients_normal:" + strconv.FormatInt(st.Memory, 10)}},
		{"Persistence", []string{"loading:0"}},
		{"Stats", []string{"total_connections_received:" + strconv.FormatUint(st.Accepted, 10),
			"total_commands_processed:" + strconv.FormatUint(c.processed(&st), 10)}},
		{"Replication", []string{"role:master", "connected_slaves:0"}},
		{"Cluster", []string{"cluster_enabled:0"}},
		{"Keyspace", nil},
	}
	var b strings.Builder
	for _, s := range sections {
		if len(wanted) > 0 && !wanted[strings.ToLower(s.name)] {
			continue
		}
		if b.Len() > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString("# " + s.name + "\r\n")
		for _, f := range s.fields {
			b.WriteString(f + "\r\n")
		}
	}
	c.out = appendBulk(c.out, b.String())
	return nil
}

// processed counts all commands, this connection's last ones included.
func (c *conn) processed(st *Stats) uint64 {
	n := st.Other + c.commands
	for _, d := range st.Decisions {
		n += d.N
	}
	return n
}

// config answers CONFIG GET, which some clients and redis-benchmark ask before they begin.
func (c *conn) config(args [][]byte) error {
	switch sub := strings.ToUpper(shown(args[0])); {
	case sub != "GET":
		c.error("ERR only CONFIG GET is there: Weir is configured by weir.yaml, its environment and its flags")
		return nil
	case len(args) == 1:
		c.error("ERR wrong number of arguments for 'config|get' command")
		return nil
	}
	settings := []struct{ name, value string }{
		{"appendonly", "no"}, {"databases", "1"}, {"maxmemory", strconv.FormatInt(c.o.MaxMemory, 10)}, {"save", ""},
		{"slave-read-only", "no"}, {"timeout", strconv.FormatInt(int64(idle/time.Second), 10)},
	}
	found := settings[:0:0]
	for _, s := range settings {
		for _, pattern := range args[1:] {
			if ok, _ := path.Match(strings.ToLower(shown(pattern)), s.name); ok {
				found = append(found, s)
				break
			}
		}
	}
	c.out = appendMap(c.out, c.resp3, len(found))
	for _, s := range found {
		c.out = appendBulk(appendBulk(c.out, s.name), s.value)
	}
	return nil
}

// commandCommand answers COMMAND [COUNT | LIST | INFO [name …] | DOCS [name …] | GETKEYS
// command arg …].
func (c *conn) commandCommand(args [][]byte) error {
	sub := ""
	if len(args) > 0 {
		sub, args = strings.ToUpper(shown(args[0])), args[1:]
	}
	switch sub {
	case "":
		c.appendInfos(nil)
	case "INFO":
		c.appendInfos(args)
	case "COUNT":
		c.out = appendInt(c.out, int64(len(specs)))
	case "LIST":
		c.out = appendArray(c.out, len(specs))
		for i := range specs {
			c.out = appendBulk(c.out, specs[i].name)
		}
	case "DOCS":
		c.appendDocs(args)
	case "GETKEYS":
		if len(args) > 0 {
			if s := lookUp(args[0]); s != nil && s.key > 0 && len(args) > s.key {
				c.out = appendBulk(appendArray(c.out, 1), chars.View(args[s.key]))
				return nil
			}
		}
		c.error("ERR The command has no key arguments")
	default:
		c.error("ERR unknown subcommand '" + sub + "' of COMMAND; there are COUNT, LIST, INFO, DOCS and GETKEYS")
	}
	return nil
}

// appendInfos describes the named commands, or all of them if none is named.
func (c *conn) appendInfos(names [][]byte) {
	list := make([]*spec, 0, max(len(names), len(specs)))
	for _, name := range names {
		list = append(list, lookUp(name))
	}
	for i := range specs {
		if len(names) == 0 {
			list = append(list, &specs[i])
		}
	}
	c.out = appendArray(c.out, len(list))
	for _, s := range list {
		if s == nil {
			c.out = appendNull(c.out, c.resp3)
			continue
		}
		c.out = appendBulk(appendArray(c.out, 10), s.name)
		c.out = appendInt(c.out, int64(s.arity))
		c.out = appendArray(c.out, len(s.flags))
		for _, flag := range s.flags {
			c.out = appendSimple(c.out, flag)
		}
		for _, place := range [...]int{s.key, s.key, min(s.key, 1)} { // first key, last key, step
			c.out = appendInt(c.out, int64(place))
		}
		for range 4 { // categories, tips, key specifications, subcommands
			c.out = appendArray(c.out, 0)
		}
	}
}

func (c *conn) appendDocs(names [][]byte) {
	var list []*spec
	for i := range specs {
		if len(names) == 0 {
			list = append(list, &specs[i])
		}
	}
	for _, name := range names {
		if s := lookUp(name); s != nil {
			list = append(list, s)
		}
	}
	c.out = appendMap(c.out, c.resp3, len(list))
	for _, s := range list {
		c.out = appendMap(appendBulk(c.out, s.name), c.resp3, 2)
		c.out = appendBulk(appendBulk(c.out, "summary"), s.summary)
		c.out = appendBulk(appendBulk(c.out, "group"), s.group)
	}
}
