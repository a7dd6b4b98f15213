package sim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/lab/accesslog"
	"github.com/weir-rl/weir/internal/testkit/traffic"
	"github.com/weir-rl/weir/rule"
)

func suggestFile(t *testing.T, name string) *Suggestions {
	t.Helper()
	path := traffic.File(t, name)
	open := func() (*accesslog.Log, error) {
		return accesslog.Open([]string{path}, nil, accesslog.Options{Reorder: 900_000_000})
	}
	log, err := open()
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	rep, err := Replay(context.Background(), log, nil, ReplayOptions{Suggest: &SuggestOptions{
		Open: open, Load: func(text string) (*rule.Set, error) { return load(t, text), nil },
	}})
	if err != nil {
		t.Fatal(err)
	}
	return rep.Suggestions
}

func (s *Suggestions) limit(name string) *SuggestedLimit {
	for i := range s.Limits {
		if s.Limits[i].Name == name {
			return &s.Limits[i]
		}
	}
	return nil
}

// Hundreds of addresses abuse a sign-up form, each of them seldom. A limit that 99 % of these
// addresses stay under is no proposal; one on the form itself is.
func TestSuggestOnAbusedForm(t *testing.T) {
	s := suggestFile(t, "basjes_hackers/access.log.gz")
	l := s.limit("join_form")
	if l == nil {
		t.Fatalf("no limit on the form in\n%s", s.YAML)
	}
	if l.Per != "" || !slices.Equal(l.Allow, []string{"5/hour"}) || !strings.Contains(l.When, "path: /join_form") ||
		l.Crowd < 350 {
		t.Errorf("the limit on the form: %+v", l)
	}
	rep := replayFile(t, traffic.File(t, "basjes_hackers/access.log.gz"), s.YAML)
	var refused int64
	for _, r := range rep.ByRule {
		if r.Name == "join_form" {
			refused = int64(r.Refused)
		}
	}
	if refused != l.Refused || refused < 50 ||
		!strings.Contains(s.YAML, fmt.Sprintf("Would refuse %d of %d requests (302: %d).", l.Refused, l.Requests,
			l.Refused)) {
		t.Errorf("%d refused, promised are %d:\n%s", refused, l.Refused, s.YAML)
	}
	for _, l := range s.Limits {
		if l.Per != "" && slices.Contains(l.Allow, "2/min") {
			t.Errorf("%+v is what 99 %% of the abusers stay under", l)
		}
	}
}

// Where nobody abuses a form, no limit that all share is proposed, and the limit for each client
// fits the ordinary ones. With few keys it says that it cannot tell one in a thousand.
func TestSuggestOnOrdinaryLogs(t *testing.T) {
	s := suggestFile(t, "secrepo_202110/access.log.gz")
	l := s.limit("per-client")
	if l == nil || len(s.Limits) != 1 {
		t.Fatalf("want one limit for each client:\n%s", s.YAML)
	}
	if !strings.Contains(s.YAML, "With fewer than 1,000 the 99.9th percentile is the maximum") {
		t.Errorf("it does not say that 578 keys are few:\n%s", s.YAML)
	}
	if l.KeysRefused == 0 || l.KeysRefused > l.Outliers || l.Refused == 0 {
		t.Errorf("it should refuse outliers alone: %+v", l)
	}
	if !traffic.Full() {
		return
	}
	s = suggestFile(t, "nasa_19950801/trace.tsv.gz")
	if !strings.Contains(s.YAML, "The limits fit 99.9 % of those.") || s.limit("per-client") == nil {
		t.Errorf("2,582 keys are many:\n%s", s.YAML)
	}
}

// A route that answers badly gets a limit of its own for each client; those that are turned away
// there do not set it, and neither does one that asks for far more than all others.
func TestSuggestOnGuessing(t *testing.T) {
	var log strings.Builder
	status := func(line string, code int) string {
		return strings.Replace(line, `" 200 `, fmt.Sprintf(`" %d `, code), 1)
	}
	for i := range 3600 {
		// 60 clients read and sign in now and then; 5 guess.
		log.WriteString(line(i, fmt.Sprint("192.0.2.", i%60), "-", fmt.Sprintf("GET /page/%d HTTP/1.1", i%9)))
		if i%20 == 0 {
			log.WriteString(line(i, fmt.Sprint("192.0.2.", i/20%60), "-", "POST /login HTTP/1.1"))
		}
		if i%2 == 0 {
			log.WriteString(status(line(i, fmt.Sprint("198.51.100.", i%5), "-", "POST /login HTTP/1.1"), 401))
		}
		for range 3 { // far more than all others
			log.WriteString(line(i, "203.0.113.1", "-", "GET /page/1 HTTP/1.1"))
		}
	}
	s := replayText(t, log.String(), suggests(t, log.String())).Suggestions
	login, each := s.limit("login-per-client"), s.limit("per-client")
	if login == nil || login.KeysRefused != 5 || login.Outliers != 5 || login.Status[0].Value != "401" ||
		login.Status[0].Count != uint64(login.Refused) {
		t.Errorf("the limit on signing in: %+v\n%s", login, s.YAML)
	}
	if each == nil || each.KeysRefused != 6 || each.Outliers != 6 {
		t.Errorf("the limit for each client: %+v\n%s", each, s.YAML)
	}
	if all := s.limit("login"); all != nil {
		t.Errorf("five guessers could shut out all others by %+v", all)
	}
	for _, p := range s.Peaks {
		if p.Scope == "per-client" && (p.Ordinary != 60 || p.OrdinaryMax >= p.Max) {
			t.Errorf("peaks %+v", p)
		}
	}
}

// Signed-in clients are told from others where there are both.
func TestSuggestForUsersAndOthers(t *testing.T) {
	var log strings.Builder
	for i := range 3000 {
		user := "-"
		if i%3 > 0 {
			user = fmt.Sprint("u", i%200)
		}
		log.WriteString(line(i, fmt.Sprint("192.0.2.", i%90), user, "GET / HTTP/1.1"))
	}
	s := replayText(t, log.String(), suggests(t, log.String())).Suggestions
	if l := s.limit("per-user-or-client"); l == nil || l.Per != "user|ip" || s.limit("per-user") != nil {
		t.Errorf("no limit for users or else clients:\n%s", s.YAML)
	}
}
