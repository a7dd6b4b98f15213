package httplimit_test

import (
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/store/memory"
)

// A client that obeys the limits of the servers that it asks.
func ExampleNewRetryTransport() {
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked++; asked == 1 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	defer server.Close()

	polite, err := httplimit.NewRetryTransport(http.DefaultTransport, httplimit.RetryOptions{MaxWait: 30 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: polite}

	response, err := client.Get(server.URL)
	if err != nil {
		log.Fatal(err)
	}
	response.Body.Close()
	fmt.Println(response.StatusCode, "after", asked, "requests")
	// Output: 200 after 2 requests
}

// A client that keeps our own calls to a third party within rules.
func ExampleNewLimitTransport() {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	store, err := memory.New(memory.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	limiter, err := weir.New(store, weir.Limit("third-party", "2/day", "host"))
	if err != nil {
		log.Fatal(err)
	}

	within, err := httplimit.NewLimitTransport(limiter, http.DefaultTransport,
		httplimit.LimitOptions{MaxWait: time.Second})
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: within}

	for range 3 {
		response, err := client.Get(server.URL)
		if limited, ok := errors.AsType[*httplimit.LimitedError](err); ok {
			fmt.Println("not sent, because of", limited.Limits)
			continue
		}
		if err != nil {
			log.Fatal(err)
		}
		response.Body.Close()
		fmt.Println(response.StatusCode)
	}
	// Output:
	// 404
	// 404
	// not sent, because of [third-party]
}
