package redis

import "github.com/redis/rueidis"

// Client returns the store's connection, for other uses of the same Redis: not for decisions, which
// have one of their own. It is the store's: it must not be closed, and not be kept, since it may be
// another one later. The error tells why there is none.
func (s *Store) Client() (rueidis.Client, error) {
	c, err := s.connected()
	if err != nil {
		return nil, err
	}
	return c.other, nil
}
