#!/bin/sh
# Builds every module of this workspace and puts it as NAME.wasm into the directory given, by default prebuilt/; cache
# policies into policies/ in it.
# The result is the same byte for byte wherever the sources lie: the toolchain is pinned by rust-toolchain.toml, paths
# are rewritten, and Cargo.lock is taken as it is. A test of crates/actor compares prebuilt/ with a build of its own.
set -eu
out=${1:-$(dirname "$0")/prebuilt}
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$(dirname "$0")"
here=$(pwd)
target=wasm32-unknown-unknown
if ! rustc --print sysroot >/dev/null 2>&1 || ! [ -d "$(rustc --print sysroot)/lib/rustlib/$target" ]; then
    echo "build.sh: the target $target is not installed; run: rustup target add $target" >&2
    exit 3
fi
cargo_home=${CARGO_HOME:-$HOME/.cargo}
# Flags of the environment would replace those of .cargo/config.toml and change the result.
unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS CARGO_BUILD_RUSTFLAGS CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS
unset CARGO_PROFILE_RELEASE_DEBUG CARGO_PROFILE_RELEASE_LTO CARGO_PROFILE_RELEASE_OPT_LEVEL RUSTC_WRAPPER
cargo build --quiet --release --locked --target "$target" \
    --config "target.$target.rustflags=['--remap-path-prefix=$here=/actors','--remap-path-prefix=$cargo_home=/cargo']"
built=${CARGO_TARGET_DIR:-target}/$target/release
for manifest in example/Cargo.toml builtin/*/Cargo.toml; do
    name=$(sed -n 's/^name = "osier-\(.*\)"$/\1/p' "$manifest")
    cp "$built/osier_$(echo "$name" | tr - _).wasm" "$out/$name.wasm"
    chmod 644 "$out/$name.wasm"
done
mkdir -p "$out/policies"
for manifest in policies/*/Cargo.toml; do
    name=$(sed -n 's/^name = "osier-policy-\(.*\)"$/\1/p' "$manifest")
    cp "$built/osier_policy_$(echo "$name" | tr - _).wasm" "$out/policies/$name.wasm"
    chmod 644 "$out/policies/$name.wasm"
done
