package weir_test

import (
	"errors"
	"testing"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
)

// TestRequireRules: until there are rules each way to a decision fails, and none passes.
func TestRequireRules(t *testing.T) {
	s, err := memory.New(memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	l, err := weir.New(s, weir.RequireRules())
	if err != nil {
		t.Fatal(err)
	}
	request := weir.Request{Attributes: rule.Map{"user": "ada"}, Hits: 1}
	p := l.Phases()
	if d, err := l.Allow(t.Context(), request); !errors.Is(err, weir.ErrNoRules) || d.Allowed {
		t.Errorf("Allow: %v, %v", d.Allowed, err)
	}
	var d weir.Decision
	if undecided, done := p.MatchNow(&request, &d); !undecided || done || p.ChargeNow(&request, &d) || d.Allowed {
		t.Error("MatchNow decides")
	}
	if !p.Match(&request, &d) || !errors.Is(p.Charge(t.Context(), &request, &d), weir.ErrNoRules) ||
		!errors.Is(p.ChargeAgain(t.Context(), &request, &d), weir.ErrNoRules) || d.Allowed {
		t.Error("the phases decide")
	}
	if list := p.Charges(&request, &d); len(list) > 0 || d.Allowed {
		t.Errorf("Charges: %v, %v", list, d.Allowed)
	}
	if _, err := l.Reserve(t.Context(), &request, &d, 0); err == nil || d.Allowed {
		t.Errorf("Reserve: %v", err)
	}
	set, err := rule.Of(rule.Spec{Name: "one", Allow: "1/min"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetRules(set)
	for _, want := range []bool{true, false} {
		if d, err := l.Allow(t.Context(), request); err != nil || d.Allowed != want {
			t.Errorf("with rules: %v, %v", d.Allowed, err)
		}
	}
	if _, err := weir.New(store.Store(nil), weir.RequireRules()); err == nil {
		t.Error("no store is fine")
	}
}
