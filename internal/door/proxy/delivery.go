package proxy

import (
	"net/http"

	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/internal/wire/upstream"
)

// passHead passes the header of a response on, informational responses before it included, in the
// manner of ReverseProxy. After an error nothing has been written but those.
func passHead(w http.ResponseWriter, pass *httplimit.Pass, res *upstream.Response) error {
	h := w.Header()
	into, apart := h, len(h) > 0
	if apart {
		into = http.Header{} // to be added to the fields that a handler in front has set
	}
	for {
		status, err := res.Header(into)
		if err != nil {
			return err
		}
		if status >= 200 {
			pass.WriteHeaders(into)
		}
		if apart {
			copyHeader(h, into)
			clear(into)
		}
		if status >= 200 {
			if res.Length() != 0 && len(h["Content-Type"]) == 0 {
				noSniffing(h)
			}
			pass.Answered(status)
			w.WriteHeader(status)
			return nil
		}
		w.WriteHeader(status)
		clear(h)
	}
}

// noSniffing keeps net/http's server from guessing the type of a body if the upstream names none.
func noSniffing(h http.Header) { h["Content-Type"] = nil }

// passBody passes the body of a response on, and its trailers.
func passBody(w http.ResponseWriter, res *upstream.Response) error {
	var err error
	if res.Here() {
		err = res.Copy(w, nil)
	} else {
		f := &flusher{w: w, control: http.NewResponseController(w), unflushed: true}
		err = res.Copy(f, f.flush)
	}
	if err != nil {
		return err
	}
	if trailer, announced := res.Trailer(); len(trailer) > 0 {
		// so that it is in chunks, which alone can have trailers
		_ = http.NewResponseController(w).Flush()
		prefix := http.TrailerPrefix
		if announced {
			prefix = ""
		}
		dropInvalid(trailer)
		for name, lines := range trailer {
			for _, line := range lines {
				w.Header().Add(prefix+name, line)
			}
		}
	}
	return nil
}

// flusher passes a stream on: it sends all that has come before it waits for more.
type flusher struct {
	w         http.ResponseWriter
	control   *http.ResponseController
	unflushed bool
}

// Write implements io.Writer.
func (f *flusher) Write(p []byte) (int, error) {
	f.unflushed = true
	return f.w.Write(p)
}

func (f *flusher) flush() {
	if f.unflushed {
		f.unflushed = false
		_ = f.control.Flush() // a client that is gone is met by the next write
	}
}

func copyHeader(dst, src http.Header) {
	for name, lines := range src {
		for _, line := range lines {
			dst.Add(name, line)
		}
	}
}
