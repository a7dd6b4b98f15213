package broker

// maxMinShares shares sum out to those that want something, max-min fair: nobody gets more than
// wanted, and nobody gets less than another who wants as much or more, unless it is all that was
// wanted. Indivisible rests go to the first. out is filled in, and has the length of wants.
func maxMinShares(wants []int64, sum int64, out []int64) {
	clear(out)
	sum = max(sum, 0)
	for {
		open, least := int64(0), int64(0)
		for i, w := range wants {
			if left := w - out[i]; left > 0 {
				if open++; open == 1 || left < least {
					least = left
				}
			}
		}
		if open == 0 || sum == 0 {
			return
		}
		each := min(least, sum/open)
		rest := int64(0)
		if each == 0 { // less than one for each
			rest = sum
		}
		for i, w := range wants {
			switch left := w - out[i]; {
			case left <= 0:
			case each > 0:
				out[i] += each
				sum -= each
			case rest > 0:
				out[i]++
				sum--
				rest--
			}
		}
	}
}
