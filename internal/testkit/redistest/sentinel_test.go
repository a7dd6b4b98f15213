package redistest

import (
	"regexp"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/effort"
)

func TestSentinel(t *testing.T) {
	effort.Long(t, "waits for two real failovers")
	t.Parallel()
	s := StartSentinel(t, "requirepass secret")
	if !regexp.MustCompile(
		`^redis\+sentinel://:secret@127\.0\.0\.1:\d+,127\.0\.0\.1:\d+,127\.0\.0\.1:\d+/mymaster$`).MatchString(
		s.URL()) {
		t.Error(s.URL())
	}
	first := s.Master()
	if first != s.Servers()[0] {
		t.Errorf("the master is %s", first.Addr())
	}
	first.Do("SET", "key", "value")
	if n := first.Do("WAIT", "2", "5000"); n != int64(2) {
		t.Fatalf("%v replicas have the key", n)
	}
	second := s.Failover()
	if second == first || second != s.Master() || second.Do("GET", "key") != "value" {
		t.Fatalf("from %s to %s", first.Addr(), second.Addr())
	}
	second.Do("SET", "key", "newer")
	if killed := s.KillMaster(); killed != second {
		t.Fatalf("%s was killed, not %s", killed.Addr(), second.Addr())
	}
	third := s.AwaitMaster(second)
	if third == second || third.Do("GET", "key") != "newer" {
		t.Fatalf("from %s to %s", second.Addr(), third.Addr())
	}
}
