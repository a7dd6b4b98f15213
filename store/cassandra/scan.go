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

// sampled is how many values are looked at to learn about how many there are.
const sampled = 1000

// Scan implements cas.Engine: in the order of the tokens of partitions, and of names. A position is
// about how many values there are, as was learned at the beginning, and Cassandra's own mark. It
// reads with a quorum, so that it shows what lies there, but completes no write that is under way.
func (e *engine) Scan(
	ctx context.Context, from string, limit int, visit func(name []byte, v cas.Value),
) (next string, of int, err error) {
	c, err := e.connected(ctx)
	if err != nil {
		return "", 0, err
	}
	of, mark, err := readPosition(from)
	if err != nil {
		return "", 0, err
	}
	if err := e.enter(ctx); err != nil {
		return "", 0, err
	}
	defer e.leave()
	if from == "" {
		if of, err = e.count(ctx, c); err != nil {
			return "", 0, fmt.Errorf("cassandra: %w", err)
		}
	}
	// Given a mark, the driver asks for no further page by itself.
	iter := c.session.Query(c.scanRows).Consistency(e.target.quorum).PageSize(max(limit, 1)).PageState(
		mark).IterContext(ctx)
	mark = iter.PageState()
	for {
		var (
			name, data []byte
			version    int64
		)
		if !iter.Scan(&name, &version, &data) {
			break
		}
		visit(name, cas.Value{Version: uint64(version), Data: data})
	}
	if err := iter.Close(); err != nil {
		return "", 0, fmt.Errorf("cassandra: %w", err)
	}
	if len(mark) == 0 {
		return "", of, nil
	}
	return fmt.Sprint(of, ".", base64.RawURLEncoding.EncodeToString(mark)), of, nil
}

// count returns about how many values there are.
func (e *engine) count(ctx context.Context, c *connection) (n int, err error) {
	iter := c.session.Query(c.tokens, sampled).Consistency(e.target.quorum).PageSize(0).IterContext(ctx)
	token := int64(0)
	for iter.Scan(&token) {
		n++
	}
	if n < sampled {
		return n, iter.Close()
	}
	// Tokens are spread evenly over their range, so the part of it that was passed gives an
	// estimate.
	passed := (float64(token) - math.MinInt64) / (math.MaxInt64 - float64(math.MinInt64))
	return int(float64(n) / max(passed, 1e-9)), iter.Close()
}

// readPosition reads what Scan has returned; nothing is the beginning.
func readPosition(text string) (of int, mark []byte, err error) {
	if text == "" {
		return 0, []byte{}, nil
	}
	number, coded, _ := strings.Cut(text, ".")
	of, err = strconv.Atoi(number)
	if err != nil || of < 0 {
		return 0, nil, errPosition
	}
	if mark, err = base64.RawURLEncoding.DecodeString(coded); err != nil || len(mark) == 0 {
		return 0, nil, errPosition
	}
	return of, mark, nil
}
