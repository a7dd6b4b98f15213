package fleet

import (
	"sync"
	"time"

	"github.com/weir-rl/weir/internal/util/human"
)

// shownNames says how nodes are shown: by their names alone, unless other nodes answered at the
// same time that have the same name. A node that restarts has its name alone to itself.
type shownNames struct {
	mu    sync.Mutex
	longs map[string]longName // by whole name
}

// longName is how a node is shown that shares its name.
type longName struct {
	text string
	at   time.Time // when it was last seen to share it
}

// longFor is how long a node is shown with its address after it was seen to share its name: some
// questions end before all nodes have answered.
const longFor = 10 * time.Minute

// note takes the whole names of nodes that answered one question.
func (s *shownNames) note(heard []string, now time.Time) {
	names := human.NewNodeNames(heard)
	s.mu.Lock()
	defer s.mu.Unlock()
	for node, long := range s.longs {
		if now.Sub(long.at) >= longFor {
			delete(s.longs, node)
		}
	}
	for _, node := range heard {
		text := names.Shown(node)
		if before := s.longs[node].text; len(text) >= len(before) && text != human.ParseNodeName(node).Name {
			if s.longs == nil {
				s.longs = map[string]longName{}
			}
			s.longs[node] = longName{text, now}
		}
	}
}

// of returns how a node is shown.
func (s *shownNames) of(node string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if long, ok := s.longs[node]; ok {
		return long.text
	}
	return human.ParseNodeName(node).Name
}
