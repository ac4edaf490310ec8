# The image of weir, for linux/amd64 and linux/arm64: docker build --tag weir .
#
# A build with a binary that exists already, instead of the stage `build`: the argument BINARY names an image with /weir.
ARG BINARY=build
# The C library, the certificates of public authorities, and nothing else: no shell, no package manager.
ARG BASE=gcr.io/distroless/cc-debian12:nonroot

# Each platform builds for itself, natively or emulated: there is no cross compiler, and ring's C code has that platform's gcc.
FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
# platforms that are built at the same time must not share the folder of the finished program
ARG TARGETARCH
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,id=weir-$TARGETARCH,target=/src/target \
    cargo build --locked --profile dist --bin weir && cp target/dist/weir /weir

FROM ${BINARY} AS binary

FROM ${BASE}
LABEL org.opencontainers.image.title="weir" \
      org.opencontainers.image.description="Rate limit service for Envoy, compatible with envoyproxy/ratelimit" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=binary --chmod=755 /weir /usr/local/bin/weir
# the command of deployments made for envoyproxy/ratelimit, such as Envoy Gateway's
COPY --from=binary --chmod=755 /weir /bin/ratelimit
# rules to try it with; mount yours, and name them by --config or RUNTIME_ROOT
COPY config /config
WORKDIR /
# any other user works as well: weir writes no files
USER 65532:65532
EXPOSE 8081 8080 6070
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s CMD ["/usr/local/bin/weir", "health"]
ENTRYPOINT ["/usr/local/bin/weir"]
