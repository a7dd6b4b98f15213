package xds

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/protobuf/types/known/structpb"
)

// noVersion is the version of a stream's first request. No server uses it, so that each answers
// with all that it holds: to an empty version a server that holds nothing says nothing, and to the
// last version of another stream it may say nothing, too, although its numbers begin anew with each
// start.
const noVersion = "none"

// errReload ends a session that Reload asked to end, errFirst one that has given Follow its rules.
var (
	errReload = errors.New("the rules are to be asked for anew")
	errFirst  = errors.New("the first rules have come")
)

// stream is what is known of one stream.
type stream struct {
	f      *Follower
	rpc    discoverypb.AggregatedDiscoveryService_StreamAggregatedResourcesClient
	acked  string // the version in force
	heard  bool   // something has come
	begun  bool   // something has come that could be read
	latest []*resource
	// domains that were in force before, which the stream has not named so far; until settle fires
	held   []*resource
	settle *time.Timer
}

// session follows the server over one connection, until that breaks.
func (f *Follower) session(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conn, err := f.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	rpc, err := discoverypb.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err != nil {
		return err
	}
	s := &stream{f: f, rpc: rpc, acked: noVersion, settle: time.NewTimer(time.Hour)}
	s.settle.Stop()
	node, err := f.node()
	if err != nil {
		return err
	}
	if err := rpc.Send(&discoverypb.DiscoveryRequest{Node: node, TypeUrl: typeURL, VersionInfo: noVersion}); err != nil {
		return streamError(rpc, err)
	}
	return s.follow(ctx)
}

// streamError is the reason why a stream takes nothing more, which is told where one reads.
func streamError(rpc discoverypb.AggregatedDiscoveryService_StreamAggregatedResourcesClient, err error) error {
	if _, reason := rpc.Recv(); reason != nil {
		return reason
	}
	return err
}

// dial makes a connection, with the certificates as they are by now.
func (f *Follower) dial() (*grpc.ClientConn, error) {
	a := f.o.Address
	credentials, err := a.credentials()
	if err != nil {
		return nil, err
	}
	return grpc.NewClient(a.host, grpc.WithTransportCredentials(credentials), grpc.WithDisableServiceConfig(),
		grpc.WithUserAgent("weir/"+f.o.Version),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(a.maxMessage)),
		// Servers close connections that ping more often.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 5 * time.Minute, Timeout: 20 * time.Second}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: longestPause}))
}

// node is how this client names itself.
func (f *Follower) node() (*corepb.Node, error) {
	n := &corepb.Node{Id: f.o.Address.Node, UserAgentName: "weir",
		UserAgentVersionType: &corepb.Node_UserAgentVersion{UserAgentVersion: f.o.Version}}
	if len(f.o.Address.metadata) > 0 {
		fields := map[string]any{}
		for name, value := range f.o.Address.metadata {
			fields[name] = value
		}
		var err error
		if n.Metadata, err = structpb.NewStruct(fields); err != nil {
			return nil, fmt.Errorf("metadata: %w", err)
		}
	}
	return n, nil
}

// received is what the stream gives: an answer, or the error that ends it.
type received struct {
	answer *discoverypb.DiscoveryResponse
	err    error
}

// follow takes answers until the stream ends.
func (s *stream) follow(ctx context.Context) error {
	answers := make(chan received)
	go func() {
		for {
			answer, err := s.rpc.Recv()
			select {
			case answers <- received{answer, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	settled, silence := time.NewTimer(calm), time.NewTimer(s.f.o.Silence)
	defer settled.Stop()
	defer silence.Stop()
	defer s.settle.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.f.reload:
			return errReload
		case <-settled.C:
			s.f.reachable()
		case <-silence.C:
			s.wonder()
		case <-s.settle.C:
			s.letGo()
		case r := <-answers:
			if r.err != nil {
				return r.err
			}
			if err := s.answer(r.answer); err != nil {
				return err
			}
			if !s.f.running && s.f.first != nil {
				return errFirst
			}
		}
	}
}

// wonder tells once that a server says nothing.
func (s *stream) wonder() {
	if s.heard || s.f.wondered {
		return
	}
	s.f.wondered = true
	s.f.o.Logger.Warn("the xDS server has sent nothing: it holds no rules for this node, or knows it by another id",
		"path", s.f.o.Address.String(), "node", s.f.o.Address.Node, "after", s.f.o.Silence.String())
}

// answer takes one answer, and tells the server whether it is in force.
func (s *stream) answer(r *discoverypb.DiscoveryResponse) error {
	s.f.reachable()
	s.f.last.Store(time.Now().UnixNano())
	again, err := s.f.take(s, r.GetVersionInfo(), r.GetResources())
	s.heard = true
	request := &discoverypb.DiscoveryRequest{TypeUrl: typeURL, VersionInfo: s.acked, ResponseNonce: r.GetNonce()}
	switch {
	case err == nil:
		s.acked = r.GetVersionInfo()
		request.VersionInfo = s.acked
	case again:
		// Some servers send what was refused again at once, as they see that the version asked for
		// is not theirs. Named with the version that was refused, they wait for another one.
		request.VersionInfo = r.GetVersionInfo()
		fallthrough
	default:
		request.ErrorDetail = &statuspb.Status{Code: int32(codes.InvalidArgument), Message: told(err)}
	}
	if err := s.rpc.Send(request); err != nil {
		return streamError(s.rpc, err)
	}
	return nil
}

// settled is what is to be in force by an answer: at the beginning of a stream with the domains
// that were, and that it has not named yet.
//
// rest are the domains that were in force and that are still not named.
func (s *stream) settled(list, inForce []*resource) (all, rest []*resource) {
	if !s.begun {
		s.begun, s.held = true, slices.Clone(inForce)
		s.settle.Reset(s.f.o.Settle)
	}
	if len(s.held) == 0 {
		return list, nil
	}
	named := make(map[string]bool, 2*len(list))
	for _, r := range list {
		named["domain "+r.domain], named["name "+r.name] = true, true
	}
	rest = slices.DeleteFunc(slices.Clone(s.held),
		func(r *resource) bool { return named["domain "+r.domain] || named["name "+r.name] })
	return sorted(slices.Concat(list, rest)), rest
}

// letGo ends the time in which domains stay that the stream has not named.
func (s *stream) letGo() {
	gone := len(s.held)
	if s.held = nil; gone == 0 || s.latest == nil { // else nothing good has come on this stream
		return
	}
	before := s.f.Status()
	defer func() { s.f.Tell(before, s.f.o.Looked) }()
	if _, err := s.f.load(s.latest, s.f.Status().Version); err != nil { // as it was good with more
		s.f.Refused(err)
		return
	}
	s.f.refusedStays()
	s.f.o.Logger.Info("domains that the server names no longer are not in force any more", "domains", gone)
}
