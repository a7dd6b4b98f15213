// Package weir decides for each request whether it may pass now: a rate limiter to embed in a Go
// program, and the core of the weir server and proxy. Begin with New and Limiter.Allow.
//
// A Limiter asks the rules in force (package rule) which limits a Request meets, charges them all
// or none in a Store (package store/memory, store/redis or store/fallback), and folds the answers
// into a Decision. A refusal is a value; an error means that the store failed.
//
//	store, err := memory.New(memory.Options{})
//	limiter, err := weir.New(store, weir.Limit("logins", "5/min", "user"))
//	decision, err := limiter.Allow(ctx, weir.Request{Attributes: weir.Map{"user": user}})
//
// Package httplimit puts a Limiter in front of an http.Handler, package grpclimit in front of a
// gRPC server.
package weir

import (
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// Store keeps the states of all keys and decides charges on them: a store of package store/memory,
// store/redis or store/fallback. It is declared in package store.
type Store = store.Store

// Map is a request's attributes in a map.
type Map = rule.Map

// Pairs is a request's attributes in a slice, the quickest form for a handful of them.
type Pairs = rule.Pairs
