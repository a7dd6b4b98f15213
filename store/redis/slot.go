package redis

import "strconv"

// slots is the number of hash slots of a Redis Cluster.
const slots = 16384

// slotOf returns the slot of a key: CRC-16/XMODEM of its hash tag (Redis Cluster specification,
// "Key distribution model").
func slotOf(tag string) int {
	crc := uint16(0)
	for i := range len(tag) {
		crc ^= uint16(tag[i]) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return int(crc) % slots
}

// hashTags returns n hash tags, one in each of n equal parts of the slots, in their order, so that
// they are spread evenly over masters that hold ranges of slots.
func hashTags(n int) []string {
	tags := make([]string, n)
	for i, left := 0, n; left > 0; i++ {
		name := strconv.Itoa(i)
		if at := slotOf(name) * n / slots; tags[at] == "" {
			tags[at] = "{" + name + "}"
			left--
		}
	}
	return tags
}
