package main

import (
	"testing"

	"github.com/weir-rl/weir/examples/middleware/check"
	"github.com/weir-rl/weir/examples/middleware/demo"
)

func TestHandler(t *testing.T) {
	limiter, err := demo.NewLimiter()
	if err != nil {
		t.Fatal(err)
	}
	h, err := handler(limiter)
	if err != nil {
		t.Fatal(err)
	}
	check.Handler(t, h)
}
