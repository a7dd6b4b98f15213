package top

import (
	"cmp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/recent"
	"github.com/weir-rl/weir/internal/util/human"
)

// Screen is what is shown.
type Screen int

// The screens. All shows the first rows of the other three.
const (
	All Screen = iota
	Rules
	Keys
	Decisions
)

// Sorts are the orders of rules; the first is the default.
var Sorts = []string{"verdict", "name", "requests", "refused", "good", "peak"}

// keyOrders are the orders of keys, which the server makes.
var keyOrders = []string{insight.ByRefused, insight.ByAsked, insight.ByNear}

// State is everything that View shows. The zero value is a program without an answer yet. Not safe
// for concurrent use.
type State struct {
	Server string // as the user named it
	Over   time.Duration
	Data
	At       time.Time // of the last answer; zero before the first
	Failed   string    // why there is no newer answer; "" if there is one
	Since    time.Time // of the first failure in a row
	Now      time.Time // when Failed is set: the time of the last try
	MayBan   bool
	Screen   Screen
	Sort     string // of Sorts; "" is the first
	By       string // of keyOrders; "" is the first
	Filter   string
	typing   bool // Filter is being typed
	Help     bool
	Paused   bool
	Said     string // what the last change did, or why it could not be done
	cursors  [4]cursor
	pane     Screen // of All: where the cursor is; Rules, Keys or Decisions
	open     *Item
	scroll   int // of the open item
	question *question
	explain  func(*recent.Entry) string
}

// cursor is the selected row. It follows its item when the order changes.
type cursor struct {
	row int
	id  string // of the item in that row; "" for none
}

// Item is what Enter opened.
type Item struct {
	Domain, Rule, Key string
	ruleReport        *insight.RuleReport // nil: not answered yet
	keyReport         *insight.KeyReport
	decision          *recent.Entry
	failed            string
}

// question is a question at the bottom of the screen, to answer before something is changed.
type question struct {
	change Change
	step   int // allow (of a grant), for, sure
	text   string
}

const (
	askAllow = iota
	askFor
	askSure
)

// Act is what the shell must do after a key.
type Act struct {
	Quit   bool
	Ask    bool    // for a new round at once
	Open   *Item   // ask for its report
	Change *Change // make it
}

// Set puts a round of answers into the state.
func (s *State) Set(d Data, now time.Time) {
	if d.Overview != nil {
		s.Overview = d.Overview
	}
	if d.Outages != nil {
		s.Outages = d.Outages
	}
	if d.Rules != nil {
		s.Rules = d.Rules
	}
	if d.Keys != nil {
		s.Keys = d.Keys
	}
	if d.Decisions != nil {
		s.Decisions = d.Decisions
	}
	s.At, s.Failed = now, ""
	for p := Rules; p <= Decisions; p++ {
		s.settle(p)
	}
}

// Fail notes that the server did not answer.
func (s *State) Fail(err error, now time.Time) {
	if s.Failed == "" {
		s.Since = now
	}
	s.Failed, s.Now = err.Error(), now
}

// Wants returns which answers the present screen needs.
func (s *State) Wants() Wants {
	w := Wants{By: s.by(), Open: s.open}
	w.Rules = s.Screen == All || s.Screen == Rules
	w.Keys = s.Screen == All || s.Screen == Keys
	w.Decisions = s.Screen == All || s.Screen == Decisions
	return w
}

func (s *State) by() string { return cmp.Or(s.By, keyOrders[0]) }

func (s *State) sort() string { return cmp.Or(s.Sort, Sorts[0]) }

// focus returns the table that has the cursor.
func (s *State) focus() Screen {
	if s.Screen != All {
		return s.Screen
	}
	return max(s.pane, Rules)
}

