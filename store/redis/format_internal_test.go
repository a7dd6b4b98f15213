package redis

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// formatSize is how many bytes a format of Lua's struct.pack takes.
func formatSize(t *testing.T, format string) (n int) {
	t.Helper()
	rest := strings.TrimPrefix(format, "<")
	for _, field := range regexp.MustCompile(`[A-Za-z][0-9]*`).FindAllString(rest, -1) {
		rest = strings.TrimPrefix(rest, field)
		switch {
		case field == "B":
			n++
		case field == "d":
			n += 8
		case len(field) == 2 && strings.ContainsAny(field[:1], "Ic"):
			n += int(field[1] - '0')
		default:
			t.Fatalf("the format %q has a field %q", format, field)
		}
	}
	if rest != "" {
		t.Fatalf("the format %q is not understood at %q", format, rest)
	}
	return n
}

// TestFormats: a size and a format of one thing say the same, and an operand is written as its
// format says.
func TestFormats(t *testing.T) {
	for _, f := range []struct {
		format string
		size   int
	}{
		{countFormat, countSize}, {windowFormat, windowSize}, {bucketFormat, bucketSize},
		{windowsHeadFormat, windowsHead}, {logHeadFormat, logHead}, {slotsHeadFormat, slotsHead},
		{tallyFormat, tallySize}, {replyFormat, replyHead}, {listFormat, 4 + 1}, {recordFormat, recordSize},
		{identityFormat, identitySize},
	} {
		if n := formatSize(t, f.format); n != f.size {
			t.Errorf("the format %q takes %d bytes, not %d", f.format, n, f.size)
		}
	}
	for _, c := range []algo.Config{
		{N: 5, Window: time.Minute},
		{Algorithm: algo.TokenBucket, N: 5, Window: time.Minute, Soft: 40, SoftFor: time.Second},
		{Algorithm: algo.SlidingLog, N: 50, Window: time.Minute, Lease: 10},
	} {
		l, err := algo.New(c)
		if err != nil {
			t.Fatal(err)
		}
		op := operand{codec: newCodec(l), counter: &rule.Counter{ID: 7, Limit: l}}
		want := formatSize(t, operandFormat)
		if op.marginCloses = c.SoftFor > 0; op.marginCloses {
			want += formatSize(t, marginFormat)
		}
		if c.Algorithm == algo.TokenBucket {
			op.phase = &phase{}
			want += formatSize(t, scheduleFormat)
		}
		if n := l.Lease(); n != nil {
			op.record = newCodec(n)
			want += formatSize(t, lendFormat)
		}
		text := op.append(nil, &store.Charge{Limit: l}, 0)
		if len(text) != want {
			t.Errorf("%v: an operand takes %d bytes, not %d", l, len(text), want)
		}
		if lends := text[2]&(flagLends|flagIdle) != 0; lends != (c.Lease > 0) {
			t.Errorf("%v: the flags of its operand are %d", l, text[2])
		}
	}
	interval, err := algo.New(algo.Config{Algorithm: algo.TokenBucket, N: 5, Window: time.Minute, RefillInterval: true})
	if err != nil {
		t.Fatal(err)
	}
	if tag := interval.Params().Tag; tag != intervalScale {
		t.Errorf("a bucket refilled at intervals has the tag %d", tag)
	}
}

// TestConstants: weir.lua uses each constant of library.go, and no number of its own for it.
func TestConstants(t *testing.T) {
	for name := range luaConstants() {
		if !regexp.MustCompile(`\bgo\.` + name + `\b`).MatchString(libraryText(memoryText)) {
			t.Errorf("weir.lua does not use go.%s", name)
		}
	}
	for _, text := range []string{lua().functions, lua().script} {
		if left := regexp.MustCompile(`\bgo\.[A-Za-z]+`).FindString(text); left != "" {
			t.Errorf("the library still names the constant %s", left)
		}
	}
}
