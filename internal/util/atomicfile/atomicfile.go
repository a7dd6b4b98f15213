// Package atomicfile replaces files as a whole. Begin with Write.
package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Write puts a file that write fills in the place of the one at path, with mode 0600. At any time,
// also after a crash, the old or the new one is there, whole; if Write fails it is the old one,
// unless only the folder could not be synced. Until then the new one is path with ".tmp" behind it.
// All of that holds for one process at a time: if two write the same file, both may fail, and for
// a moment it may not be whole.
func Write(path string, write func(*os.File) error) (err error) {
	temporary := path + ".tmp"
	if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(temporary, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	replaced := false
	defer func() {
		if err != nil {
			_ = f.Close()
			if !replaced {
				_ = os.Remove(temporary)
			}
		}
	}()
	if err := write(f); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	mine, err := f.Stat()
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if now, err := os.Lstat(temporary); err != nil || !os.SameFile(now, mine) {
		replaced = true
		return errors.Join(err, fmt.Errorf("%s was replaced by another process", temporary))
	}
	if err := os.Rename(temporary, path); err != nil {
		return err
	}
	return SyncFolder(filepath.Dir(path))
}

// SyncFolder makes the names in a folder outlive a crash of the machine.
func SyncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// Aside returns the path at which a damaged file is kept, so that it can be looked at.
func Aside(path string) string {
	return path + ".damaged-" + time.Now().UTC().Format("20060102T150405.000000000Z")
}
