package server

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

// text makes a setter of one that takes a single text.
func text(set func(c *Config, s string) error) func(*Config, []string) error {
	return func(c *Config, items []string) error {
		if len(items) != 1 {
			return errors.New("must be a single value")
		}
		return set(c, items[0])
	}
}

func toString(field func(*Config) *string) func(*Config, []string) error {
	return text(func(c *Config, s string) error { *field(c) = s; return nil })
}

func toBool(field func(*Config) *bool) func(*Config, []string) error {
	return text(func(c *Config, s string) error {
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

func toDuration(least time.Duration, field func(*Config) *time.Duration) func(*Config, []string) error {
	return text(func(c *Config, s string) error {
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

func toInt(least, most int64, field func(*Config) *int) func(*Config, []string) error {
	return text(func(c *Config, s string) error {
		n, err := strconv.ParseInt(strings.ReplaceAll(s, "_", ""), 10, 64)
		if err != nil || n < least || n > most {
			return fmt.Errorf("%q must be a whole number from %d to %d", s, least, most)
		}
		*field(c) = int(n)
		return nil
	})
}

func toBytes(field func(*Config) *int64) func(*Config, []string) error {
	return text(func(c *Config, s string) (err error) { *field(c), err = parseBytes(s); return err })
}

// toAddress takes an address of a door; "" and "off" close the door.
func toAddress(field func(*Config) *string) func(*Config, []string) error {
	return text(func(c *Config, s string) error {
		if s == "" || s == "off" {
			*field(c) = ""
			return nil
		}
		*field(c) = s
		return listen.CheckAddress(s)
	})
}

// toPeers accepts prefixes, addresses, and the word unix for all peers of unix sockets.
func toPeers(field func(*Config) (*[]netip.Prefix, *bool)) func(*Config, []string) error {
	return func(c *Config, items []string) (err error) {
		prefixes, unix := field(c)
		*unix = slices.Contains(items, "unix")
		*prefixes, err = httplimit.ParseTrusted(
			slices.DeleteFunc(slices.Clone(items), func(s string) bool { return s == "unix" }))
		return err
	}
}

// toDoors takes names of doors out of known.
func toDoors(known []string, field func(*Config) *[]string) func(*Config, []string) error {
	return func(c *Config, items []string) error {
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

func parseBytes(s string) (int64, error) {
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
