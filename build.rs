//! Generates the wire messages from `proto/` without `protoc`.
//!
//! The library gets the servers only. The clients go to `OUT_DIR/client`, where `tests/wire`
//! includes them to play the host.
use std::{env, error::Error, fs, path::PathBuf};

const FILES: [&str; 3] = ["tfplugin6.proto", "plugin.proto", "health.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(FILES, ["proto"])?;
    let common = || tonic_prost_build::configure().bytes(".").btree_map(".");
    common()
        .build_client(false)
        // What is not implemented answers `Unimplemented`, which hosts understand.
        .generate_default_stubs(true)
        // They carry configuration, so possibly secrets: src/plugin/proto.rs prints their size.
        .skip_debug(["tfplugin6.DynamicValue", "tfplugin6.RawState"])
        .compile_fds(descriptors.clone())?;

    let client = PathBuf::from(env::var("OUT_DIR")?).join("client");
    fs::create_dir_all(&client)?;
    common().build_server(false).build_transport(false).out_dir(client).compile_fds(descriptors)?;
    Ok(())
}
