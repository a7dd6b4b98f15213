package algo_test

import (
	"fmt"
	"time"

	"github.com/weir-rl/weir/algo"
)

func ExampleLimit_Take() {
	limit, err := algo.New(algo.Config{Algorithm: algo.TokenBucket, N: 4, Window: time.Minute, Burst: 2})
	if err != nil {
		panic(err)
	}
	var key algo.State // one for each key; the zero value is a fresh key
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
	for range 3 {
		r := limit.Take(&key, now, algo.Ask{Cost: 1})
		fmt.Println(r.Allowed, r.Remaining, time.Duration(r.RetryAfter)*time.Microsecond)
	}
	// Output:
	// true 1 0s
	// true 0 0s
	// false 0 15s
}
