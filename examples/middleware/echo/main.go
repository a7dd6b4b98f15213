// Command echo limits a server of github.com/labstack/echo.
package main

import (
	"flag"
	"log"
	"net/http"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

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
	e := echo.New()
	e.Use(middleware.Recover(), echo.WrapMiddleware(demo.Authenticate), limit(gate))
	e.GET("/orders/:id", func(c echo.Context) error { return c.String(http.StatusOK, "order "+c.Param("id")) })
	e.GET("/exports/:id", func(echo.Context) error { panic("out of paper") })
	e.POST("/chat", func(c echo.Context) error {
		c.Response().Header().Set("X-Words", "10")
		return c.NoContent(http.StatusCreated)
	})
	return e, nil
}

// limit is the middleware. (echo.WrapMiddleware works with httplimit.New as well; but Echo answers
// an error that a handler returns only after the middleware, so that `cost_after` would not see the
// answer.)
func limit(gate *httplimit.Gate) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			pass := gate.Enter(c.Response(), c.Request())
			if pass == nil {
				return nil // it has been answered
			}
			defer pass.Leave()
			response := c.Response()
			pass.WriteHeaders(response.Header())
			response.Writer = pass.Watch(response.Writer)
			if err := next(c); err != nil {
				c.Error(err) // writes the answer
			}
			pass.Finish()
			return nil
		}
	}
}
