#!/bin/sh
# Builds an actor written in C: build.sh SOURCE.c OUT.wasm, by default the example xor.c into the current directory.
# Needs clang with its WebAssembly target (CLANG names it). The linker is wasm-ld, or the one that the Rust toolchain
# brings. Says what is missing and ends with 3 where they are not there, so that a caller can skip.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
source=${1:-$here/xor.c}
out=${2:-$(basename "$source" .c).wasm}
clang=${CLANG:-$(command -v clang || true)}
if [ -z "$clang" ] || ! "$clang" --print-targets 2>/dev/null | grep -q wasm32; then
    echo "build.sh: there is no clang with the target wasm32; install clang (Debian: apt install clang lld)" >&2
    exit 3
fi
linker=$(command -v wasm-ld || true)
if [ -z "$linker" ] && command -v rustc >/dev/null; then
    host=$(rustc -vV | sed -n 's/^host: //p')
    linker=$(rustc --print sysroot)/lib/rustlib/$host/bin/gcc-ld/wasm-ld
fi
if ! [ -x "$linker" ]; then
    echo "build.sh: there is no wasm-ld; install lld (Debian: apt install lld)" >&2
    exit 3
fi
object=$(mktemp)
trap 'rm -f "$object"' EXIT
"$clang" --target=wasm32-unknown-unknown -O3 -msimd128 -mbulk-memory -mmutable-globals -ffreestanding -Wall -Wextra -Werror \
    -I "$here/../include" -c -o "$object" "$source"
"$linker" --no-entry --stack-first -z stack-size=16384 --export=__stack_pointer --strip-all -o "$out" "$object"
