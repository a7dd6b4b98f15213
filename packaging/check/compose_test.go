package check

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/prometheus/prometheus/config"
)

// TestCompose: Docker Compose would take examples/compose, as docker compose config does; what it
// mounts is there, and Prometheus takes its configuration, which finds the server's admin port.
func TestCompose(t *testing.T) {
	dir, err := filepath.Abs(filepath.Join(root, "examples", "compose"))
	if err != nil {
		t.Fatal(err)
	}
	options, err := cli.NewProjectOptions([]string{filepath.Join(dir, "compose.yaml")},
		cli.WithName("weir"), cli.WithWorkingDirectory(dir), cli.WithResolvedPaths(true))
	if err != nil {
		t.Fatal(err)
	}
	project, err := options.LoadProject(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name, service := range project.Services {
		for _, volume := range service.Volumes {
			if volume.Type != types.VolumeTypeBind {
				if _, ok := project.Volumes[volume.Source]; !ok {
					t.Errorf("%s mounts a volume %s that is not declared", name, volume.Source)
				}
				continue
			}
			if _, err := os.Stat(volume.Source); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		for _, port := range service.Ports {
			if port.HostIP != "127.0.0.1" {
				t.Errorf("%s is open beyond this machine: %+v", name, port)
			}
		}
	}
	weir := project.Services["weir"]
	if _, err := os.Stat(filepath.Join(weir.Build.Context, "Dockerfile")); err != nil {
		t.Error(err)
	}
	if grace := weir.StopGracePeriod; grace == nil || grace.String() != "15s" {
		t.Errorf("the grace period is %v, and drain 10s", grace)
	}
	prometheus, err := config.LoadFile(filepath.Join(dir, "prometheus.yml"), false, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	scraped := prometheus.ScrapeConfigs[0]
	group := scraped.ServiceDiscoveryConfigs[0]
	if text, ok := group.(interface{ Name() string }); scraped.JobName != "weir" || !ok || text.Name() != "static" {
		t.Errorf("it scrapes %+v", scraped)
	}
}
