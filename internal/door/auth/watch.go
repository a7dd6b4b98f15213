package auth

import (
	"crypto/sha256"
	"sync"
)

// watched are the tokens that somebody watches.
type watched struct {
	mu  sync.Mutex
	all map[*watch]struct{}
}

// watch is one use of a token that lasts.
type watch struct {
	hash [sha256.Size]byte
	gone func()
}

// Watch calls gone once, in a goroutine of its own, as soon as the token of that text is no longer
// there or no longer opens the decision doors, and at once if it is so already. It is for a
// connection or a stream that was opened with the token, which is not asked for again there. stop
// ends the watching; gone may be called for a moment after that.
func (t *Tokens) Watch(token string, gone func()) (stop func()) {
	w := &watch{hash: sha256.Sum256([]byte(token)), gone: gone}
	t.watched.mu.Lock()
	if t.watched.all == nil {
		t.watched.all = map[*watch]struct{}{}
	}
	t.watched.all[w] = struct{}{}
	t.watched.mu.Unlock()
	t.lookAt(w) // it may have gone since it was checked
	return func() {
		t.watched.mu.Lock()
		defer t.watched.mu.Unlock()
		delete(t.watched.all, w)
	}
}

// WatchBearer is Watch with the value of an Authorization header.
func (t *Tokens) WatchBearer(authorization string, gone func()) (stop func()) {
	token, _ := bearerToken(authorization)
	return t.Watch(token, gone)
}

// lookAll notifies the connections whose token has gone. It is called when the tokens have changed.
func (t *Tokens) lookAll() {
	t.watched.mu.Lock()
	all := make([]*watch, 0, len(t.watched.all))
	for w := range t.watched.all {
		all = append(all, w)
	}
	t.watched.mu.Unlock()
	for _, w := range all {
		t.lookAt(w)
	}
}

func (t *Tokens) lookAt(w *watch) {
	if k := t.byHash(w.hash); k != nil && k.Role >= Operator {
		return
	}
	t.watched.mu.Lock()
	_, there := t.watched.all[w]
	delete(t.watched.all, w)
	t.watched.mu.Unlock()
	if there {
		go w.gone()
	}
}
