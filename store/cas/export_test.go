package cas

// Flying returns how many calls to the engine are under way.
func (s *Store) Flying() (n int64) {
	for i := range s.parts {
		n += s.parts[i].flying.Load()
	}
	return n
}

// Waiting returns how many calls wait in the queue.
func (s *Store) Waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queue)
}
