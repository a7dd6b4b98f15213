package redis

import (
	_ "embed"
	"fmt"
	"regexp"
	"strconv"
	"strings"

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

var libraryText = weirText + bareText + leaseText + regionsText

// luaConstants are what "go.NAME" stands for in weir.lua: numbers, and formats of struct.pack. What
// the two languages must agree on is said here, in codec.go and operand.go, and nowhere else.
var luaConstants = map[string]any{
	"kindFixed": kindFixed, "kindFirst": kindFirst, "kindCalendar": kindCalendar,
	"kindWindow": kindWindow, "kindBucket": kindBucket, "kindInterval": kindInterval,
	"kindWindows": kindWindows, "kindLog": kindLog, "kindSlots": kindSlots, "kindOff": kindOff,
	"kindMargin": kindMargin, "kindRecord": kindRecord,

	"modeEnforce": uint8(rule.Enforce), "modeShadow": uint8(rule.Shadow), "modeQuota": uint8(rule.Quota),

	"flagCounts": flagCounts, "flagTimed": flagTimed, "flagMarginCloses": flagMarginCloses,
	"flagLends": flagLends, "flagIdle": flagIdle, "lendFormat": lendFormat,
	"olderInSameValue": olderInSameValue, "operandFormat": operandFormat,
	"scheduleFormat": scheduleFormat, "marginFormat": marginFormat,
	"flagMerged": flagMerged, "flagRepeats": flagRepeats, "flagLending": flagLending,
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

// expandConstants puts the constants into the text of weir.lua.
func expandConstants(text string) string {
	return regexp.MustCompile(`\bgo\.[A-Za-z]+`).ReplaceAllStringFunc(text, func(name string) string {
		switch v := luaConstants[name[len("go."):]].(type) {
		case nil:
			panic("weir.lua names " + name + ", which luaConstants does not have")
		case string:
			return strconv.Quote(v)
		default:
			return fmt.Sprintf("%d", v)
		}
	})
}

var (
	libraryCode = expandConstants(libraryText)
	libraryName = fmt.Sprintf("weir_%08x", uint32(xxhash.Sum64String(libraryCode)))
	library     = "#!lua name=" + libraryName + "\n" + strings.ReplaceAll(libraryCode, "NAME", libraryName)

	functionTake    = libraryName + "_take"
	functionRead    = libraryName + "_read"
	functionSwap    = libraryName + "_swap"
	functionRelease = libraryName + "_release"
	functionNodes   = libraryName + "_nodes"
	functionHold    = libraryName + "_hold"
	functionClaim   = libraryName + "_claim"
	functionExpired = libraryName + "_expired"
	functionChange  = libraryName + "_change"
	functionLead    = libraryName + "_lead"
)
