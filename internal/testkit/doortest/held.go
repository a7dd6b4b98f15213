package doortest

import (
	"fmt"
	"os"
	"sync"
)

// Holding runs the tests of a package, and holds all that Ask is answered against a description: an
// answer that is not as described makes the run fail, whatever the test looks at. It is for
// TestMain.
type Holding struct {
	Tests       interface{ Run() int } // a testing.M
	Description []byte
}

var held struct {
	sync.Mutex
	by     *Described
	faults []string
}

// Run runs the tests, and returns the status with which the program is to end.
func (h Holding) Run() int {
	d, err := ReadDescription(h.Description)
	if err != nil {
		fmt.Fprintf(os.Stderr, "FAIL: the description cannot be read: %v\n", err)
		return 1
	}
	held.by = d
	status := h.Tests.Run()
	held.Lock()
	defer held.Unlock()
	for _, fault := range held.faults {
		fmt.Fprintf(os.Stderr, "FAIL: an answer is not as described: %s\n", fault)
	}
	if len(held.faults) > 0 {
		return 1
	}
	return status
}

// hold notes what in an answer is not as described.
func hold(method, target string, a Answer) {
	if held.by == nil {
		return
	}
	if err := held.by.Hold(method, target, a); err != nil {
		held.Lock()
		held.faults = append(held.faults, fmt.Sprintf("%s %.200s: %v", method, target, err))
		held.Unlock()
	}
}
