package resp

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/weir-rl/weir/internal/door/auth"
	"github.com/weir-rl/weir/internal/util/chars"
)

// handler answers a command that decides nothing; args are those after its name.
type handler func(c *conn, args [][]byte) error

// spec is a command, as COMMAND describes it.
type spec struct {
	name    string // in lower case
	arity   int    // with the name; negative: at least
	flags   []string
	key     int // place of the key; 0 for none
	group   string
	summary string
	handle  handler // nil for a verb
}

// specs are all commands, in the order of COMMAND's answer.
var (
	specs  []spec
	specOf = map[string]*spec{} // by name
)

// init makes specs, to which handlers refer.
func init() {
	fast := []string{"fast", "loading", "stale"}
	specs = []spec{
		{"cl.throttle", -5, []string{"write", "fast"}, 1, "module",
			"CL.THROTTLE key max_burst count period [quantity]: decides as redis-cell does", nil},
		{"throttle", -5, []string{"write", "fast"}, 1, "module",
			"THROTTLE key max_burst count period [quantity]: decides as throttlecrab does", nil},
		{"weir.limit", -5, []string{"write", "fast"}, 0, "module",
			"WEIR.LIMIT domain hits attribute value [attribute value ...] [FULL]: decides by the rules", nil},
		{"weir.release", 2, []string{"write", "fast"}, 0, "module",
			"WEIR.RELEASE slot: gives back a slot that WEIR.LIMIT with FULL named", (*conn).release},
		{"auth", -2, append([]string{"no_auth"}, fast...), 0, "connection", "Authenticates the connection",
			(*conn).auth},
		{"client", -2, fast, 0, "connection", "Tells of the connection, and names it", (*conn).client},
		{"command", -1, fast, 0, "server", "Tells of commands", (*conn).commandCommand},
		{"config", -2, fast, 0, "server", "CONFIG GET tells what clients ask for", (*conn).config},
		{"echo", 2, fast, 0, "connection", "Returns its argument", (*conn).echo},
		{"hello", -1, append([]string{"no_auth"}, fast...), 0, "connection", "Chooses the protocol", (*conn).hello},
		{"info", -1, fast, 0, "server", "Tells of the server", (*conn).info},
		{"ping", -1, fast, 0, "connection", "Answers PONG, or its argument", (*conn).ping},
		{"quit", -1, append([]string{"no_auth"}, fast...), 0, "connection", "Closes the connection",
			(*conn).quitCommand},
		{"reset", 1, append([]string{"no_auth"}, fast...), 0, "connection", "Makes the connection as new",
			(*conn).resetCommand},
		{"select", 2, fast, 0, "connection", "There is the database 0", (*conn).selectCommand},
	}
	for i := range specs {
		specOf[specs[i].name] = &specs[i]
	}
}

// lookUp finds a command by its name in any case.
func lookUp(name []byte) *spec {
	var lower [16]byte
	if len(name) > len(lower) {
		return nil
	}
	for i, c := range name {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		lower[i] = c
	}
	return specOf[string(lower[:len(name)])]
}

// opensDoors reports whether a command may come before authentication.
func opensDoors(name []byte) bool {
	s := lookUp(name)
	return s != nil && s.flags[0] == "no_auth"
}

// other answers a command that decides nothing. An error ends the connection.
func (c *conn) other(args [][]byte) error {
	s := lookUp(args[0])
	switch {
	case s == nil && bytes.EqualFold(args[0], []byte("cluster")):
		c.error("ERR This instance has cluster support disabled") // by these words clients know
	case s == nil:
		c.error("ERR unknown command '" + shown(args[0]) + "'; COMMAND LIST tells which there are")
	case len(args) != s.arity && (s.arity > 0 || len(args) < -s.arity):
		c.error("ERR wrong number of arguments for '" + s.name + "' command")
	default:
		return s.handle(c, args[1:])
	}
	return nil
}

