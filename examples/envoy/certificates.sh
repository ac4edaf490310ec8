#!/bin/sh
# Writes certificates for trials: an authority (ca.crt), and pairs for weir and Envoy that it has signed. In production, use
# cert-manager, a mesh or your own authority.
#
#   examples/envoy/certificates.sh FOLDER
set -eu
cd "$(mkdir -p "$1" && echo "$1")"
umask 077

openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj "/CN=trial authority" \
    -keyout ca.key -out ca.crt 2>/dev/null

# name, alternative name, usage
sign() {
    openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$1" -keyout "$1.key" -out "$1.csr" 2>/dev/null
    printf 'subjectAltName=DNS:%s\nextendedKeyUsage=%s\n' "$2" "$3" >"$1.extensions"
    openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -extfile "$1.extensions" -out "$1.crt" 2>/dev/null
    rm "$1.csr" "$1.extensions"
}
sign weir weir.example.com serverAuth
sign envoy envoy.example.com clientAuth