// ids names the rows of a table, in their order on the screen.
func (s *State) ids(p Screen) []string {
	var ids []string
	switch p {
	case Rules:
		for _, r := range s.rules() {
			ids = append(ids, r.Domain+"/"+r.Name)
		}
	case Keys:
		for _, k := range s.keys() {
			ids = append(ids, k.Domain+"/"+k.Limit+"/"+k.Key)
		}
	case Decisions:
		for _, d := range s.decisions() {
			id := d.ID.String()
			if id == "" { // one whose key is masked
				id = d.Time.String() + "/" + d.Node + "/" + mainLimit(d).Key
			}
			ids = append(ids, id)
		}
	}
	return ids
}

// settle moves the cursor to the new row of its item.
func (s *State) settle(p Screen) {
	c, ids := &s.cursors[p], s.ids(p)
	if c.id != "" {
		if at := slices.Index(ids, c.id); at >= 0 {
			c.row = at
			return
		}
	}
	c.row = max(min(c.row, len(ids)-1), 0)
	if c.id != "" && len(ids) > 0 {
		c.id = ids[c.row]
	}
}

// move moves the cursor. A cursor that was never moved stays on the first row, whatever item that
// shows.
func (s *State) move(by int) {
	c, ids := &s.cursors[s.focus()], s.ids(s.focus())
	if len(ids) == 0 {
		return
	}
	c.row = max(min(c.row+by, len(ids)-1), 0)
	c.id = ids[c.row]
}

// matches reports whether one of the texts contains the filter, ignoring case.
func (s *State) matches(texts ...string) bool {
	if s.Filter == "" {
		return true
	}
	want := strings.ToLower(s.Filter)
	return slices.ContainsFunc(texts,
		func(t string) bool { return strings.Contains(strings.ToLower(human.Visible(t)), want) })
}

// rules returns the rules that pass the filter, in order.
func (s *State) rules() []*insight.RuleReport {
	var list []*insight.RuleReport
	for i := range s.Rules {
		r := &s.Rules[i]
		if s.matches(r.Domain+"/"+r.Name, verdictOf(r).words) {
			list = append(list, r)
		}
	}
	slices.SortStableFunc(list, func(a, b *insight.RuleReport) int {
		name := cmp.Or(strings.Compare(a.Domain, b.Domain), strings.Compare(a.Name, b.Name))
		switch s.sort() {
		case "name":
			return name
		case "requests":
			return cmp.Or(cmp.Compare(b.Met, a.Met), name)
		case "refused":
			return cmp.Or(cmp.Compare(b.Refused+b.WouldRefuse, a.Refused+a.WouldRefuse), name)
		case "good":
			return cmp.Or(cmp.Compare(b.Good.Share, a.Good.Share), name)
		case "peak":
			return cmp.Or(cmp.Compare(b.MaxFill, a.MaxFill), name)
		}
		return cmp.Or(cmp.Compare(verdictOf(a).rank, verdictOf(b).rank), cmp.Compare(b.Refused, a.Refused),
			cmp.Compare(b.Met, a.Met), name)
	})
	return list
}

// keys returns the keys that pass the filter, in the server's order.
func (s *State) keys() []*insight.KeyCount {
	var list []*insight.KeyCount
	for i := range s.Keys {
		if k := &s.Keys[i]; s.matches(k.Key, k.Domain+"/"+k.Limit) {
			list = append(list, k)
		}
	}
	return list
}

// decisions returns the decisions that pass the filter, newest first.
func (s *State) decisions() []*recent.Entry {
	var list []*recent.Entry
	for i := range s.Decisions {
		d := &s.Decisions[i]
		l := mainLimit(d)
		if s.matches(l.Key, d.Domain+"/"+l.Rule, d.Outcome, requestText(d), d.ID.String()) {
			list = append(list, d)
		}
	}
	return list
}

// mainLimit returns the limit that made the outcome of a decision; an empty one if it met none.
func mainLimit(d *recent.Entry) recent.Limit { return *cmp.Or(d.Main(), &recent.Limit{}) }

