package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/admin/words"
	"github.com/weir-rl/weir/internal/observe/recent"
)

// explainDecision explains a decision by its id, from the memory of a running server.
func explainDecision(ctx context.Context, o explainOptions, args []string, out io.Writer) error {
	if len(args) > 0 {
		return usageError(errors.New("--id asks for a decision that was made; leave the attributes out"))
	}
	id, err := weir.ParseDecisionID(o.id)
	if err != nil {
		return usageError(fmt.Errorf("--id: %w", err))
	}
	c := &o.admin
	if c.Address == "" {
		c.Address = defaultAdmin
	}
	if err := c.open(); err != nil {
		return err
	}
	var raw json.RawMessage
	if err := c.Do(ctx, "GET", "/api/v1/decisions/"+id.String(), nil, &raw); err != nil {
		return err
	}
	if o.json {
		_, err := out.Write(raw)
		return err
	}
	var e recent.Entry
	if err := json.Unmarshal(raw, &e); err != nil {
		return fmt.Errorf("%s answered with something else than a decision: %w", c.Name(), err)
	}
	words.Decision(out, &e)
	return nil
}
