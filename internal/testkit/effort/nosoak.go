//go:build !soak

package effort

const soak = false
