// Package hashchain checks records of which each carries the hash of the one before it: the audit
// log, and the history of rules in a database. Begin with Chain.
//
// That the records of a chain fit together proves little. Whoever alters, leaves out, puts in or
// moves one has to compute all later hashes anew, but that takes no secret; and a chain without its
// beginning or its end fits together too. Only a hash that was noted elsewhere proves more: the
// records up to the one that has it are as they were when it was noted.
package hashchain

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// Start is the hash before the first record of a chain.
var Start = strings.Repeat("0", 2*sha256.Size)

// Sum returns the hash of a text, in hexadecimal.
func Sum(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// Chain is the end of a chain that is read or written, record by record.
type Chain struct {
	Number uint64 // of the last record; 0 before the first
	Hash   string // of the last record; "" before the first if the chain may begin anywhere
	Noted  string // a hash that was noted elsewhere; "" for none
	Upto   uint64 // the number of the record that has that hash; 0 if none was met
}

// Follow goes on to the next record, which names prev as the hash before it. The caller has
// computed hash of the record's text. An error says what is wrong with the record.
func (c *Chain) Follow(number uint64, prev, hash string) error {
	switch {
	case c.Hash != "" && prev != c.Hash:
		return errors.New("does not follow the record before it: one was altered, left out, put in or moved")
	case (c.Number > 0 || c.Hash == Start) && number != c.Number+1:
		return fmt.Errorf("has the number %d behind %d", number, c.Number)
	}
	c.Number, c.Hash = number, hash
	if hash == c.Noted {
		c.Upto = number
	}
	return nil
}
