package rlqs

import (
	"errors"
	"unicode/utf8"

	rlqspb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
)

// Numbers of fields of RateLimitQuotaUsageReports.
const (
	fieldDomain = 1
	fieldUsages = 2
)

// receive reads the next report. A client of Envoy may have put bytes that are not text into a
// header; Envoy puts them into the id of a bucket as they are, and no decoder of protobuf takes
// them. So the message is read as one without known fields. dropped is how many buckets were left
// out.
func receive(g grpc.ServerStream) (m *rlqspb.RateLimitQuotaUsageReports, dropped int, err error) {
	var unknown emptypb.Empty
	if err := g.RecvMsg(&unknown); err != nil {
		return nil, 0, err
	}
	if m, dropped, err = decode(unknown.ProtoReflect().GetUnknown()); err != nil {
		err = status.Errorf(codes.InvalidArgument, "the report is not one of Envoy's: %v", err)
	}
	return m, dropped, err
}

// decode decodes a report, and leaves out the buckets that cannot be decoded.
func decode(b []byte) (m *rlqspb.RateLimitQuotaUsageReports, dropped int, err error) {
	m = &rlqspb.RateLimitQuotaUsageReports{}
	if proto.Unmarshal(b, m) == nil {
		return m, 0, nil
	}
	m.Reset()
	for len(b) > 0 {
		field, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return nil, 0, protowire.ParseError(n)
		}
		b = b[n:]
		if n = protowire.ConsumeFieldValue(field, kind, b); n < 0 {
			return nil, 0, protowire.ParseError(n)
		}
		value := b[:n]
		b = b[n:]
		if kind != protowire.BytesType || field != fieldDomain && field != fieldUsages {
			continue
		}
		if value, n = protowire.ConsumeBytes(value); n < 0 {
			return nil, 0, protowire.ParseError(n)
		}
		if field == fieldDomain {
			if m.Domain = string(value); !utf8.Valid(value) {
				return nil, 0, errors.New("its domain is not UTF-8")
			}
			continue
		}
		u := &rlqspb.RateLimitQuotaUsageReports_BucketQuotaUsage{}
		if proto.Unmarshal(value, u) != nil {
			dropped++
			continue
		}
		m.BucketQuotaUsages = append(m.BucketQuotaUsages, u)
	}
	return m, dropped, nil
}
