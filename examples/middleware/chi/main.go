// Command chi limits a server of github.com/go-chi/chi, which takes net/http middleware as it is.
package main

import (
	"flag"
	"fmt"
	"log"
	"net/http"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/examples/middleware/demo"
	"github.com/weir-rl/weir/httplimit"
)

func main() {
	address := flag.String("listen", "127.0.0.1:3000", "address")
	flag.Parse()
	limiter, err := demo.NewLimiter()
	if err != nil {
		log.Fatal(err)
	}
	h, err := handler(limiter)
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.ListenAndServe(*address, h))
}

func handler(limiter *weir.Limiter) (http.Handler, error) {
	limit, err := httplimit.New(limiter, demo.Options())
	if err != nil {
		return nil, err
	}
	r := chi.NewRouter()
	r.Use(middleware.Recoverer, demo.Authenticate, limit)
	r.Get("/orders/{id}", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "order ", chi.URLParam(r, "id"))
	})
	r.Get("/exports/{id}", func(http.ResponseWriter, *http.Request) { panic("out of paper") })
	r.Post("/chat", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Words", "10")
		w.WriteHeader(http.StatusCreated)
	})
	return r, nil
}
