// Package exit ends the programs that measure.
package exit

import (
	"errors"
	"flag"
	"fmt"
	"os"
)

// With ends the program with what became of it: it prints an error behind the program's name, and
// exits with 1; with 2 where usage was asked for, which is printed already. Without an error it
// returns.
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
