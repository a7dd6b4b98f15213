package xds

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/weir-rl/weir/internal/util/atomicfile"
)

// cacheHead begins a cache, before the hash of the lines behind it.
const cacheHead = "weir rules of xDS, 1 "

// writeCache writes resources to a file, which is the old or the new one at any time.
func writeCache(path, node, version string, raw []*anypb.Any) error {
	body, err := proto.Marshal(&discoverypb.DiscoveryResponse{VersionInfo: version, Resources: raw, TypeUrl: typeURL,
		Nonce: node})
	if err != nil {
		return err
	}
	sum := sha256.Sum256(body)
	return atomicfile.Write(path, func(f *os.File) error {
		_, err := f.Write(append([]byte(cacheHead+hex.EncodeToString(sum[:])+"\n"), body...))
		return err
	})
}

// readCache reads what writeCache wrote of the same node.
func readCache(path, node string) (version string, raw []*anypb.Any, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", nil, err
	}
	head, body, _ := bytes.Cut(data, []byte("\n"))
	hash, known := bytes.CutPrefix(head, []byte(cacheHead))
	if !known {
		return "", nil, errors.New("is no cache of rules that this version of weir knows")
	}
	if sum := sha256.Sum256(body); hex.EncodeToString(sum[:]) != string(hash) {
		return "", nil, errors.New("is damaged")
	}
	var r discoverypb.DiscoveryResponse
	if err := proto.Unmarshal(body, &r); err != nil {
		return "", nil, err
	}
	if r.GetNonce() != node {
		return "", nil, errors.New("holds rules of the node " + clip(r.GetNonce()))
	}
	return r.GetVersionInfo(), r.GetResources(), nil
}
