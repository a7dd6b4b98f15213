package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/recent"
)

// Over is a time as the admin API takes it.
func Over(d time.Duration) string { return strconv.FormatInt(int64(d/time.Second), 10) + "s" }

// Overview asks what goes on in all domains.
func (c *Client) Overview(ctx context.Context, over time.Duration) (*insight.Overview, error) {
	o := new(insight.Overview)
	return o, c.Do(ctx, http.MethodGet, "/api/v1/insight?over="+Over(over), nil, o)
}

// Outages asks when nodes went without their store, the newest first.
func (c *Client) Outages(ctx context.Context) ([]insight.Outage, error) {
	var answer struct{ Outages []insight.Outage }
	err := c.Do(ctx, http.MethodGet, "/api/v1/outages", nil, &answer)
	return answer.Outages, err
}

// Rules asks for the reports of all rules of a domain, or of all ("").
func (c *Client) Rules(ctx context.Context, domain string, over time.Duration) ([]insight.RuleReport, error) {
	q := url.Values{"over": {Over(over)}}
	if domain != "" {
		q.Set("domain", domain)
	}
	var answer struct{ Rules []insight.RuleReport }
	err := c.Do(ctx, http.MethodGet, "/api/v1/insight/rules?"+q.Encode(), nil, &answer)
	return answer.Rules, err
}

// Rule asks for all that is known of a rule.
func (c *Client) Rule(ctx context.Context, domain, name string, over time.Duration) (*insight.RuleReport, error) {
	r := new(insight.RuleReport)
	path := "/api/v1/insight/rules/" + url.PathEscape(domain) + "/" + url.PathEscape(name) + "?over=" + Over(over)
	return r, c.Do(ctx, http.MethodGet, path, nil, r)
}

// Keys asks for the n keys of the last minute that come first in an order (insight.ByRefused).
func (c *Client) Keys(ctx context.Context, by string, n int) ([]insight.KeyCount, error) {
	var answer struct{ Keys []insight.KeyCount }
	err := c.Do(ctx, http.MethodGet, "/api/v1/insight/keys?over=1m&by="+by+"&n="+strconv.Itoa(n), nil, &answer)
	return answer.Keys, err
}

// Key asks for all that is known of a key.
func (c *Client) Key(ctx context.Context, domain, key string) (*insight.KeyReport, error) {
	k := new(insight.KeyReport)
	path := "/api/v1/insight/keys/" + url.PathEscape(domain) + "/" + url.PathEscape(key)
	return k, c.Do(ctx, http.MethodGet, path, nil, k)
}

// Decisions asks for the last n decisions of all nodes.
func (c *Client) Decisions(ctx context.Context, n int) ([]recent.Entry, error) {
	var answer struct{ Decisions []recent.Entry }
	err := c.Do(ctx, http.MethodGet, "/api/v1/decisions?nodes=all&n="+strconv.Itoa(n), nil, &answer)
	return answer.Decisions, err
}

// MayChange reports whether the role of the token lets it change keys.
func (c *Client) MayChange(ctx context.Context) (bool, error) {
	var session struct{ Role string }
	err := c.Do(ctx, http.MethodGet, "/api/v1/session", nil, &session)
	return session.Role != "viewer" && session.Role != "support", err
}
