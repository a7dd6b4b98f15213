# The program, with nothing beside it:
# docker build --build-arg VERSION="$(git describe --tags --always)" --build-arg COMMIT="$(git rev-parse HEAD)" -t weir .
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
ARG TARGETOS TARGETARCH
ARG VERSION=unknown COMMIT
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
# Beside it, folders of the image: for the configuration, and for what the server may write
# (snapshots, deferred requests, unix sockets).
RUN mkdir -p /out/image/etc/weir /out/image/bin /out/data/var/lib/weir \
    && ln -s /weir /out/image/bin/ratelimit \
    && CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -buildvcs=false -tags timetzdata -ldflags "-s -w -X main.version=$VERSION -X main.commit=$COMMIT" -o /out/image/weir ./cmd/weir

FROM scratch
# For rediss://, https:// upstreams and prometheus.url.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /out/image/ /
COPY --from=build --chown=65532:65532 /out/data/ /
# The decision doors are for the network of the container; the admin port stays on its loopback
# until WEIR_LISTEN_ADMIN opens it.
ENV WEIR_CONTAINER=true
# weir.yaml and rules/ are looked for here; until there are rules, the starter rules are in force.
WORKDIR /etc/weir
USER 65532:65532
EXPOSE 8080 8081 6380 8000
HEALTHCHECK --interval=10s --timeout=4s --start-period=10s CMD ["/weir", "health"]
ENTRYPOINT ["/weir"]
CMD ["serve"]