// Press handles a key, by bubbletea's name for it. page is how many rows a page has.
func (s *State) Press(key string, page int) Act {
	switch {
	case key == "ctrl+c":
		return Act{Quit: true}
	case s.question != nil:
		return s.answer(key)
	case s.typing:
		s.typeFilter(key)
		return Act{}
	case s.Help:
		s.Help = false
		return Act{}
	}
	s.Said = ""
	switch key {
	case "q":
		return Act{Quit: true}
	case "?", "h":
		s.Help = true
	case "p", "space":
		s.Paused = !s.Paused
		return Act{Ask: !s.Paused}
	case "esc", "backspace", "left":
		s.back()
		return Act{Ask: true}
	case "r", "k", "d":
		s.Screen, s.open, s.scroll = map[string]Screen{"r": Rules, "k": Keys, "d": Decisions}[key], nil, 0
		return Act{Ask: true}
	case "tab", "shift+tab":
		if s.Screen == All && s.open == nil {
			step := map[string]Screen{"tab": 0, "shift+tab": 1}[key]
			s.pane = (s.focus()+step)%3 + 1
		}
	case "s":
		return s.nextSort()
	case "/":
		if s.open == nil {
			s.typing = true
		}
	case "up":
		s.step(-1)
	case "down":
		s.step(1)
	case "pgup":
		s.step(-page)
	case "pgdown":
		s.step(page)
	case "home":
		s.step(-1 << 20)
	case "end":
		s.step(1 << 20)
	case "enter", "right":
		return s.enter()
	case "b", "g":
		if s.MayBan {
			s.ask(key == "g")
		}
	}
	return Act{}
}

// step moves the cursor, or scrolls the open item. View bounds the scrolling at the end.
func (s *State) step(by int) {
	if s.open == nil {
		s.move(by)
		return
	}
	s.scroll = max(s.scroll+by, 0)
	if s.scroll > 1<<19 {
		s.scroll = 1 << 19
	}
}

// back closes the open item, clears the filter, or leaves the screen: one of these.
func (s *State) back() {
	switch {
	case s.open != nil:
		s.open, s.scroll = nil, 0
	case s.Filter != "":
		s.Filter = ""
	default:
		s.Screen = All
	}
}

func (s *State) nextSort() Act {
	next := func(list []string, now string) string { return list[(slices.Index(list, now)+1)%len(list)] }
	switch {
	case s.open != nil:
	case s.focus() == Rules:
		s.Sort = next(Sorts, s.sort())
		s.settle(Rules)
	case s.focus() == Keys:
		s.By = next(keyOrders, s.by())
		return Act{Ask: true}
	}
	return Act{}
}

func (s *State) typeFilter(key string) {
	switch key {
	case "enter":
		s.typing = false
	case "esc":
		s.typing, s.Filter = false, ""
	default:
		s.Filter = edit(s.Filter, key)
	}
	for p := Rules; p <= Decisions; p++ {
		s.settle(p)
	}
}

// edit applies a key to a line of text.
func edit(text, key string) string {
	switch key {
	case "backspace":
		_, size := utf8.DecodeLastRuneInString(text)
		return text[:len(text)-size]
	case "ctrl+u":
		return ""
	case "space":
		key = " "
	}
	r, size := utf8.DecodeRuneInString(key)
	if size == len(key) && unicode.IsGraphic(r) && len(text) < 200 {
		return text + key
	}
	return text
}

// commandSaid is the message for the row that is no rule.
const commandSaid = insight.CommandRule +
	" is no rule: its limits come with each command (CL.THROTTLE, THROTTLE); k shows its keys"

