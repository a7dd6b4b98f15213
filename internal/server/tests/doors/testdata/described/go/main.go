// Program described calls the APIs through the clients that oapi-codegen makes: HTTP ADMIN TOKEN
package main

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"os"
	"slices"

	"described/admin"
	"described/decision"
)

func must[T any](x T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return x
}

func main() {
	ctx, token := context.Background(), os.Args[3]
	bearer := func(_ context.Context, r *http.Request) error {
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		return nil
	}
	weir := must(decision.NewClientWithResponses(os.Args[1], decision.WithRequestEditorFn(bearer)))
	port := must(admin.NewClientWithResponses(os.Args[2], admin.WithRequestEditorFn(bearer)))
	shop, api, ada, eve := "shop", "api", "ada", "eve"
	decide := func(user string) {
		a := must(weir.LimitWithResponse(ctx, decision.Request{Domain: &shop,
			Attributes: &decision.Attributes{"user": user}}))
		d := a.JSON200
		if d == nil {
			d = a.JSON429
		}
		var limits []int64
		for _, l := range d.Limits {
			limits = append(limits, l.Limit)
		}
		fmt.Println(user, d.Allowed, d.LimitedBy, limits)
	}
	for range 3 {
		decide(ada)
	}
	hits, timeout, hour := int32(2), 60.0, "1h"
	held := must(weir.ReserveWithResponse(ctx,
		decision.ReserveRequest{Domain: &shop, Attributes: &decision.Attributes{"user": eve}, Hits: &hits,
			Timeout: &timeout})).JSON200
	fmt.Println("eve holds", held.Allowed, *held.ExpiresIn)
	fmt.Println("eve commits",
		must(weir.CommitWithResponse(ctx, decision.Commit{Reservation: *held.Reservation, Hits: 1})).StatusCode())
	var used []string
	for _, k := range must(port.KeysWithResponse(ctx, &admin.KeysParams{Limit: &api})).JSON200.Keys {
		used = append(used, fmt.Sprint(k.Key, " ", k.Used))
	}
	slices.Sort(used)
	fmt.Println("used", used)
	ban := must(port.SetBanWithResponse(ctx,
		admin.BanRequest{Limit: api, Domain: &shop, Key: &[]string{eve}, For: &hour})).JSON200
	fmt.Println("banned", ban.Ban.Key, ban.Shared)
	decide(eve)
	var keys [][]string
	for _, b := range must(port.BansWithResponse(ctx, nil)).JSON200.Bans {
		keys = append(keys, b.Key)
	}
	fmt.Println("bans", keys)
	fmt.Println("unbanned",
		must(port.EndBanWithResponse(ctx, &admin.EndBanParams{Limit: &api, Key: &eve}, admin.Target{})).JSON200.Ban.Key)
	decide(eve)
	fmt.Println("reset",
		must(port.ResetKeyWithResponse(ctx, &admin.ResetKeyParams{Limit: &api, Key: &ada},
			admin.Target{})).StatusCode())
	decide(ada)
	var rules []string
	for _, r := range must(port.RuleReportsWithResponse(ctx, nil)).JSON200.Rules {
		rules = append(rules, r.Name)
	}
	signals := must(port.SignalsWithResponse(ctx)).JSON200.Signals
	fmt.Println("read", must(port.OverviewWithResponse(ctx, nil)).JSON200.Before, rules, len(signals) > 0)
}
