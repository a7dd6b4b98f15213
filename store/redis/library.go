package redis

import (
	_ "embed"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/cespare/xxhash/v2"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// The library of functions that decide inside Redis (FUNCTION LOAD, Redis 7). Its name holds a hash
// of its text, so that nodes of different builds each have their own library, and none ever runs
// another's code.

//go:embed weir.lua
var weirText string

//go:embed bare.lua
var bareText string

//go:embed lease.lua
var leaseText string

//go:embed regions.lua
var regionsText string

func libraryText() string { return weirText + bareText + leaseText + regionsText }

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
	name, text                                                           string
	take, read, swap, release, nodes, hold, claim, expired, change, lead string
}

// lua makes the library when it is first asked for: a program whose counters live elsewhere does
// not pay for it when it starts.
var lua = sync.OnceValue(func() *luaLibrary {
	code := expandConstants(libraryText())
	name := fmt.Sprintf("weir_%08x", uint32(xxhash.Sum64String(code)))
	return &luaLibrary{
		name: name, text: "#!lua name=" + name + "\n" + strings.ReplaceAll(code, "NAME", name),
		take: name + "_take", read: name + "_read", swap: name + "_swap", release: name + "_release", nodes: name + "_nodes",
		hold: name + "_hold", claim: name + "_claim", expired: name + "_expired", change: name + "_change", lead: name + "_lead",
	}
})
