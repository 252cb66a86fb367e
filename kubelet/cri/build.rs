//! Generates the CRI client from the proto files, without protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(["proto/runtime.proto", "proto/events.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .build_server(false)
        .btree_map(".")
        .emit_rerun_if_changed(false)
        .compile_fds(files)?;
    Ok(())
}
