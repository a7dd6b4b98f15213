//go:build unix

package pgtest

import (
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"syscall"
)

// ownerOfServers returns the user of this process, and in place of root one that Debian's package
// has made, or else nobody.
func ownerOfServers() (*account, error) {
	if os.Getuid() != 0 {
		return &account{name: strconv.Itoa(os.Getuid())}, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		if u, err = user.Lookup("nobody"); err != nil {
			return nil, err
		}
	}
	a := &account{name: u.Username, other: true}
	if a.uid, err = strconv.Atoi(u.Uid); err != nil {
		return nil, err
	}
	a.gid, err = strconv.Atoi(u.Gid)
	return a, err
}

// run has a command run as this user.
func (a *account) run(cmd *exec.Cmd) {
	if a.other {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}}
	}
}
