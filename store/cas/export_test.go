package cas

// Flying returns how many calls to the engine are under way.
func (s *Store) Flying() int64 { return s.server.flying.Load() }

// Waiting returns how many calls wait in the queue.
func (s *Store) Waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queue)
}

// Counted returns the bytes that are counted of the values that this node remembers, and those that
// they take.
func (s *Store) Counted() (counted, taken int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.known.m {
		if e.owner == nil {
			taken += len(e.name) + entryBytes + cap(e.data) + cap(e.spare)
		}
	}
	return s.known.bytes, taken
}
