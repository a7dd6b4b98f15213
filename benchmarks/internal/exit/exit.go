// Package exit ends the programs that measure.
package exit

import (
	"errors"
	"flag"
	"fmt"
	"os"
)

// With ends the program if err is not nil. It prints the error after the program's name and exits
// with status 1, or, for flag.ErrHelp, prints nothing and exits with status 2, since the usage is
// printed already. Without an error it returns.
func With(name string, err error) {
	switch {
	case err == nil:
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	default:
		fmt.Fprintln(os.Stderr, name+":", err)
		os.Exit(1)
	}
}
