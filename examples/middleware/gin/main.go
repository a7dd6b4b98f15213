// Command gin limits a server of github.com/gin-gonic/gin.
package main

import (
	"flag"
	"io"
	"log"
	"net/http"

	"github.com/gin-gonic/gin"

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
	gate, err := httplimit.NewGate(limiter, demo.Options())
	if err != nil {
		return nil, err
	}
	gin.SetMode(gin.ReleaseMode)
	e := gin.New()
	e.Use(gin.Recovery(), authenticate, limit(gate))
	e.GET("/orders/:id", func(c *gin.Context) { c.String(http.StatusOK, "order "+c.Param("id")) })
	e.GET("/exports/:id", func(*gin.Context) { panic("out of paper") })
	e.POST("/chat", func(c *gin.Context) {
		c.Header("X-Words", "10")
		c.Status(http.StatusCreated)
	})
	return e, nil
}

// limit is the middleware. It has answered a request that it refuses: Abort keeps the handlers that
// follow from running.
func limit(gate *httplimit.Gate) gin.HandlerFunc {
	return func(c *gin.Context) {
		pass := gate.Enter(c.Writer, c.Request)
		if pass == nil {
			c.Abort()
			return
		}
		defer pass.Leave()
		pass.WriteHeaders(c.Writer.Header())
		if w := pass.Watch(c.Writer); w != c.Writer {
			// somebody wants to see the answer
			unwatched := c.Writer
			c.Writer = watched{unwatched, w}
			defer func() { c.Writer = unwatched }()
		}
		c.Next()
		pass.Finish()
	}
}

// watched is a gin.ResponseWriter that lets the limiter see the answer as it goes by.
type watched struct {
	gin.ResponseWriter
	w http.ResponseWriter
}

func (x watched) WriteHeader(status int)            { x.w.WriteHeader(status) }
func (x watched) Write(p []byte) (int, error)       { return x.w.Write(p) }
func (x watched) WriteString(s string) (int, error) { return io.WriteString(x.w, s) }
func (x watched) Flush()                            { x.w.(http.Flusher).Flush() }

// authenticate puts the user into the context of the request, where the limiter looks for it: it
// does not see values of c.Set.
func authenticate(c *gin.Context) {
	demo.Authenticate(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { c.Request = r })).ServeHTTP(
		c.Writer, c.Request)
}
