package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// images are the images of the release's layout.
func images(t *testing.T, r *release) []v1.Image {
	t.Helper()
	dir := t.TempDir()
	output(t, "tar", "-xf", r.file("image.tar"), "-C", dir)
	top, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(top); err != nil {
		t.Fatal(err)
	}
	list, err := top.IndexManifest()
	if err != nil || len(list.Manifests) != 1 {
		t.Fatalf("%+v, %v", list, err)
	}
	if got := list.Manifests[0].Annotations["org.opencontainers.image.ref.name"]; got != "weir:"+r.version {
		t.Errorf("the layout calls it %q", got)
	}
	index, err := top.ImageIndex(list.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	if list, err = index.IndexManifest(); err != nil {
		t.Fatal(err)
	}
	var all []v1.Image
	for _, m := range list.Manifests {
		img, err := index.Image(m.Digest)
		if err != nil {
			t.Fatal(err)
		}
		config, err := img.ConfigFile()
		if err != nil || m.Platform == nil || m.Platform.Architecture != config.Architecture || config.OS != "linux" {
			t.Fatalf("%+v is for %s/%s (%v)", m.Platform, config.OS, config.Architecture, err)
		}
		all = append(all, img)
	}
	return all
}

// TestLayers: two layers, what seldom changes first, with these files and owners; and the settings
// of the Dockerfile.
func TestLayers(t *testing.T) {
	r := makeRelease(t)
	// A second program shows that the layout has one image for each architecture.
	two := *r
	two.targets = []target{{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "arm64"}}
	two.in, two.out = t.TempDir(), t.TempDir()
	for _, t2 := range two.targets {
		if err := os.Link(r.program(r.targets[0]), two.program(t2)); err != nil {
			t.Fatal(err)
		}
	}
	if err := two.writeImages(); err != nil {
		t.Fatal(err)
	}
	all := images(t, &two)
	if len(all) != 2 {
		t.Fatalf("%d images", len(all))
	}
	for _, img := range all {
		layers, err := img.Layers()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for i, layer := range layers {
			size, err := layer.Size()
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("layer %d: %d bytes", i+1, size)
			data, err := layer.Uncompressed()
			if err != nil {
				t.Fatal(err)
			}
			files := tar.NewReader(data)
			for {
				h, err := files.Next()
				if err == io.EOF {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				if strings.HasSuffix(h.Name, "/THIRD-PARTY") {
					text, err := io.ReadAll(files)
					if err != nil {
						t.Fatal(err)
					}
					checkThirdParty(t, string(text))
				}
				t.Logf("  %s %d:%d %10d %s", h.FileInfo().Mode(), h.Uid, h.Gid, h.Size, h.Name)
				got = append(got, fmt.Sprintf("%d %s %d:%d %s", i+1, h.FileInfo().Mode(), h.Uid, h.Gid, h.Name))
				if !h.ModTime.Equal(r.time) {
					t.Errorf("%s is of %v", h.Name, h.ModTime)
				}
			}
		}
		want := []string{
			"1 drwxr-xr-x 0:0 etc/", "1 drwxr-xr-x 0:0 etc/ssl/", "1 drwxr-xr-x 0:0 etc/ssl/certs/",
			"1 -rw-r--r-- 0:0 etc/ssl/certs/ca-certificates.crt", "1 drwxr-xr-x 0:0 etc/weir/",
			"1 drwxr-xr-x 0:0 var/", "1 drwxr-xr-x 0:0 var/lib/", "1 drwxr-xr-x 65532:65532 var/lib/weir/",
			"2 -rwxr-xr-x 0:0 weir", "2 drwxr-xr-x 0:0 bin/", "2 Lrwxrwxrwx 0:0 bin/ratelimit",
			"2 drwxr-xr-x 0:0 usr/", "2 drwxr-xr-x 0:0 usr/share/", "2 drwxr-xr-x 0:0 usr/share/doc/",
			"2 drwxr-xr-x 0:0 usr/share/doc/weir/", "2 -rw-r--r-- 0:0 usr/share/doc/weir/LICENSE",
			"2 -rw-r--r-- 0:0 usr/share/doc/weir/THIRD-PARTY",
		}
		if !slices.Equal(got, want) {
			t.Errorf("it holds %q, want %q", got, want)
		}
		for _, name := range madeByDockerfile(t) {
			there := slices.ContainsFunc(got, func(line string) bool {
				return strings.HasSuffix(strings.TrimSuffix(line, "/"), " "+name)
			})
			if !there {
				t.Errorf("the Dockerfile makes %s", name)
			}
		}
		file, err := img.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		c := file.Config
		if c.User != "65532:65532" || c.WorkingDir != "/etc/weir" || !slices.Equal(c.Entrypoint, []string{"/weir"}) ||
			!slices.Equal(c.Cmd, []string{"serve"}) || !slices.Contains(c.Env, "WEIR_CONTAINER=true") ||
			len(c.ExposedPorts) != 4 || c.Healthcheck == nil || c.Healthcheck.Timeout != 4*time.Second ||
			!slices.Equal(c.Healthcheck.Test, []string{"CMD", "/weir", "health"}) {
			t.Errorf("containers run so: %+v", c)
		}
		if c.Labels["org.opencontainers.image.revision"] != r.commit {
			t.Errorf("labels: %q", c.Labels)
		}
	}
}

// madeByDockerfile are the files and folders that the Dockerfile's first stage makes for the image.
func madeByDockerfile(t *testing.T) (names []string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`/out/(?:image|data)/(\S+)`).FindAllStringSubmatch(string(data), -1) {
		names = append(names, m[1])
	}
	if len(names) < 3 {
		t.Fatalf("the Dockerfile makes %q", names)
	}
	return names
}

// TestSameImage: the file for docker load has the image of the layout, under its name.
func TestSameImage(t *testing.T) {
	r := makeRelease(t)
	loaded, err := tarball.ImageFromPath(r.file("image_"+arch+".tar"), nil)
	if err != nil {
		t.Fatal(err)
	}
	one, err := loaded.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	two, err := images(t, r)[0].ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	if one != two {
		t.Errorf("docker load has %s, the layout %s", one, two)
	}
	const name = `"RepoTags":["weir:0.1.0"]`
	if out := output(t, "tar", "-xOf", r.file("image_"+arch+".tar"), "manifest.json"); !strings.Contains(out, name) {
		t.Errorf("it is called %s", out)
	}
}

// TestAuthorities: TLS trusts the authorities that a certificate of today is from.
func TestAuthorities(t *testing.T) {
	text := authorities()
	if n := bytes.Count(text, []byte("BEGIN CERTIFICATE")); n < 80 {
		t.Errorf("%d certificates", n)
	}
}

// TestContainer: the image runs as its user on a root that nobody can write to, limits, and is
// healthy.
func TestContainer(t *testing.T) {
	r := makeRelease(t)
	if os.Getuid() != 0 {
		t.Skip("a container's root needs root")
	}
	img := images(t, r)[0]
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil { // whatever the umask
		t.Fatal(err)
	}
	probe := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", `mount --bind "$0" "$0"`, dir)
	if out, err := probe.CombinedOutput(); err != nil {
		t.Skipf("no namespace of mounts can be had: %v\n%s", err, out)
	}
	untar := exec.Command("tar", "-x", "-p", "--numeric-owner", "-C", dir)
	untar.Stdin = mutate.Extract(img)
	if out, err := untar.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	file, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c := file.Config
	user, group, _ := strings.Cut(c.User, ":")
	run := func(env []string, args ...string) *exec.Cmd {
		const script = `mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec unshare --root="$0" "$@"`
		cmd := exec.Command("unshare", append([]string{"--mount", "--propagation", "private", "sh", "-c", script, dir,
			"--wd=" + c.WorkingDir, "--setgid=" + group, "--setuid=" + user}, args...)...)
		cmd.Env = append(slices.Clone(c.Env), env...)
		return cmd
	}
	if out, err := run(nil, "/weir", "version").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var loopback []string
	for _, name := range []string{"HTTP", "GRPC", "RESP", "ADMIN"} {
		loopback = append(loopback, "WEIR_LISTEN_"+name+"=127.0.0.1:0")
	}
	server := run(loopback, append(slices.Clone(c.Entrypoint), c.Cmd...)...)
	stderr, err := server.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() })
	address := addresses(t, stderr)
	for i := range 11 {
		want := http.StatusOK
		if i == 10 {
			want = http.StatusTooManyRequests
		}
		answer, err := http.Get("http://" + address["http"] + "/api/v1/limit?key=ada")
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("request %d: %s", i+1, answer.Status)
		}
	}
	health := run([]string{"WEIR_LISTEN_ADMIN=" + address["admin"]}, c.Healthcheck.Test[1:]...)
	if out, err := health.CombinedOutput(); err != nil {
		t.Errorf("it is not healthy: %v\n%s", err, out)
	}
	owner, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", server.Process.Pid))
	if err != nil || !regexp.MustCompile(`(?m)^Uid:\s+65532\s+65532\s+65532\s+65532$`).Match(owner) {
		t.Errorf("it runs as another user: %v\n%s", err, owner)
	}
	// As root: not even it can write there.
	write := exec.Command("nsenter", fmt.Sprintf("--mount=/proc/%d/ns/mnt", server.Process.Pid), "touch",
		filepath.Join(dir, "file"))
	if out, err := write.CombinedOutput(); err == nil || !strings.Contains(string(out), "Read-only file system") {
		t.Errorf("the root can be written to: %v\n%s", err, out)
	}
}

// addresses reads a server's log until its doors are open, and returns where.
func addresses(t *testing.T, log io.Reader) map[string]string {
	t.Helper()
	line := regexp.MustCompile(`msg="door open" door=(\w+) addr=(\S+)\n`)
	found := map[string]string{}
	var all bytes.Buffer
	for buf := make([]byte, 4096); found["http"] == "" || found["admin"] == ""; {
		n, err := log.Read(buf)
		all.Write(buf[:n])
		for _, m := range line.FindAllStringSubmatch(all.String(), -1) {
			found[m[1]] = m[2]
		}
		if err != nil {
			t.Fatalf("%v: %s", err, &all)
		}
	}
	go io.Copy(io.Discard, log) //nolint:errcheck // until it ends
	return found
}