// enter opens the item under the cursor.
func (s *State) enter() Act {
	if s.open != nil {
		return Act{}
	}
	at := s.cursors[s.focus()].row
	switch s.focus() {
	case Rules:
		if list := s.rules(); at < len(list) {
			if list[at].Command {
				s.Said = commandSaid
				return Act{}
			}
			s.open = &Item{Domain: list[at].Domain, Rule: list[at].Name}
		}
	case Keys:
		if list := s.keys(); at < len(list) {
			s.open = &Item{Domain: list[at].Domain, Rule: list[at].Rule, Key: list[at].Key}
		}
	case Decisions:
		if list := s.decisions(); at < len(list) {
			l := mainLimit(list[at])
			s.open = &Item{Domain: list[at].Domain, Rule: l.Rule, Key: l.Key, decision: list[at]}
			s.scroll = 0
			return Act{}
		}
	}
	if s.scroll = 0; s.open == nil {
		return Act{}
	}
	return Act{Open: s.open}
}

// ask begins the question for a ban or a grant of the open or selected key.
func (s *State) ask(grant bool) {
	domain, rule, key := "", "", ""
	if s.open != nil {
		domain, rule, key = s.open.Domain, s.open.Rule, s.open.Key
	} else {
		at := s.cursors[s.focus()].row
		switch s.focus() {
		case Keys:
			if list := s.keys(); at < len(list) {
				domain, rule, key = list[at].Domain, list[at].Rule, list[at].Key
			}
		case Decisions:
			if list := s.decisions(); at < len(list) {
				l := mainLimit(list[at])
				domain, rule, key = list[at].Domain, l.Rule, l.Key
			}
		}
	}
	switch {
	case rule == "":
		s.Said = "choose a key or a decision first (k, d)"
		return
	case domain == insight.CommandDomain:
		s.Said = "its limit comes with each command: it cannot be banned, or granted another one"
		return
	case key == "":
		s.Said = rule + " counts all together: there is no key to ban or to grant"
		return
	case strings.Contains(key, "hidden:") || strings.HasSuffix(key, "…") || strings.Contains(key, "…,"):
		s.Said = "this key is shown in part only, so it cannot be named here; use weir ban or weir grant"
		return
	}
	q := &question{change: Change{Grant: grant, Domain: domain, Rule: rule, Key: splitKey(key, s.per(domain, rule))},
		step: askFor, text: "15m"}
	if grant {
		q.step, q.text = askAllow, ""
	}
	s.question = q
}

// per returns the names of a rule's key, as far as they are known.
func (s *State) per(domain, rule string) []string {
	for i := range s.Rules {
		if r := &s.Rules[i]; r.Domain == domain && r.Name == rule {
			return r.Per
		}
	}
	return nil
}

// splitKey splits a key for people: user=ada, ip=192.0.2.1. Values may contain commas, so a part
// begins with one of the known names. Without known names, every ", " separates parts.
func splitKey(key string, per []string) []string {
	var parts []string
	for i := 1; ; i++ {
		at := -1
		if i < len(per) {
			for name := range strings.SplitSeq(per[i], "|") {
				if found := strings.Index(key, ", "+name+"="); found >= 0 && (at < 0 || found < at) {
					at = found
				}
			}
		} else if len(per) == 0 {
			at = strings.Index(key, ", ")
		}
		if at < 0 {
			return append(parts, key)
		}
		parts, key = append(parts, key[:at]), key[at+2:]
	}
}

// answer handles a key while a question is open.
func (s *State) answer(key string) Act {
	q := s.question
	if key == "esc" || q.step == askSure && (key == "n" || key == "N") {
		s.question, s.Said = nil, "nothing was changed"
		return Act{}
	}
	switch {
	case q.step == askSure:
		if key == "y" || key == "Y" {
			s.question = nil
			return Act{Change: &q.change}
		}
	case key != "enter":
		q.text = edit(q.text, key)
	case strings.TrimSpace(q.text) == "": // an answer is needed
	case q.step == askAllow:
		q.change.Allow, q.step, q.text = strings.TrimSpace(q.text), askFor, "1h"
	case q.step == askFor:
		q.change.For, q.step, q.text = strings.TrimSpace(q.text), askSure, ""
	}
	return Act{}
}
