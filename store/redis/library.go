package redis

import (
	"context"
	"crypto/sha1"
	_ "embed"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/cespare/xxhash/v2"
	"github.com/redis/rueidis"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// The functions that decide inside Redis. On Redis 7 and newer they are a library (FUNCTION LOAD),
// whose variables are a memory of calls (memory.lua). On Redis 6 the same text is a script
// (EVALSHA) with its memory in keys (kept.lua). The name of a library holds a hash of its text, so
// that nodes of different builds each have their own, and none ever runs another's code.

//go:embed weir.lua
var weirText string

//go:embed bare.lua
var bareText string

//go:embed lease.lua
var leaseText string

//go:embed regions.lua
var regionsText string

//go:embed memory.lua
var memoryText string

//go:embed kept.lua
var keptText string

// libraryText returns the text of the library; memory is its memory.
func libraryText(memory string) string {
	return strings.Replace(weirText, "\nMEMORY\n", "\n"+memory, 1) + bareText + leaseText + regionsText
}

// scriptHead and scriptTail make a script of a library's text. ARGV: the name of the function, the
// beginning of the keys of its memory, and the function's own arguments.
const (
	scriptHead = `if redis.replicate_commands then redis.replicate_commands() end
local base, registered = ARGV[2], {}
local function register(name, f) registered[name] = f end
`
	scriptTail = `
local args = {}
for i = 3, #ARGV do args[i - 2] = ARGV[i] end
return registered[ARGV[1]](KEYS, args)
`
)

// library is code for a server, as functions and as a script.
type library struct {
	name, functions, script string
	sha                     string // of the script
}

// newLibrary returns a library whose name begins with a word. functions and script are its text.
func newLibrary(word, functions, script string) *library {
	name := fmt.Sprintf("%s_%08x", word, uint32(xxhash.Sum64String(functions+script)))
	script = scriptHead + strings.ReplaceAll(script, "redis.register_function(", "register(") + scriptTail
	l := &library{
		name:      name,
		functions: "#!lua name=" + name + "\n" + strings.ReplaceAll(functions, "NAME", name),
		script:    strings.ReplaceAll(script, "NAME", name),
	}
	l.sha = fmt.Sprintf("%x", sha1.Sum([]byte(l.script))) // the name that Redis gives it
	return l
}

// invoke builds a call of a function. base begins the keys of a script's memory, in the slot of
// keys; "" for a function that needs none.
func (s *Store) invoke(b rueidis.Builder, l *library, base, function string, keys, args []string) rueidis.Completed {
	count := strconv.Itoa(len(keys))
	if s.scripts.Load() {
		return b.Arbitrary("EVALSHA").Args(l.sha, count).Keys(keys[0]).Args(keys[1:]...).Args(function, base).
			Args(args...).Build()
	}
	return b.Arbitrary("FCALL").Args(function, count).Keys(keys[0]).Args(keys[1:]...).Args(args...).Build()
}

// load puts a library on every master that is there: as functions, or as a script if one of them
// has no functions.
func (s *Store) load(ctx context.Context, client rueidis.Client, l *library) error {
	// Not REPLACE: the library there has the same text, and its memory holds the last replies.
	err := onMasters(client, func(node rueidis.Client) error {
		return node.Do(ctx, node.B().Arbitrary("FUNCTION", "LOAD").Args(l.functions).Build()).Error()
	})
	scripts := noFunctions(err)
	if scripts && s.target.cluster {
		return s.tooOld("a Redis Cluster")
	}
	if scripts {
		err = onMasters(client, func(node rueidis.Client) error {
			return node.Do(ctx, node.B().Arbitrary("SCRIPT", "LOAD").Args(l.script).Build()).Error()
		})
	}
	if (scripts || err == nil) && s.scripts.Swap(scripts) != scripts && scripts {
		s.o.Logger.Info(fmt.Sprintf("redis store: %s is older than Redis 7: scripts decide there, in place of functions",
			s.target))
	}
	return err
}

// needsFunctions returns why something cannot be done on a server that is older than Redis 7; nil
// if it is newer.
func (s *Store) needsFunctions(what string) error {
	if s.scripts.Load() {
		return s.tooOld(what)
	}
	return nil
}

// tooOld returns the error for a feature that a Redis 6 lacks.
func (s *Store) tooOld(what string) error {
	return &store.LastingError{
		Advice: fmt.Sprintf("Redis at %s is too old: %s must have Redis 7 or newer, or Valkey", s.target, what),
		Err:    errors.New("redis store: the server has no functions"),
	}
}

var errNoMaster = errors.New("no master was found")

// onMasters calls load for every master that is there. The error is nil if one has loaded, unless a
// server is too old to do so.
func onMasters(client rueidis.Client, load func(rueidis.Client) error) error {
	var failed error
	loaded := false
	for _, node := range client.Nodes() {
		err := load(node)
		if e, ok := rueidis.IsRedisErr(err); ok {
			switch {
			case strings.HasPrefix(e.Error(), "READONLY"):
				continue // a replica gets it from its master
			case strings.Contains(e.Error(), "already exists"):
				err = nil
			case noFunctions(err):
				return err
			}
		}
		loaded = loaded || err == nil
		failed = errors.Join(failed, err)
	}
	switch {
	case loaded:
		return nil // a master that is away gets it when it misses it
	case failed == nil:
		return errNoMaster
	}
	return failed
}

// noFunctions reports whether a server has no functions: it is older than Redis 7.
func noFunctions(err error) bool {
	e, ok := rueidis.IsRedisErr(err)
	if !ok {
		return false
	}
	text := strings.ToLower(e.Error())
	return strings.Contains(text, "unknown command") &&
		(strings.Contains(text, "`function`") || strings.Contains(text, "'function'") ||
			strings.Contains(text, "`fcall`") || strings.Contains(text, "'fcall'"))
}

// luaConstants are the values of "go.NAME" in weir.lua: numbers, and formats of struct.pack. Facts
// that the two languages must agree on are here, in codec.go and operand.go, and nowhere else.
func luaConstants() map[string]any {
	return map[string]any{
		"kindFixed": kindFixed, "kindFirst": kindFirst, "kindCalendar": kindCalendar,
		"kindWindow": kindWindow, "kindBucket": kindBucket, "kindInterval": kindInterval,
		"kindWindows": kindWindows, "kindLog": kindLog, "kindSlots": kindSlots, "kindOff": kindOff,
		"kindMargin": kindMargin, "kindRecord": kindRecord,

		"modeEnforce": uint8(rule.Enforce), "modeShadow": uint8(rule.Shadow), "modeQuota": uint8(rule.Quota),

		"flagCounts": flagCounts, "flagTimed": flagTimed, "flagMarginCloses": flagMarginCloses,
		"flagLends": flagLends, "flagIdle": flagIdle, "flagRoom": flagRoom, "lendFormat": lendFormat,
		"olderInSameValue": olderInSameValue, "operandFormat": operandFormat,
		"scheduleFormat": scheduleFormat, "marginFormat": marginFormat,
		"flagMerged": flagMerged, "flagRepeats": flagRepeats, "flagLending": flagLending,
		"identityFormat": identityFormat, "identitySize": identitySize, "lostReply": lostReply,
		"listFormat": listFormat, "recordSize": recordSize, "recordFormat": recordFormat,
		"maxLeaseFor": algo.MaxLeaseFor.Microseconds(), "mostLent": mostLent, "maxLogN": algo.MaxLogN,
		"replyFormat": replyFormat, "replyWhole": string(replyWhole), "replyBare": string(replyBare),
		"replyValue": string(replyValue), "replyNone": string(replyNone),

		"countSize": countSize, "countFormat": countFormat,
		"windowSize": windowSize, "windowFormat": windowFormat,
		"bucketSize": bucketSize, "bucketFormat": bucketFormat, "intervalScale": uint32(intervalScale),
		"windowsHead": windowsHead, "windowsHeadFormat": windowsHeadFormat,
		"logHead": logHead, "logHeadFormat": logHeadFormat,
		"slotsHead": slotsHead, "slotsHeadFormat": slotsHeadFormat, "holderSize": holderSize,
		"tallyFormat": tallyFormat, "maxRecords": maxRecords,
		"maxWindow": algo.MaxWindow.Microseconds(), // the longest that a state is kept
	}
}

// expandConstants puts the constants into the text of weir.lua.
func expandConstants(text string) string {
	constants := luaConstants()
	return regexp.MustCompile(`\bgo\.[A-Za-z]+`).ReplaceAllStringFunc(text, func(name string) string {
		switch v := constants[name[len("go."):]].(type) {
		case nil:
			panic("weir.lua names " + name + ", which luaConstants does not have")
		case string:
			return strconv.Quote(v)
		default:
			return fmt.Sprintf("%d", v)
		}
	})
}

// luaLibrary is the library, and the names of its functions.
type luaLibrary struct {
	*library
	take, read, swap, release, nodes, hold, claim, expired, change, lead string
}

// lua makes the library when it is first asked for: a program whose counters live elsewhere does
// not pay for it when it starts.
var lua = sync.OnceValue(func() *luaLibrary {
	l := newLibrary("weir", expandConstants(libraryText(memoryText)), expandConstants(libraryText(keptText)))
	return &luaLibrary{
		library: l, take: l.name + "_take", read: l.name + "_read", swap: l.name + "_swap", release: l.name + "_release",
		nodes: l.name + "_nodes", hold: l.name + "_hold", claim: l.name + "_claim", expired: l.name + "_expired",
		change: l.name + "_change", lead: l.name + "_lead",
	}
})
