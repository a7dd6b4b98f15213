package algo

import (
	"testing"
	"time"
)

func TestPeriod(t *testing.T) {
	for _, c := range []struct {
		config Config
		want   string
	}{
		{Config{Window: time.Second}, "second"},
		{Config{Window: time.Minute}, "minute"},
		{Config{Window: time.Hour}, "hour"},
		{Config{Window: 24 * time.Hour}, "day"},
		{Config{Window: 7 * 24 * time.Hour}, "7 days"},
		{Config{Window: 15 * time.Minute}, "15 minutes"},
		{Config{Window: 90 * time.Second}, "1 minute 30 seconds"},
		{Config{Window: 36 * time.Hour}, "1 day 12 hours"},
		{Config{Window: 1500 * time.Millisecond}, "1 second 500 milliseconds"},
		{Config{Window: time.Millisecond}, "millisecond"},
		{Config{Window: 7 * time.Microsecond}, "7 microseconds"},
		{Config{Window: 30 * 24 * time.Hour, Calendar: Month}, "calendar month"},
		{Config{Window: 24 * time.Hour, Calendar: Day}, "calendar day"},
		{Config{Window: 7 * 24 * time.Hour, Calendar: Week}, "calendar week"},
		{Config{Window: 365 * 24 * time.Hour, Calendar: Year}, "calendar year"},
		{Config{Algorithm: Concurrency}, ""},
	} {
		if got := c.config.Period(); got != c.want {
			t.Errorf("Period of %v, calendar %v: got %q, want %q", c.config.Window, c.config.Calendar, got, c.want)
		}
	}
}
