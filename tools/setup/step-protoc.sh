# shellcheck shell=bash
# tf-provider's build script runs protoc; .cargo/config.toml names where it finds it.
if [ -x target/protoc/bin/protoc ] && [ -f target/protoc/include/google/protobuf/any.proto ]; then
    say "present"
else
    say "building the crate that carries it"
    retry "cargo run (tools/protoc)" cargo run --quiet --locked --manifest-path tools/protoc/Cargo.toml -- target/protoc
fi
