// Command wasm is the playground in a browser: it gives the page a function weirPlay(rules,
// requests) that returns a playground.Result as JSON. scripts/build site compiles it.
package main

import (
	"encoding/json"
	"syscall/js"

	"github.com/weir-rl/weir/docs/site/playground"
)

func main() {
	js.Global().Set("weirPlay", js.FuncOf(func(_ js.Value, args []js.Value) any {
		out, err := json.Marshal(playground.Run(args[0].String(), args[1].String()))
		if err != nil {
			panic(err)
		}
		return string(out)
	}))
	select {}
}
