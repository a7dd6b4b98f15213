package algo

// Settle replaces a charge of reserved, which was admitted at the instant at, by a charge of
// actual. Units reserved in excess go back as in GiveBack. Missing units are charged even without
// room for them, so that later requests make up for them. A bucket's debt ends where the bucket is
// empty, and a SlidingLog keeps at most one unit more than its capacity. If others have used a
// bucket that is refilled at intervals since the charge, an interval that this has begun goes on,
// also where actual is 0. LeakyBucket and Concurrency leave s as it is: their turns and slots
// cannot be changed afterwards. The state of a soft margin that closes is not touched. While a
// schedule sets no limit, s is settled under one of its limits. lease is as in GiveBack.
func (l *Limit) Settle(s, lease *State, now, at, reserved, actual int64) {
	l.beside(s, lease, now, func() { l.settle(s, now, at, reserved, actual) })
}

func (l *Limit) settle(s *State, now, at, reserved, actual int64) {
	now, reserved, actual = max(now, 0), max(reserved, 0), min(max(actual, 0), MaxCost)
	if actual <= reserved {
		l.giveBack(s, now, at, reserved-actual)
		return
	}
	l.inForce(now).charge(s, now, actual-reserved)
}
