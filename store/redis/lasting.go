package redis

import (
	"crypto/tls"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/rueidis"

	"github.com/weir-rl/weir/store"
)

// lasting returns err as a store.LastingError, if it is an error of Redis that does not pass by
// itself; else err.
func (t *target) lasting(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*store.LastingError](err); ok {
		return err
	}
	advice := ""
	if answer, ok := errors.AsType[*rueidis.RedisError](err); ok {
		advice = t.adviceOn(answer.Error())
	} else if header, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		advice = fmt.Sprintf(
			"Redis at %s does not speak TLS (%s): write redis:// in place of rediss:// in the store's URL, or name its port for TLS", t, header.Msg)
	} else if certificate, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		advice = fmt.Sprintf(
			"Redis at %s shows a certificate that cannot be believed (%v): name its authority with ca= in the store's URL, or give the server another certificate", t, certificate.Err)
	}
	if advice == "" {
		return err
	}
	return &store.LastingError{Advice: advice, Err: brief{err}}
}

// brief is an error of Redis without the arguments of the command, one of which may be all of the
// library.
type brief struct{ error }

func (e brief) Error() string {
	text, _, _ := strings.Cut(e.error.Error(), ", with args beginning with")
	return text
}

func (e brief) Unwrap() error { return e.error }

// adviceOn returns the advice for an operator about an answer of Redis; "" if the fault may pass by
// itself.
func (t *target) adviceOn(answer string) string {
	lower := strings.ToLower(answer)
	code, _, _ := strings.Cut(answer, " ")
	user := t.user
	if user == "" {
		user = "default"
	}
	switch {
	case strings.Contains(lower, "unknown command") &&
		(strings.Contains(lower, "script") || strings.Contains(lower, "evalsha")):
		return fmt.Sprintf(
			"Redis at %s has neither functions (FUNCTION, FCALL: Redis 7, Valkey 7.2) nor scripts (SCRIPT, EVALSHA): let it have one of the two, or name another server in the store's URL", t)
	case code == "NOPERM", strings.Contains(lower, "the user executing the script can't"):
		return fmt.Sprintf(
			"Redis at %s does not let the user %s do what Weir needs: give it the permissions that docs/operating/redis.md lists (ACL SETUSER %s …)", t, user, user)
	case code == "WRONGPASS", code == "NOAUTH":
		return fmt.Sprintf(
			"Redis at %s does not let the user %s in: correct the user and the password in the store's URL", t, user)
	case code == "WRONGTYPE":
		return fmt.Sprintf(
			"a key of Weir in Redis at %s holds a value of another type, which some other program wrote: delete that key, or give Weir's keys another beginning with redis.prefix", t)
	case code == "DENIED":
		return fmt.Sprintf(
			"Redis at %s is in protected mode, and takes nobody from another machine: set a password there, and name it in the store's URL", t)
	case code == "MOVED" && !t.cluster:
		return fmt.Sprintf("Redis at %s is a node of a Redis Cluster: write redis+cluster:// in the store's URL", t)
	case strings.Contains(lower, "cluster support disabled"):
		return fmt.Sprintf(
			"Redis at %s is no Redis Cluster: write redis:// in place of redis+cluster:// in the store's URL", t)
	case strings.Contains(lower, "db index is out of range"), strings.Contains(lower, "select is not allowed"):
		return fmt.Sprintf(
			"Redis at %s has no database of that number: leave the number out of the store's URL, or raise databases in the server's configuration", t)
	}
	return ""
}
