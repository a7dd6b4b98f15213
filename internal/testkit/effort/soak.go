//go:build soak

package effort

// soak says whether this is a soak, which runs at full length.
const soak = true
