package main

import (
	"strings"
	"testing"

	configpb "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"

	"github.com/weir-rl/weir/internal/testkit/xdstest"
)

// TestToolsReadControlPlane: the tools take the URL of a control plane in the place of a folder.
func TestToolsReadControlPlane(t *testing.T) {
	t.Parallel()
	s := xdstest.New(t, nil)
	s.Set("7", xdstest.Config("shop", 5, "user"))
	url := "xds://" + s.Addr + "?wait=10m&node=" + xdstest.Node
	run := func(args ...string) (int, string) {
		t.Helper()
		var out strings.Builder
		status := Run(t.Context(), args, nil, strings.NewReader(""), &out, &out)
		return status, out.String()
	}
	if status, out := run("lint", url); status != exitOK {
		t.Errorf("lint: exit status %d, %s", status, out)
	}
	if status, out := run("explain", "--rules", url, "user=ada"); status != exitOK || !strings.Contains(out, "user") {
		t.Errorf("explain: exit status %d, %s", status, out)
	}
	if status, out := run("test", url); status != exitUsage ||
		!strings.Contains(out, "version 7 of xds://"+s.Addr+"?node=envoy-ratelimit holds no rule tests") {
		t.Errorf("test: exit status %d, %s", status, out)
	}
	s.Set("8", &configpb.RateLimitConfig{Name: "shop", Domain: "shop", Descriptors: []*configpb.RateLimitDescriptor{{}}})
	url = strings.Replace(url, "10m", "1s", 1)
	if status, out := run("lint", url); status != exitUsage || !strings.Contains(out, `weir: `) {
		t.Errorf("lint of a broken set: exit status %d, %s", status, out)
	}
}
