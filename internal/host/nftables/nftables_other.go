//go:build !linux

package nftables

import (
	"errors"
	"net/netip"
)

// kernel stands in for the kernel on systems without nftables.
type kernel struct{}

var errNoNFTables = errors.New("ban: nftables is there on Linux only; leave it out of the rule's at")

func isGone(error) bool { return false }

func (k *kernel) open(*Options) error       { return errNoNFTables }
func (k *kernel) make() error               { return errNoNFTables }
func (k *kernel) put([]Entry) error         { return errNoNFTables }
func (k *kernel) remove(netip.Prefix) error { return errNoNFTables }
func (k *kernel) list() ([]Entry, error)    { return nil, errNoNFTables }
func (k *kernel) drop() error               { return errNoNFTables }
