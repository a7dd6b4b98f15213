package doors

import (
	"io"
	"net"
	"testing"

	"golang.org/x/net/http2"

	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// TestStreamsOfGRPC: limits.streams holds at the gRPC door.
func TestStreamsOfGRPC(t *testing.T) {
	for want, args := range map[uint32][]string{1024: nil, 7: {"--limits-streams=7"}} {
		p := servertest.Start(t, append([]string{"serve"}, args...)...)
		conn, err := net.Dial("tcp", p.Addr("grpc"))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(conn, http2.ClientPreface)
		f := http2.NewFramer(conn, conn)
		_ = f.WriteSettings()
		for {
			frame, err := f.ReadFrame()
			if err != nil {
				t.Fatal(err)
			}
			if settings, ok := frame.(*http2.SettingsFrame); ok && !settings.IsAck() {
				if got, ok := settings.Value(http2.SettingMaxConcurrentStreams); !ok || got != want {
					t.Errorf("%v: %d streams, want %d", args, got, want)
				}
				break
			}
		}
		_ = conn.Close()
		p.End()
	}
}