func (c *conn) error(text string) { c.out = appendError(c.out, text) }

func (c *conn) ok() error {
	c.out = append(c.out, ok...)
	return nil
}

func (c *conn) ping(args [][]byte) error {
	switch len(args) {
	case 0:
		c.out = append(c.out, "+PONG\r\n"...)
	case 1:
		c.out = appendBulk(c.out, chars.View(args[0]))
	default:
		c.error("ERR wrong number of arguments for 'ping' command")
	}
	return nil
}

func (c *conn) echo(args [][]byte) error {
	c.out = appendBulk(c.out, chars.View(args[0]))
	return nil
}

func (c *conn) selectCommand(args [][]byte) error {
	switch n, isNumber := parseInt(args[0]); {
	case !isNumber:
		c.error("ERR value is not an integer or out of range")
	case n != 0:
		c.error("ERR DB index is out of range: there is only 0")
	default:
		return c.ok()
	}
	return nil
}

func (c *conn) quitCommand([][]byte) error {
	c.quit = true
	return c.ok()
}

func (c *conn) resetCommand([][]byte) error {
	c.resp3, c.name, c.lib = false, "", ""
	c.setAuthed(false)
	c.out = append(c.out, "+RESET\r\n"...)
	return nil
}

// setAuthed also sets how large the commands may be.
func (c *conn) setAuthed(authed bool) {
	c.authed = authed
	c.stopWatch()
	c.most, c.mostArgs = maxCommand, maxArgs
	if c.o.Required && !authed {
		c.most, c.mostArgs = maxStrangerCommand, maxStrangerArgs
	}
}

func (c *conn) auth(args [][]byte) error {
	if len(args) > 2 {
		c.error("ERR syntax error")
		return nil
	}
	agreed, err := c.authenticate(args[len(args)-1])
	if agreed {
		return c.ok()
	}
	return err
}

// authenticate answers a wrong password itself. An error ends the connection.
func (c *conn) authenticate(password []byte) (bool, error) {
	if c.o.Auth == nil {
		c.error("ERR AUTH <password> called without any password configured: auth.tokens_file names none")
		return false, nil
	}
	switch c.o.Auth(c.nc.RemoteAddr().String(), string(password)) {
	case auth.Right:
		c.setAuthed(true)
		if c.o.Watch != nil {
			c.unwatch = c.o.Watch(string(password), c.revoke)
		}
		return true, nil
	case auth.TooMany:
		c.error("ERR too many wrong passwords came from this address; try again in a few seconds")
		return false, errGuesses
	case auth.Forbidden:
		c.error("NOPERM the role of this token does not open this door; it needs operator, editor or admin")
		return false, nil
	}
	c.error("WRONGPASS invalid username-password pair or user is disabled.")
	if c.guesses++; c.guesses >= maxGuesses {
		return false, errGuesses
	}
	return false, nil
}

// hello answers HELLO [2|3 [AUTH user password] [SETNAME name]].
func (c *conn) hello(args [][]byte) error {
	resp3 := c.resp3
	if len(args) > 0 {
		n, isNumber := parseInt(args[0])
		switch {
		case !isNumber:
			c.error("ERR Protocol version is not an integer or out of range")
			return nil
		case n != 2 && n != 3:
			c.error("NOPROTO unsupported protocol version")
			return nil
		}
		resp3, args = n == 3, args[1:]
	}
	name, named, agreed := "", false, false
	for len(args) > 0 {
		switch {
		case len(args) >= 3 && bytes.EqualFold(args[0], []byte("auth")):
			ok, err := c.authenticate(args[2])
			if !ok {
				return err
			}
			args, agreed = args[3:], true
		case len(args) >= 2 && bytes.EqualFold(args[0], []byte("setname")):
			if name, named = string(args[1]), true; !isName(args[1]) {
				c.error(errName)
				return nil
			}
			args = args[2:]
		default:
			c.error("ERR Syntax error in HELLO option '" + shown(args[0]) + "'")
			return nil
		}
	}
	if c.o.Required && !c.authed && !agreed {
		c.error(
			"NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time")
		return nil
	}
	if c.resp3 = resp3; named {
		c.name = name
	}
	protocol := int64(2)
	if resp3 {
		protocol = 3
	}
	c.out = appendMap(c.out, resp3, 7)
	c.out = appendBulk(appendBulk(c.out, "server"), "weir")
	c.out = appendBulk(appendBulk(c.out, "version"), spokenVersion)
	c.out = appendInt(appendBulk(c.out, "proto"), protocol)
	c.out = appendInt(appendBulk(c.out, "id"), c.id)
	c.out = appendBulk(appendBulk(c.out, "mode"), "standalone")
	c.out = appendBulk(appendBulk(c.out, "role"), "master")
	c.out = appendArray(appendBulk(c.out, "modules"), 0)
	return nil
}

