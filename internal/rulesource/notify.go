package rulesource

import (
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/fsnotify/fsnotify"
)

// event is a kind of change in the watched folders.
type event uint8

const (
	// anything but a rule file changed, perhaps a folder or a link: look soon
	nearby  event = iota + 1
	touched       // a rule file was written, made, renamed or removed
)

// notifier turns file-system events into the two that matter. Without a working watcher it is
// silent, and the folder is only looked through from time to time.
type notifier struct {
	path    string
	single  string // base name if path is a file
	events  chan event
	log     *slog.Logger
	watcher *fsnotify.Watcher
	watched map[string]fs.FileInfo // folders that are watched
	failed  bool                   // that some folder cannot be watched was logged
	done    chan struct{}
}

func newNotifier(path string, log *slog.Logger) *notifier {
	n := &notifier{path: path, events: make(chan event), log: log, watched: map[string]fs.FileInfo{},
		done: make(chan struct{})}
	if info, err := os.Stat(path); err == nil && !info.IsDir() {
		n.single = filepath.Base(path)
	}
	w, err := fsnotify.NewWatcher()
	if err != nil {
		n.complain(err)
		close(n.done)
		return n
	}
	n.watcher = w
	go n.forward()
	return n
}

// forward runs until the watcher is closed.
func (n *notifier) forward() {
	defer close(n.done)
	var waiting event // the strongest event that nobody took yet
	for {
		var out chan event
		if waiting != 0 {
			out = n.events
		}
		select {
		case e, ok := <-n.watcher.Events:
			if !ok {
				return
			}
			waiting = max(waiting, n.classify(e))
		case _, ok := <-n.watcher.Errors:
			if !ok {
				return
			}
			waiting = max(waiting, nearby) // events were lost
		case out <- waiting:
			waiting = 0
		}
	}
}

// classify returns the event that a change of the file system means; 0 for none.
func (n *notifier) classify(e fsnotify.Event) event {
	base := filepath.Base(e.Name)
	if base == n.single || n.single == "" && IsRuleFile(base) {
		if e.Op == fsnotify.Chmod {
			return nearby
		}
		return touched
	}
	// A Kubernetes ConfigMap changes by a rename of the link "..data" beside the files.
	structural := e.Has(fsnotify.Create) || e.Has(fsnotify.Rename) || e.Has(fsnotify.Remove)
	if structural && (!strings.HasPrefix(base, ".") || strings.HasPrefix(base, "..")) {
		return nearby
	}
	return 0
}

// follow watches the folders that now hold rule files, and the parent of path, to notice when path
// itself is replaced.
func (n *notifier) follow() {
	if n.watcher == nil {
		return
	}
	_, folders, err := list(n.path)
	if err != nil {
		folders = nil // the parent of a missing folder reports when it comes
	}
	wanted := map[string]bool{filepath.Dir(filepath.Clean(n.path)): true}
	for _, dir := range folders {
		wanted[dir] = true
	}
	for dir := range n.watched {
		if !wanted[dir] {
			_ = n.watcher.Remove(dir) // it may be gone already
			delete(n.watched, dir)
		}
	}
	for dir := range wanted {
		info, err := os.Stat(dir)
		if err != nil {
			continue
		}
		if old, ok := n.watched[dir]; ok {
			if os.SameFile(old, info) {
				continue
			}
			_ = n.watcher.Remove(dir)
			delete(n.watched, dir)
		}
		if err := n.watcher.Add(dir); err != nil {
			n.complain(err)
			continue
		}
		n.watched[dir] = info
	}
}

func (n *notifier) complain(err error) {
	if !n.failed {
		n.failed = true
		n.log.Warn("rules folder cannot be watched, changes are seen more slowly", "path", n.path, "error", err.Error())
	}
}

func (n *notifier) close() {
	if n.watcher != nil {
		_ = n.watcher.Close()
	}
	<-n.done
}
