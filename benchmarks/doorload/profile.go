package main

import (
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

// profile loads each door of the first program for some seconds, with all loads in turn, and writes
// a processor profile of the server meanwhile: for scripts/measure pgo.
func (p plan) profile(upstream string, progress io.Writer) error {
	s, err := startServer(p.a, upstream, p.procs)
	if err != nil {
		return err
	}
	defer s.stop()
	for _, door := range p.doors {
		fmt.Fprintf(progress, "profile of %s\n", door)
		done := make(chan error, 1)
		seconds := int(math.Ceil(p.profileFor.Seconds()))
		go func() {
			done <- fetch(fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", s.log.address("admin"), seconds),
				filepath.Join(p.profiles, door+".pprof"))
		}()
		for under := true; under; {
			for _, load := range loads {
				if _, err := s.measure(door, load.path, load.keys, p.requests); err != nil {
					return fmt.Errorf("%s, %s: %w", door, load.name, err)
				}
			}
			select {
			case err := <-done:
				if err != nil {
					return err
				}
				under = false
			default:
			}
		}
	}
	return nil
}

// fetch writes the body at a URL into a file.
func fetch(url, path string) error {
	client := &http.Client{Timeout: 5 * time.Minute}
	resp, err := client.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %.200s", url, resp.Status, data)
	}
	if err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o644)
}
