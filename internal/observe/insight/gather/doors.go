package gather

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/weir-rl/weir/internal/observe/insight/snapshot"
)

// doorNames numbers the doors. There are only a few.
type doorNames struct {
	list atomic.Pointer[[]string]
	mu   sync.Mutex
}

// number returns the number of a door, and gives it one if it has none. After mostDoors, further
// doors count as the first one.
func (n *doorNames) number(name string) uint8 {
	if list := n.list.Load(); list != nil {
		for i, have := range *list {
			if have == name {
				return uint8(i)
			}
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	var list []string
	if have := n.list.Load(); have != nil {
		list = *have
	}
	if i := slices.Index(list, name); i >= 0 {
		return uint8(i)
	}
	if len(list) >= snapshot.MostDoors {
		return 0
	}
	next := append(slices.Clone(list), strings.Clone(name))
	n.list.Store(&next)
	return uint8(len(list))
}

// name returns the name of a door by its number; "" if there is none.
func (n *doorNames) name(number uint8) string {
	if list := n.list.Load(); list != nil && int(number) < len(*list) {
		return (*list)[number]
	}
	return ""
}
