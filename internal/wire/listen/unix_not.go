//go:build !unix

package listen

import (
	"context"
	"errors"
	"net"
)

const maxUnixPath = 103

func openUnix(context.Context, string) (net.Listener, error) {
	return nil, errors.New("unix sockets are for unix systems")
}

// MaxFiles is how many files this process may have open; 0 if that is unknown.
func MaxFiles() uint64 { return 0 }
