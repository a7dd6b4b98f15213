package settings

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/internal/wire/listen"
)

// Setter is what sets a setting in c.
type Setter[C any] = func(c *C, items []string) error

// Text makes a setter of one that takes a single text.
func Text[C any](set func(c *C, s string) error) Setter[C] {
	return func(c *C, items []string) error {
		if len(items) != 1 {
			return errors.New("must be a single value")
		}
		return set(c, items[0])
	}
}

// String takes any text.
func String[C any](field func(*C) *string) Setter[C] {
	return Text(func(c *C, s string) error { *field(c) = s; return nil })
}

// Bool takes true and false.
func Bool[C any](field func(*C) *bool) Setter[C] {
	return Text(func(c *C, s string) error {
		switch s {
		case "true":
			*field(c) = true
		case "false":
			*field(c) = false
		default:
			return fmt.Errorf("%q must be true or false", s)
		}
		return nil
	})
}

// Duration takes a duration that is least at the shortest.
func Duration[C any](least time.Duration, field func(*C) *time.Duration) Setter[C] {
	return Text(func(c *C, s string) error {
		d, err := time.ParseDuration(s)
		if err != nil {
			return fmt.Errorf("%q is no duration; write a number with a unit, such as 10s or 500ms", s)
		}
		if d < least {
			return fmt.Errorf("%q is below %v", s, least)
		}
		*field(c) = d
		return nil
	})
}

// Int takes a whole number from least to most.
func Int[C any](least, most int64, field func(*C) *int) Setter[C] {
	return Text(func(c *C, s string) error {
		n, err := strconv.ParseInt(strings.ReplaceAll(s, "_", ""), 10, 64)
		if err != nil || n < least || n > most {
			return fmt.Errorf("%q must be a whole number from %d to %d", s, least, most)
		}
		*field(c) = int(n)
		return nil
	})
}

// Bytes takes a size, such as 512MiB.
func Bytes[C any](field func(*C) *int64) Setter[C] {
	return Text(func(c *C, s string) (err error) { *field(c), err = ParseBytes(s); return err })
}

// Address takes an address of a door; "" and "off" close the door.
func Address[C any](field func(*C) *string) Setter[C] {
	return Text(func(c *C, s string) error {
		if s == "" || s == "off" {
			*field(c) = ""
			return nil
		}
		*field(c) = s
		return listen.CheckAddress(s)
	})
}

// Peers accepts prefixes, addresses, and the word unix for all peers of unix sockets.
func Peers[C any](field func(*C) (*[]netip.Prefix, *bool)) Setter[C] {
	return func(c *C, items []string) (err error) {
		prefixes, unix := field(c)
		*unix = slices.Contains(items, "unix")
		*prefixes, err = httplimit.ParseTrusted(
			slices.DeleteFunc(slices.Clone(items), func(s string) bool { return s == "unix" }))
		return err
	}
}

// Doors takes names of doors out of known.
func Doors[C any](known []string, field func(*C) *[]string) Setter[C] {
	return func(c *C, items []string) error {
		for _, item := range items {
			if !slices.Contains(known, item) {
				return fmt.Errorf("%q is no door; write any of %s", item, strings.Join(known, ", "))
			}
		}
		*field(c) = items
		return nil
	}
}

// bytesUnits are the units of sizes, largest first.
var bytesUnits = []struct {
	name string
	size int64
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6},
	{"KB", 1e3}, {"kB", 1e3}, {"B", 1}}

// ParseBytes reads a size: a whole number, with a unit unless it counts bytes.
func ParseBytes(s string) (int64, error) {
	number, unit := s, int64(1)
	for _, u := range bytesUnits {
		if rest, ok := strings.CutSuffix(s, u.name); ok {
			number, unit = strings.TrimSpace(rest), u.size
			break
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 1 || n > (1<<62)/unit {
		return 0, fmt.Errorf("%q is no size; write a whole number with a unit, such as 512MiB or 1GiB", s)
	}
	return n * unit, nil
}
