package doors

import (
	"io"
	"net"
	"testing"

	"golang.org/x/net/http2"

	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// TestStreamsOfGRPC: a connection to the gRPC door may have 1,024 calls under way.
func TestStreamsOfGRPC(t *testing.T) {
	p := servertest.Start(t, "serve")
	defer p.End()
	conn, err := net.Dial("tcp", p.Addr("grpc"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, http2.ClientPreface)
	f := http2.NewFramer(conn, conn)
	_ = f.WriteSettings()
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if settings, ok := frame.(*http2.SettingsFrame); ok && !settings.IsAck() {
			if got, ok := settings.Value(http2.SettingMaxConcurrentStreams); !ok || got != 1024 {
				t.Errorf("%d streams", got)
			}
			return
		}
	}
}
