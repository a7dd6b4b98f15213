package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// writeImages writes the image of the Dockerfile for the Linux programs: each for itself, as docker
// load takes it, and all of them as one OCI layout, for a registry.
func (r *release) writeImages() error {
	config, err := dockerConfig()
	if err != nil {
		return err
	}
	config.Labels = map[string]string{
		"org.opencontainers.image.title":    "weir",
		"org.opencontainers.image.version":  r.version,
		"org.opencontainers.image.revision": r.commit,
		"org.opencontainers.image.source":   "https://github.com/weir-rl/weir",
		"org.opencontainers.image.licenses": "Apache-2.0",
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, t := range r.targets {
		if t.os != "linux" {
			continue
		}
		img, err := r.image(t, config)
		if err != nil {
			return err
		}
		tag, err := name.NewTag("weir:" + r.version)
		if err != nil {
			return err
		}
		if err := tarball.WriteToFile(r.file("image_"+t.arch+".tar"), tag, img); err != nil {
			return err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: t.os, Architecture: t.arch}}})
	}
	return r.writeLayout(index)
}

// image is the image of one program. What changes seldom is in a layer of its own.
func (r *release) image(t target, config v1.Config) (v1.Image, error) {
	program, err := readEntry(r.program(t), "weir", 0o755)
	if err != nil {
		return nil, err
	}
	licence, err := readEntry(filepath.Join(root, "LICENSE"), "usr/share/doc/weir/LICENSE", 0o644)
	if err != nil {
		return nil, err
	}
	licences, err := r.thirdParty(t)
	if err != nil {
		return nil, err
	}
	var layers []v1.Layer
	for _, entries := range [][]entry{
		{
			{name: "etc/", mode: 0o755},
			{name: "etc/ssl/", mode: 0o755},
			{name: "etc/ssl/certs/", mode: 0o755},
			{name: "etc/ssl/certs/ca-certificates.crt", mode: 0o644, data: authorities()},
			{name: "etc/weir/", mode: 0o755},
			{name: "var/", mode: 0o755},
			{name: "var/lib/", mode: 0o755},
			{name: "var/lib/weir/", mode: 0o755, user: userOf(config)},
		},
		{
			program,
			// Envoy Gateway and others start the program of envoyproxy/ratelimit.
			{name: "bin/", mode: 0o755},
			{name: "bin/ratelimit", mode: 0o777, link: "/weir"},
			{name: "usr/", mode: 0o755},
			{name: "usr/share/", mode: 0o755},
			{name: "usr/share/doc/", mode: 0o755},
			{name: "usr/share/doc/weir/", mode: 0o755},
			licence,
			{name: "usr/share/doc/weir/THIRD-PARTY", mode: 0o644, data: licences},
		},
	} {
		data, err := tarOf(entries, r.time)
		if err != nil {
			return nil, err
		}
		open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }
		layer, err := tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer),
			tarball.WithCompressionLevel(gzip.DefaultCompression), tarball.WithCompressedCaching)
		if err != nil {
			return nil, err
		}
		layers = append(layers, layer)
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	if img, err = mutate.AppendLayers(img, layers...); err != nil {
		return nil, err
	}
	file, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Config, file.Created = t.os, t.arch, config, v1.Time{Time: r.time}
	return mutate.ConfigFile(img, file)
}

// authorities are the certificate authorities that Mozilla trusts in general, from Go's module of
// them: the same bytes from the same commit.
func authorities() []byte {
	var out bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) //nolint:errcheck // into memory
		}
	}
	return out.Bytes()
}

// userOf is the number of the user that containers run as.
func userOf(config v1.Config) int {
	user, _, _ := strings.Cut(config.User, ":")
	id, _ := strconv.Atoi(user) // dockerConfig has looked at it
	return id
}

// writeLayout writes an OCI layout as a tar.
func (r *release) writeLayout(index v1.ImageIndex) error {
	folder, err := os.MkdirTemp("", "weir-image")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	path, err := layout.Write(folder, empty.Index)
	if err != nil {
		return err
	}
	reference := map[string]string{"org.opencontainers.image.ref.name": "weir:" + r.version}
	if err := path.AppendIndex(index, layout.WithAnnotations(reference)); err != nil {
		return err
	}
	var entries []entry
	err = fs.WalkDir(os.DirFS(folder), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		e := entry{name: name + "/", mode: 0o755}
		if !d.IsDir() {
			e, err = readEntry(filepath.Join(folder, name), name, 0o644)
		}
		entries = append(entries, e)
		return err
	})
	if err != nil {
		return err
	}
	data, err := tarOf(entries, r.time)
	if err != nil {
		return err
	}
	return os.WriteFile(r.file("image.tar"), data, 0o644)
}

// dockerConfig is how containers of the Dockerfile's last stage run. An instruction that it does
// not know is an error, so that the image of a release is the one that the Dockerfile makes.
func dockerConfig() (c v1.Config, err error) {
	data, err := os.ReadFile(filepath.Join(root, "Dockerfile"))
	if err != nil {
		return c, err
	}
	_, last, found := strings.Cut(string(data), "\nFROM scratch\n")
	if !found {
		return c, fmt.Errorf("the Dockerfile has no stage FROM scratch")
	}
	for line := range strings.SplitSeq(strings.ReplaceAll(last, "\\\n", " "), "\n") {
		word, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		text = strings.TrimSpace(text)
		switch word {
		case "", "#", "COPY": // what is copied is in image
		case "ENV":
			c.Env = append(c.Env, strings.Fields(text)...)
		case "WORKDIR":
			c.WorkingDir = text
		case "USER":
			c.User = text
			if userOf(c) == 0 {
				err = fmt.Errorf("USER %s is root, or no number", text)
			}
		case "EXPOSE":
			c.ExposedPorts = map[string]struct{}{}
			for port := range strings.FieldsSeq(text) {
				c.ExposedPorts[port+"/tcp"] = struct{}{}
			}
		case "HEALTHCHECK":
			c.Healthcheck, err = healthcheck(text)
		case "ENTRYPOINT":
			err = json.Unmarshal([]byte(text), &c.Entrypoint)
		case "CMD":
			err = json.Unmarshal([]byte(text), &c.Cmd)
		default:
			err = fmt.Errorf("an instruction that this program does not know")
		}
		if err != nil {
			return c, fmt.Errorf("the line %q of the Dockerfile: %w", line, err)
		}
	}
	// Docker sets it if the file does not.
	if !slices.ContainsFunc(c.Env, func(s string) bool { return strings.HasPrefix(s, "PATH=") }) {
		c.Env = append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, c.Env...)
	}
	return c, nil
}

// healthcheck reads flags, CMD and an array of words.
func healthcheck(text string) (*v1.HealthConfig, error) {
	flags, command, _ := strings.Cut(text, "CMD ")
	h := &v1.HealthConfig{}
	var words []string
	if err := json.Unmarshal([]byte(command), &words); err != nil {
		return nil, err
	}
	h.Test = append([]string{"CMD"}, words...)
	times := map[string]*time.Duration{
		"--interval": &h.Interval, "--timeout": &h.Timeout, "--start-period": &h.StartPeriod,
	}
	for flag := range strings.FieldsSeq(flags) {
		key, value, _ := strings.Cut(flag, "=")
		d, err := time.ParseDuration(value)
		if times[key] == nil || err != nil {
			return nil, fmt.Errorf("%s is not known (%v)", flag, err)
		}
		*times[key] = d
	}
	return h, nil
}
