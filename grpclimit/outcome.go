package grpclimit

import "github.com/weir-rl/weir"

// outcome is the state of a call that weir.Hooks.Answered needs.
type outcome struct {
	hears  bool // the call was admitted, and somebody wants to know
	status int  // by HTTP; 500 until the handler returns, since it may panic
}

// returned notes how the handler ended.
func (c *call) returned(err error) {
	if !c.outcome.hears {
		return
	}
	c.outcome.status = httpStatus(codeOf(err))
	if err != nil && c.ctx.Err() != nil {
		c.outcome.status = 0 // whatever the handler made of it, the client is gone
	}
}

// tell calls the hooks for the call, which is over.
func (c *call) tell() {
	if c.outcome.hears {
		c.gate.limiter.Phases().Answered(&c.request, &c.decision, weir.Answer{Status: c.outcome.status})
		c.outcome = outcome{}
	}
}
