//! Generates the wire messages in `proto/` without `protoc`: servers for the provider, and clients
//! for tests that act as the host.
use std::error::Error;

const FILES: [&str; 3] = ["tfplugin6.proto", "plugin.proto", "health.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    tonic_prost_build::configure()
        .bytes(".")
        .btree_map(".")
        .build_transport(false)
        // Unimplemented methods answer `Unimplemented`, which hosts understand.
        .generate_default_stubs(true)
        // These messages can contain secrets, so src/proto.rs prints only their size.
        .skip_debug(["tfplugin6.DynamicValue", "tfplugin6.RawState"])
        .compile_fds(protox::compile(FILES, ["proto"])?)?;
    Ok(())
}
