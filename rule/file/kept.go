package file

import (
	"crypto/sha256"

	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file/internal/message"
)

// Kept are the files that one Load has read for the next one, so that only files that changed are
// read again. It keeps files of descriptors alone that say nothing but what the Lyft form of
// envoyproxy/ratelimit knows, without a warning; all others are read each time. The zero value is
// ready. Not safe for concurrent use.
//
// All Loads of one Kept must have the same Options.
type Kept struct {
	files map[keptKey]*keptFile // of the last Load
	next  map[keptKey]*keptFile // of the one under way
	reads int
}

// keptKey names a file with its contents.
type keptKey struct {
	name string
	data [sha256.Size]byte
}

// keptFile is a file that was read, and not compiled.
type keptFile struct {
	file         *rule.File
	rules, names int // that it has
}

// Reads returns how many files were read in all, the same file as often as that happened.
func (k *Kept) Reads() int { return k.reads }

func keyOf(s Source) keptKey { return keptKey{s.Name, sha256.Sum256(s.Data)} }

// recall takes s from the files that are kept, if it is there.
func (l *loader) recall(s Source) bool {
	if l.kept == nil {
		return false
	}
	key := keyOf(s)
	k := l.kept.files[key]
	if k == nil || l.rules+k.rules > maxRules || l.compiled.names+k.names > maxNames {
		return false // past the bounds read says so
	}
	f, ok := k.file.Copy()
	if !ok {
		return false
	}
	l.origins = append(l.origins, f.Origin.(*message.Origin))
	l.files = append(l.files, f)
	l.rules += k.rules
	l.compiled.names += k.names
	l.kept.remember(key, k)
	return true
}

// keep keeps s, the last file that was read, if that is possible.
func (l *loader) keep(s Source, rules, names int) {
	if l.kept == nil {
		return
	}
	if f, ok := l.files[len(l.files)-1].Copy(); ok {
		l.kept.remember(keyOf(s), &keptFile{f, rules, names})
	}
}

func (k *Kept) remember(key keptKey, f *keptFile) {
	if k.next == nil {
		k.next = map[keptKey]*keptFile{}
	}
	k.next[key] = f
}

// done ends a Load: only its own files are kept.
func (k *Kept) done() {
	if k != nil {
		k.files, k.next = k.next, nil
	}
}
