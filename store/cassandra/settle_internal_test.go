package cassandra

import (
	"context"
	"errors"
	"testing"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/weir-rl/weir/store/cas"
)

// TestVerdict: the present rows show the outcome of a batch that ended with an error.
func TestVerdict(t *testing.T) {
	at := func(version, was uint64) row { return row{Value: cas.Value{Version: version}, was: was} }
	write := func(was, version uint64) cas.Change { return cas.Change{Was: was, Version: version} }
	for name, test := range map[string]struct {
		changes     []cas.Change
		rows        []row
		late, final string // what is known while it may still be made, and when it is over
	}{
		"it lies there":                     {[]cas.Change{write(1, 2)}, []row{at(2, 1)}, "made", "made"},
		"it was replaced":                   {[]cas.Change{write(1, 2)}, []row{at(3, 2)}, "made", "made"},
		"another one was quicker":           {[]cas.Change{write(1, 2)}, []row{at(3, 1)}, "not made", "not made"},
		"all is as before":                  {[]cas.Change{write(1, 2)}, []row{at(1, 9)}, "", "not made"},
		"many have changed it":              {[]cas.Change{write(1, 2)}, []row{at(5, 4)}, "", ""},
		"it is gone":                        {[]cas.Change{write(1, 2)}, []row{{}}, "", ""},
		"nothing was there, nor is":         {[]cas.Change{write(0, 2)}, []row{{}}, "", "not made"},
		"something new is there":            {[]cas.Change{write(0, 2)}, []row{at(3, 0)}, "", ""},
		"the first of two tells":            {[]cas.Change{write(1, 2), write(0, 4)}, []row{at(2, 1), {}}, "made", "made"},
		"the second of two tells":           {[]cas.Change{write(0, 2), write(3, 4)}, []row{{}, at(3, 8)}, "", "not made"},
		"one is gone, one was changed on":   {[]cas.Change{write(0, 2), write(3, 4)}, []row{{}, at(7, 6)}, "", ""},
		"what was to be deleted is":         {[]cas.Change{{Was: 1}}, []row{{}}, "made", "made"},
		"what was to be deleted is there":   {[]cas.Change{{Was: 1}}, []row{at(1, 0)}, "", "not made"},
		"what is only compared says nought": {[]cas.Change{{Was: 1, Keep: true}, write(3, 4)}, []row{at(5, 1), at(4, 3)}, "made", "made"},
	} {
		for final, want := range map[bool]string{false: test.late, true: test.final} {
			made, known := verdict(test.changes, test.rows, final)
			got := map[bool]string{true: "made", false: "not made"}[made]
			if !known {
				got = ""
			}
			if got != want {
				t.Errorf("%s (over: %v): %q, want %q", name, final, got, want)
			}
		}
	}
}

func TestFate(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, test := range []struct {
		ctx  context.Context
		err  error
		want fate
	}{
		{t.Context(), gocql.ErrNoConnections, notMade},
		{t.Context(), &gocql.RequestErrUnavailable{}, notMade},
		{t.Context(), &gocql.RequestErrOverloaded{}, notMade},
		{t.Context(), &gocql.RequestErrUnauthorized{}, notMade},
		{t.Context(), &gocql.RequestErrWriteTimeout{WriteType: "CAS"}, over},
		{t.Context(), &gocql.RequestErrCASWriteUnknown{}, over},
		{t.Context(), &gocql.RequestErrReadTimeout{}, over},
		{t.Context(), gocql.ErrTimeoutNoResponse, unknown},
		{t.Context(), gocql.ErrConnectionClosed, unknown},
		{t.Context(), errors.New("read: connection reset by peer"), unknown},
		{ended, &gocql.RequestErrCASWriteUnknown{}, cancelled},
		{ended, gocql.ErrNoConnections, notMade},
	} {
		if got := fateOf(test.ctx, test.err); got != test.want {
			t.Errorf("%T %v: %d, want %d", test.err, test.err, got, test.want)
		}
	}
}
