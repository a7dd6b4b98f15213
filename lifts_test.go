package weir_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
)

// heldBoard is a store whose next post waits until it is let go.
type heldBoard struct {
	*memory.Store
	hold chan struct{}
}

func (h *heldBoard) Post(ctx context.Context, kind string, facts []store.Fact) error {
	<-h.hold
	return h.Store.Post(ctx, kind, facts)
}

// heldDenials is a store that counts denials when it is let go.
type heldDenials struct {
	*memory.Store
	hold chan struct{}
}

func (h *heldDenials) Take(ctx context.Context, charges []store.Charge, results []algo.Result) (int64, error) {
	n, err := h.Store.Take(ctx, charges, results)
	if charges[0].Counter.Index < 0 && charges[0].Ask.Cost > 0 { // of a ban
		<-h.hold
	}
	return n, err
}

// TestLiftBeforePost: a ban that another node is about to publish when it is lifted stays lifted on
// all nodes. A ban that is set afterwards holds.
func TestLiftBeforePost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := wallStore(t, memory.Options{})
		t.Cleanup(func() { _ = m.Close() })
		held := &heldBoard{m, make(chan struct{})}
		a, b := follower(t, held, loginRules), follower(t, m, loginRules)
		synctest.Wait()
		denyUntilBanned(t, a, "192.0.2.1") // and publishes that late
		if _, err := b.Bans().Set(t.Context(), "", "login", []string{"192.0.2.1"}, time.Now().Add(time.Hour), ""); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		time.Sleep(time.Millisecond)
		lift := func(l *weir.Limiter) {
			t.Helper()
			if _, err := l.Bans().Lift(t.Context(), "", "login", []string{"192.0.2.1"}); err != nil {
				t.Fatal(err)
			}
		}
		lift(b)
		close(held.hold)
		time.Sleep(time.Minute)
		synctest.Wait()
		if x, y := a.Bans().List(), b.Bans().List(); len(x) > 0 || len(y) > 0 {
			t.Errorf("lifted, and then in force: %+v, %+v", x, y)
		}
		for range 2 {
			denyUntilBanned(t, a, "192.0.2.1")
			synctest.Wait()
			if x, y := a.Bans().List(), b.Bans().List(); len(x) != 1 || len(y) != 1 {
				t.Errorf("%+v, %+v", x, y)
			}
			time.Sleep(time.Millisecond)
			lift(b)
			synctest.Wait()
			time.Sleep(time.Minute)
		}
	})
}

// TestLiftBeforeCount: denials that were about to be counted when their key's ban was lifted ban it
// no more, wherever it was lifted.
func TestLiftBeforeCount(t *testing.T) {
	for name, here := range map[string]bool{"here": true, "on another node": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := wallStore(t, memory.Options{})
				t.Cleanup(func() { _ = m.Close() })
				held := &heldDenials{m, make(chan struct{})}
				a, b := follower(t, held, loginRules, weir.WithBans(weir.BanOptions{Async: true})),
					follower(t, m, loginRules)
				synctest.Wait()
				for range 6 {
					decide(t, a, from("192.0.2.1", "/login"))
				}
				time.Sleep(time.Second) // in which the background has begun to count
				by := b
				if here {
					by = a
				}
				if _, err := by.Bans().Set(t.Context(), "", "login", []string{"192.0.2.1"}, time.Now().Add(time.Hour), ""); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if _, err := by.Bans().Lift(t.Context(), "", "login", []string{"192.0.2.1"}); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				close(held.hold)
				time.Sleep(time.Second)
				if x, y := a.Bans().List(), b.Bans().List(); len(x) > 0 || len(y) > 0 {
					t.Errorf("lifted, and then in force: %+v, %+v", x, y)
				}
				for range 6 {
					decide(t, a, from("192.0.2.1", "/login"))
				}
				time.Sleep(time.Second)
				if x := a.Bans().List(); len(x) != 1 {
					t.Errorf("denied again, and banned: %+v", x)
				}
			})
		})
	}
}
