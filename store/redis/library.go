package redis

import (
	_ "embed"
	"fmt"
	"strings"

	"github.com/cespare/xxhash/v2"
)

// The library of functions that decide inside Redis (FUNCTION LOAD, Redis 7). Its name holds a hash of its text, so that
// nodes of different builds each have their own, and none ever runs another's code.

//go:embed weir.lua
var libraryText string

var (
	libraryName = fmt.Sprintf("weir_%08x", uint32(xxhash.Sum64String(libraryText)))
	library     = "#!lua name=" + libraryName + "\n" + strings.ReplaceAll(libraryText, "NAME", libraryName)

	functionTake    = libraryName + "_take"
	functionRead    = libraryName + "_read"
	functionSwap    = libraryName + "_swap"
	functionRelease = libraryName + "_release"
	functionNodes   = libraryName + "_nodes"
	functionHold    = libraryName + "_hold"
	functionClaim   = libraryName + "_claim"
	functionExpired = libraryName + "_expired"
)
