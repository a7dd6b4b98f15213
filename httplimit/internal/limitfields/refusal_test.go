package limitfields

import "testing"

// FuzzRefusal: whatever stands in a body, the time that is read in it is not below 0.
func FuzzRefusal(f *testing.F) {
	f.Add([]byte(`[{"error":{"details":[{"@type":"google.rpc.RetryInfo","retryDelay":"-1s"}]}}]`))
	f.Add([]byte(`{"__type":"a#Throttling:b","retryAfterSeconds":"1e99"}`))
	f.Add([]byte(`<Error><Code>SlowDown</Code>`))
	f.Add([]byte(`[`))
	f.Fuzz(func(t *testing.T, body []byte) {
		if told := readRefusal(body); told.Wait < 0 {
			t.Fatalf("%+v", told)
		}
	})
}
