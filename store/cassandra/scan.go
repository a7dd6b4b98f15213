package cassandra

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/weir-rl/weir/store/cas"
)

// errPosition is of a position that Scan has not returned.
var errPosition = errors.New("cassandra: this is no position of a scan")

// Scan implements cas.Engine: in the order of the tokens of partitions, and of names. A position is
// the number of values before it, and Cassandra's own mark. It reads with a quorum, so that it
// shows what lies there, but completes no write that is under way.
func (e *engine) Scan(
	ctx context.Context, from string, limit int, visit func(name []byte, v cas.Value),
) (next string, of int, err error) {
	c, err := e.connected(ctx)
	if err != nil {
		return "", 0, err
	}
	before, mark, err := readPosition(from)
	if err != nil {
		return "", 0, err
	}
	if err := e.enter(ctx); err != nil {
		return "", 0, err
	}
	defer e.leave()
	// Given a mark, the driver asks for no further page by itself.
	iter := c.session.Query(c.scanRows).Consistency(e.target.quorum).PageSize(max(limit, 1)).PageState(mark).IterContext(ctx)
	mark = iter.PageState()
	last := int64(math.MinInt64)
	for {
		var (
			name, data     []byte
			version, token int64
		)
		if !iter.Scan(&name, &version, &data, &token) {
			break
		}
		before++
		last = token
		visit(name, cas.Value{Version: uint64(version), Data: data})
	}
	if err := iter.Close(); err != nil {
		return "", 0, fmt.Errorf("cassandra: %w", err)
	}
	if len(mark) == 0 {
		return "", before, nil
	}
	// Tokens are spread evenly over their range.
	passed := (float64(last) - math.MinInt64) / (math.MaxInt64 - float64(math.MinInt64))
	return fmt.Sprint(before, ".", base64.RawURLEncoding.EncodeToString(mark)), max(before+1, int(float64(before)/max(passed, 1e-6))), nil
}

// readPosition reads what Scan has returned; nothing is the beginning.
func readPosition(text string) (before int, mark []byte, err error) {
	if text == "" {
		return 0, []byte{}, nil
	}
	number, coded, _ := strings.Cut(text, ".")
	before, err = strconv.Atoi(number)
	if err != nil || before < 0 {
		return 0, nil, errPosition
	}
	if mark, err = base64.RawURLEncoding.DecodeString(coded); err != nil || len(mark) == 0 {
		return 0, nil, errPosition
	}
	return before, mark, nil
}
