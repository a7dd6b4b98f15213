package admin

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/admin/audit"
	"github.com/weir-rl/weir/internal/door/answer"
)

// auditPatience is how long a change waits for its record to be on the disk.
const auditPatience = 5 * time.Second

// address returns where r came from, without a port: the client that trusted proxies report or, if
// there is no address, as on a unix socket, the peer's own name.
func (a *Handler) address(r *http.Request) string {
	if addr := a.o.ClientIP.Of(r); addr.IsValid() {
		return addr.String()
	}
	return r.RemoteAddr
}

// by fills in who asks for a change.
func (a *Handler) by(r *http.Request, e audit.Entry) audit.Entry {
	id := sender(r)
	e.Who, e.Address = id.Name, a.address(r)
	if id.Name != "" {
		e.Role = id.Role.String()
	}
	return e
}

// record writes the record of a change that r asks for, before the change is made. If it cannot, it
// has answered 503, ok is false, and the change must not be made.
func (a *Handler) record(w http.ResponseWriter, r *http.Request, e audit.Entry) (_ audit.Entry, ok bool) {
	e = a.by(r, e)
	// A client that hangs up does not stop the record.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), auditPatience)
	defer cancel()
	if err := a.o.Audit.Record(ctx, e); err != nil {
		answer.Problem(w, http.StatusServiceUnavailable, "nothing was changed: "+err.Error(), "")
		return e, false
	}
	return e, true
}

// made writes to the audit log if the change of e was not made, or not completed.
func (a *Handler) made(e audit.Entry, err error) {
	if err != nil && !errors.Is(err, weir.ErrNotShared) {
		a.o.Audit.Failed(e, err)
	}
}
