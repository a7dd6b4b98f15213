module github.com/weir-rl/weir/docs/figures

go 1.26.0
