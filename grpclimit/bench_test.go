package grpclimit_test

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/weir-rl/weir/grpclimit"
)

// BenchmarkUnary is the unary interceptor around a handler that does nothing.
func BenchmarkUnary(b *testing.B) {
	l := limiter(b, "limits: [{name: a, when: {grpc.service: shop.Orders}, per: [user], allow: 1000000000/min}]")
	unary := newGate(b, l, grpclimit.Options{Identity: byUser}).Unary
	ctx := metadata.NewIncomingContext(b.Context(), metadata.Pairs("x-user-id", "ada"))
	info := &grpc.UnaryServerInfo{FullMethod: "/shop.Orders/Create"}
	handler := func(context.Context, any) (any, error) { return nil, nil }
	b.ReportAllocs()
	for b.Loop() {
		if _, err := unary(ctx, nil, info, handler); err != nil {
			b.Fatal(err)
		}
	}
}
