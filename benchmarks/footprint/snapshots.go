package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// snapshots fills a server with keys and takes a snapshot of them. It changes one in a hundred, and
// measures how much the next one writes. It then kills the server, and starts another one with the
// file.
func (p *plan) snapshots(f *figures, k int) error {
	dir, err := os.MkdirTemp("", "footprint")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "weir.snapshot")
	every := 10 * time.Second
	args := []string{"--snapshot-path", path, "--snapshot-every", every.String()}
	s, err := launch(p.programs[k], dir, args...)
	if err != nil {
		return err
	}
	defer func() { s.kill() }()
	if err := s.charge(0, p.snapshot); err != nil {
		return err
	}
	// nothing changes for two intervals: all is in the file
	time.Sleep(2*every + every/2)
	var bytes, cpu [2]float64
	read := func(i int) error {
		n, err := s.written()
		if err != nil {
			return err
		}
		used, err := s.processorTime()
		bytes[i], cpu[i] = n, used.Seconds()
		return err
	}
	name := fmt.Sprintf("snapshot of %d keys", p.snapshot)
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	f.add(k, name+": the file", "MB", float64(info.Size())/1e6)
	changed := p.snapshot / 100
	if err := s.charge(p.snapshot, p.snapshot+changed); err != nil {
		return err
	}
	if err := read(0); err != nil {
		return err
	}
	time.Sleep(every)
	if err := read(1); err != nil {
		return err
	}
	f.add(k, name+": the next one writes, 1 in 100 new", "MB", (bytes[1]-bytes[0])/1e6)
	f.add(k, name+": … and takes of a processor", "ms", (cpu[1]-cpu[0])*1e3)
	s.kill()
	begin := time.Now()
	if s, err = launch(p.programs[k], dir, args...); err != nil {
		return err
	}
	if err := s.ask(); err != nil {
		return err
	}
	f.add(k, name+": start with it to the first decision", "ms", time.Since(begin).Seconds()*1e3)
	refused, err := s.throttle(p.snapshot-1000, p.snapshot+changed)
	if err != nil {
		return err
	}
	if refused != 1000+changed {
		return fmt.Errorf("%s: of %d keys that had used their limit, %d were refused after the restart", p.programs[k],
			1000+changed, refused)
	}
	return nil
}
