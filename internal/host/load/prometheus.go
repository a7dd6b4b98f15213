package load

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Query is a signal that a Prometheus answers.
type Query struct {
	// URL of the Prometheus, such as http://prometheus:9090; a path is put in front of
	// /api/v1/query, and a user and password are sent.
	URL string
	// Query is PromQL that yields a percentage: a scalar, or a vector whose first sample counts.
	Query string
	// Every is how often it is asked; 0 means each 5 s. From 100 ms.
	Every time.Duration

	ready string // the request
}

const (
	defaultEvery = 5 * time.Second
	longestAsk   = 5 * time.Second
	mostAnswer   = 1 << 20
)

// prepare checks the query and fills in defaults. An error begins with the name of the field.
func (q *Query) prepare() error {
	u, err := url.Parse(q.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return errors.New("url: must be a Prometheus, such as http://prometheus:9090")
	}
	if u.RawQuery != "" || u.Fragment != "" {
		return errors.New("url: has a query or a fragment; only a path may follow the host")
	}
	if strings.TrimSpace(q.Query) == "" {
		return errors.New("query: is missing; write it in PromQL, such as 100 * avg(rate(busy_seconds_total[1m]))")
	}
	if q.Every == 0 {
		q.Every = defaultEvery
	}
	if q.Every < tick || q.Every > time.Hour {
		return fmt.Errorf("every: must be from %v to 1h", tick)
	}
	u = u.JoinPath("api", "v1", "query")
	u.RawQuery = url.Values{"query": {q.Query}}.Encode()
	q.ready = u.String()
	return nil
}

// ask asks once.
func (q *Query) ask(ctx context.Context, client *http.Client) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, min(q.Every, longestAsk))
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, q.ready, nil)
	if err != nil {
		return 0, err
	}
	request.Header.Set("Accept", "application/json")
	response, err := client.Do(request)
	if err != nil {
		if inner, ok := errors.AsType[*url.Error](err); ok { // whose text quotes the whole query
			err = inner.Err
		}
		if errors.Is(err, context.DeadlineExceeded) {
			return 0, fmt.Errorf("it did not answer within %v", min(q.Every, longestAsk))
		}
		return 0, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, mostAnswer+1))
	switch {
	case err != nil:
		return 0, err
	case len(body) > mostAnswer:
		return 0, fmt.Errorf("the answer is larger than %d bytes; ask for one sample", mostAnswer)
	}
	v, err := parseAnswer(body)
	if err != nil && response.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("%s: %w", response.Status, err)
	}
	return v, err
}

// parseAnswer reads the first sample of an answer of /api/v1/query.
func parseAnswer(body []byte) (float64, error) {
	var answer struct {
		Status string
		Error  string
		Data   struct {
			ResultType string
			Result     json.RawMessage
		}
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return 0, errors.New("the answer does not come from a Prometheus")
	}
	if answer.Status != "success" {
		if answer.Error == "" {
			return 0, errors.New("the answer does not come from a Prometheus")
		}
		return 0, errors.New("the query failed: " + printable(answer.Error))
	}
	var sample []json.RawMessage
	switch answer.Data.ResultType {
	case "scalar":
		if err := json.Unmarshal(answer.Data.Result, &sample); err != nil {
			return 0, errors.New("the answer holds no sample")
		}
	case "vector":
		var vector []struct{ Value []json.RawMessage }
		if err := json.Unmarshal(answer.Data.Result, &vector); err != nil {
			return 0, errors.New("the answer holds no sample")
		}
		if len(vector) == 0 {
			return 0, errors.New("the query has no result just now")
		}
		sample = vector[0].Value
	default:
		return 0, fmt.Errorf("the query gives a %s; it must give a scalar or a vector",
			printable(answer.Data.ResultType))
	}
	var text string
	if len(sample) != 2 || json.Unmarshal(sample[1], &text) != nil {
		return 0, errors.New("the answer holds no sample")
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
		return 0, fmt.Errorf("the result is %s, which is no percentage", printable(text))
	}
	return v, nil
}

// printable makes a text of others fit for one line.
func printable(s string) string {
	const most = 200
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
	if r := []rune(s); len(r) > most {
		s = string(r[:most]) + "…"
	}
	return s
}
