//! Generates the wire messages from `proto/` without `protoc`: servers, and the clients with which
//! tests play the host.
use std::error::Error;

const FILES: [&str; 3] = ["tfplugin6.proto", "plugin.proto", "health.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    tonic_prost_build::configure()
        .bytes(".")
        .btree_map(".")
        .build_transport(false)
        // What is not implemented answers `Unimplemented`, which hosts understand.
        .generate_default_stubs(true)
        // They carry configuration, so possibly secrets: src/proto.rs prints their size.
        .skip_debug(["tfplugin6.DynamicValue", "tfplugin6.RawState"])
        .compile_fds(protox::compile(FILES, ["proto"])?)?;
    Ok(())
}
