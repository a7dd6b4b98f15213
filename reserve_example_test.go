package weir_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store/memory"
)

// A model's answer is paid for by tokens, which are known when it is complete: reserve an estimate,
// commit what it was.
func ExampleLimiter_Reserve() {
	store, err := memory.New(memory.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	limiter, err := weir.New(store, weir.Limit("tokens", "10000/day", "user"))
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()

	// the prompt, and at most as much as max_tokens says
	ask := weir.Request{Attributes: weir.Map{"user": "ada"}, Hits: 8000}
	var decision weir.Decision
	reservation, err := limiter.Reserve(ctx, &ask, &decision, time.Minute)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("allowed:", decision.Allowed, "remaining:", decision.Limits[0].Remaining)

	tokens := int64(1234) // what the model says in the end

	if _, err := limiter.Reservations().Commit(ctx, reservation, tokens); err != nil {
		log.Fatal(err)
	}
	ask.Peek = true
	if err := limiter.Decide(ctx, &ask, &decision); err != nil {
		log.Fatal(err)
	}
	fmt.Println("remaining:", decision.Limits[0].Remaining)
	// Output:
	// allowed: true remaining: 2000
	// remaining: 8766
}

// Limits of several kinds have costs of their own.
func ExampleReservations_CommitEach() {
	rules, _, err := file.Load([]file.Source{{Name: "llm.yaml", Data: []byte(`
limits:
  - { name: tokens, per: [user], allow: 100000/day, algorithm: sliding_log, cost: 4000 }
  - { name: requests, per: [user], allow: 50/day, algorithm: sliding_log }
`)}}, file.Options{})
	if err != nil {
		log.Fatal(err)
	}
	store, err := memory.New(memory.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	limiter, err := weir.New(store, weir.WithRules(rules))
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()

	ask := weir.Request{Attributes: weir.Map{"user": "ada"}, Hits: 1}
	var decision weir.Decision
	reservation, err := limiter.Reserve(ctx, &ask, &decision, 0)
	if err != nil {
		log.Fatal(err)
	}
	_, err = limiter.Reservations().CommitEach(ctx, reservation, func(r *rule.Rule, estimate int64) int64 {
		if r.Name == "tokens" {
			return 650
		}
		return estimate
	})
	if err != nil {
		log.Fatal(err)
	}
	ask.Peek = true
	if err := limiter.Decide(ctx, &ask, &decision); err != nil {
		log.Fatal(err)
	}
	for _, l := range decision.Limits {
		fmt.Println(l.Window.Name, "used:", l.Limit-l.Remaining)
	}
	// Output:
	// tokens used: 650
	// requests used: 1
}
