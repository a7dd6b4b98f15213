// Command nethttp limits a server of the standard library.
package main

import (
	"flag"
	"fmt"
	"log"
	"net/http"

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
	mux := http.NewServeMux()
	mux.HandleFunc("GET /orders/{id}", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "order ", r.PathValue("id"))
	})
	mux.HandleFunc("GET /exports/{id}", func(http.ResponseWriter, *http.Request) { panic("out of paper") })
	mux.HandleFunc("POST /chat", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Words", "10")
		w.WriteHeader(http.StatusCreated)
	})
	// From the outside in: who recovers, who knows the user, who limits.
	return recovered(demo.Authenticate(limit(mux))), nil
}

func recovered(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			switch cause := recover(); cause {
			case nil:
			case http.ErrAbortHandler: // the connection is to be cut
				panic(cause)
			default:
				log.Print(cause)
				http.Error(w, http.StatusText(http.StatusInternalServerError), http.StatusInternalServerError)
			}
		}()
		next.ServeHTTP(w, r)
	})
}
