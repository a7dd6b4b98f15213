package top

import (
	"context"
	"errors"
	"io"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/weir-rl/weir/internal/util/human"
)

// Options are what Run needs. All but Every are required.
type Options struct {
	Server  Server
	Name    string // of the server, as the user named it
	Over    time.Duration
	Sort    string // of Sorts; "" is the first
	In      io.Reader
	Out     io.Writer
	Env     []string      // NAME=value: TERM, NO_COLOR
	Every   time.Duration // between two rounds, at least; 0 is 2 s
	NoInput bool          // for tests without a terminal
}

// Run shows the state of the server until the user ends it, or ctx ends. It leaves the terminal as
// it was.
func Run(ctx context.Context, o Options) error {
	if o.Every == 0 {
		o.Every = 2 * time.Second
	}
	m := &model{ctx: ctx, o: o, state: State{Server: o.Name, Over: o.Over, Sort: o.Sort, explain: o.Server.Explain}}
	// A key takes effect within 50 ms, and nothing is drawn if nothing has changed.
	p := tea.NewProgram(m, tea.WithContext(ctx), tea.WithInput(o.In), tea.WithOutput(o.Out), tea.WithEnvironment(o.Env),
		tea.WithFPS(20), tea.WithoutSignalHandler())
	_, err := p.Run()
	if errors.Is(err, tea.ErrProgramKilled) && ctx.Err() != nil {
		return nil // Ctrl+C and SIGTERM are ways to end it
	}
	return err
}

// model is the shell around State: it asks, waits and draws. Only one round is under way at a time.
type model struct {
	ctx    context.Context
	o      Options
	state  State
	width  int
	height int
	asking bool
	again  bool          // another round is wanted, because the screen has changed
	tick   int           // the number of the last timer; older ones are ignored
	cpu    time.Duration // used by this process up to the last round
	role   bool          // MayBan is known
}

// Messages to the model.
type (
	answered struct {
		data Data
		err  error
		may  *bool
	}
	itemAnswered struct {
		item *Item
		got  Item
	}
	changed struct {
		text string
		err  error
	}
	due int // the number of a timer
)

// Init implements tea.Model.
func (m *model) Init() tea.Cmd { return m.ask() }

// View implements tea.Model.
func (m *model) View() tea.View {
	v := tea.NewView(View(&m.state, m.width, m.height))
	v.AltScreen = true
	return v
}

// Update implements tea.Model.
func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case tea.KeyPressMsg:
		return m, m.act(m.state.Press(msg.String(), page(m.height)))
	case tea.PasteMsg:
		if m.state.typing || m.state.question != nil {
			for _, r := range msg.Content {
				if r >= ' ' {
					m.state.Press(string(r), 1)
				}
			}
		}
	case answered:
		return m, m.answered(msg)
	case itemAnswered:
		msg.item.ruleReport, msg.item.keyReport, msg.item.failed = msg.got.ruleReport, msg.got.keyReport, msg.got.failed
	case changed:
		if m.state.Said = msg.text; msg.err != nil {
			m.state.Said = "not done: " + msg.err.Error()
		}
		return m, m.ask()
	case due:
		if int(msg) == m.tick && !m.state.Paused {
			return m, m.ask()
		}
	}
	return m, nil
}

// act carries out the effect of a key.
func (m *model) act(a Act) tea.Cmd {
	switch {
	case a.Quit:
		return tea.Quit
	case a.Change != nil:
		c := *a.Change
		return func() tea.Msg {
			text, err := m.o.Server.Change(m.ctx, c)
			return changed{text, err}
		}
	case a.Open != nil:
		return m.openItem(a.Open)
	case a.Ask && !m.state.Paused:
		return m.ask()
	}
	return nil
}

// ask begins a round, or notes that another one is wanted after the present one.
func (m *model) ask() tea.Cmd {
	if m.asking {
		m.again = true
		return nil
	}
	m.asking, m.again = true, false
	m.tick++ // a running timer is void
	wants, role := m.state.Wants(), !m.role
	return func() tea.Msg {
		var a answered
		if a.data, a.err = ask(m.ctx, m.o.Server, m.o.Over, wants); a.err == nil && role {
			var may bool
			if may, a.err = m.o.Server.MayChange(m.ctx); a.err == nil {
				a.may = &may
			}
		}
		return a
	}
}

// answered takes in the answers of a round, and sets the timer for the next.
func (m *model) answered(a answered) tea.Cmd {
	m.asking = false
	if a.err != nil {
		m.state.Fail(a.err, time.Now())
		m.role = false // the server that comes back may have other tokens
	} else {
		m.state.Set(a.data, time.Now())
	}
	if a.may != nil {
		m.state.MayBan, m.role = *a.may, true
	}
	if m.again {
		return m.ask()
	}
	cpu := processTime()
	wait := pace(m.o.Every, cpu-m.cpu)
	m.cpu = cpu
	m.tick++
	number := m.tick
	timer := tea.Tick(wait, func(time.Time) tea.Msg { return due(number) })
	if it := m.state.open; it != nil && it.decision == nil && a.err == nil {
		return tea.Batch(timer, m.openItem(it))
	}
	return timer
}

// openItem asks the server for the report of an open item.
func (m *model) openItem(it *Item) tea.Cmd {
	domain, rule, key := it.Domain, it.Rule, it.Key
	return func() tea.Msg {
		var got Item
		var err error
		if key != "" {
			got.keyReport, err = m.o.Server.Key(m.ctx, domain, key)
		} else {
			got.ruleReport, err = m.o.Server.Rule(m.ctx, domain, rule, m.o.Over)
		}
		if err != nil {
			got.failed = err.Error()
		}
		return itemAnswered{it, got}
	}
}

// slowest is the longest time between two rounds.
const slowest = time.Minute

// pace returns how long to wait for the next round, if the last one has used so much processor
// time: so long that this program uses at most 1 % of a core.
func pace(every, spent time.Duration) time.Duration {
	return min(max(every, 100*spent), max(slowest, every))
}

// Batch prints n rounds to out, as plain text, and ends. An error ends it at once: a reader of
// numbers must not take old ones for new.
func Batch(ctx context.Context, o Options, n int, wait func(time.Duration) error) error {
	for i := range n {
		if i > 0 {
			if err := wait(o.Every); err != nil {
				return err
			}
			if _, err := io.WriteString(o.Out, "\n"); err != nil {
				return err
			}
		}
		d, err := ask(ctx, o.Server, o.Over, Wants{Rules: true, Keys: true, Decisions: true, By: keyOrders[0]})
		if err != nil {
			return err
		}
		s := State{Server: o.Name, Over: o.Over, Sort: o.Sort}
		s.Set(d, d.Overview.To)
		if _, err := io.WriteString(o.Out, text(&s)); err != nil {
			return err
		}
	}
	return nil
}

// Ask returns one round of answers, for programs that print them in another form.
func Ask(ctx context.Context, s Server, over time.Duration) (Data, error) {
	return ask(ctx, s, over, Wants{Rules: true, Keys: true, Decisions: true, By: keyOrders[0]})
}

// over says which time the counts cover.
func over(d time.Duration) string { return "in the last " + human.Span(d) }
