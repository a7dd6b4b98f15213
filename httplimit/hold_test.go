package httplimit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Those of one line leave in the order of their turns, even when the timers fire in another; those who give up make way.
func TestWaitingRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var (
			room waitingRoom
			mu   sync.Mutex
			left []string
		)
		start := time.Now()
		enter := func(ctx context.Context, line, name string, turn int64, delay time.Duration) {
			go func() {
				err := room.wait(ctx, line, turn, delay)
				mu.Lock()
				defer mu.Unlock()
				left = append(left, fmt.Sprintf("%s@%v:%v", name, time.Since(start), err))
			}()
			synctest.Wait()
		}
		impatient, giveUp := context.WithCancel(t.Context())
		enter(t.Context(), "k", "second", 2, 1*time.Second) // its timer is the first to fire
		enter(t.Context(), "k", "first", 1, 3*time.Second)
		enter(impatient, "k", "third", 3, 5*time.Second)
		enter(t.Context(), "k", "fourth", 4, 4*time.Second) // stands behind third until that gives up
		enter(t.Context(), "other", "free", 9, 2*time.Second)
		time.AfterFunc(4500*time.Millisecond, giveUp)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		want := []string{"free@2s:<nil>", "first@3s:<nil>", "second@3s:<nil>", "third@4.5s:context canceled", "fourth@4.5s:<nil>"}
		slices.SortFunc(left, func(a, b string) int { return slices.Index(want, a) - slices.Index(want, b) }) // same instants
		if !slices.Equal(left, want) {
			t.Errorf("left %v\nwant %v", left, want)
		}
		if len(room.lines) != 0 {
			t.Errorf("%d lines are remembered", len(room.lines))
		}
	})
}

func TestWaitingRoomGivesUpBehindOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var room waitingRoom
		first := make(chan error, 1)
		go func() { first <- room.wait(t.Context(), "k", 1, time.Hour) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // due after a second, but first is not
		defer cancel()
		if err := room.wait(ctx, "k", 2, time.Second); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if err := <-first; err != nil {
			t.Error(err)
		}
	})
}