const errName = "ERR Client names cannot contain spaces, newlines or special characters, and are of at most 64 bytes"

func isName(b []byte) bool {
	for _, c := range b {
		if c < '!' || c > '~' {
			return false
		}
	}
	return len(b) <= 64
}

// client answers CLIENT. What clients turn on or off by it is of no consequence here: nothing is
// evicted, and nothing is cached that could become invalid.
func (c *conn) client(args [][]byte) error {
	sub, args := strings.ToUpper(string(args[0][:min(len(args[0]), maxShown)])), args[1:]
	wants := map[string]int{"ID": 0, "GETNAME": 0, "INFO": 0, "SETNAME": 1, "SETINFO": 2, "NO-EVICT": 1, "NO-TOUCH": 1}
	n, known := wants[sub]
	switch {
	case known && n != len(args), sub == "TRACKING" && len(args) == 0:
		c.error("ERR wrong number of arguments for 'client|" + strings.ToLower(sub) + "' command")
		return nil
	case sub == "ID":
		c.out = appendInt(c.out, c.id)
	case sub == "GETNAME" && c.name == "":
		c.out = appendNull(c.out, c.resp3)
	case sub == "GETNAME":
		c.out = appendBulk(c.out, c.name)
	case sub == "SETNAME":
		if !isName(args[0]) {
			c.error(errName)
			return nil
		}
		c.name = string(args[0])
		return c.ok()
	case sub == "SETINFO":
		return c.setInfo(args[0], args[1])
	case sub == "INFO", sub == "LIST":
		c.out = appendBulk(c.out, c.describe())
	case sub == "NO-EVICT", sub == "NO-TOUCH", sub == "TRACKING", sub == "CACHING":
		return c.ok()
	default:
		c.error("ERR unknown subcommand '" + shown([]byte(sub)) +
			"' of CLIENT; there are ID, INFO, LIST, GETNAME, SETNAME, SETINFO, NO-EVICT, NO-TOUCH, TRACKING, CACHING")
	}
	return nil
}

func (c *conn) setInfo(what, value []byte) error {
	switch {
	case !isName(value):
		c.error("ERR the value cannot contain spaces, newlines or special characters, and is of at most 64 bytes")
	case bytes.EqualFold(what, []byte("lib-name")):
		c.lib = string(value)
		return c.ok()
	case bytes.EqualFold(what, []byte("lib-ver")):
		return c.ok()
	default:
		c.error("ERR Unrecognized option '" + shown(what) + "'")
	}
	return nil
}

// describe is the connection's line of CLIENT LIST.
func (c *conn) describe() string {
	protocol := "2"
	if c.resp3 {
		protocol = "3"
	}
	return "id=" + strconv.FormatInt(c.id,
		10) + " addr=" + c.nc.RemoteAddr().String() + " laddr=" + c.nc.LocalAddr().String() +
		" name=" + c.name + " db=0 lib-name=" + c.lib + " resp=" + protocol + "\n"
}
