//! Compiles the protocol files without a system protoc.

use std::path::PathBuf;

use prost::Message;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = [
        "hoplite/v1/common.proto",
        "hoplite/v1/local.proto",
        "hoplite/v1/data.proto",
        "hoplite/v1/directory.proto",
    ];
    let descriptors = protox::compile(files, ["."])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("hoplite.bin"), descriptors.encode_to_vec())?;
    let has_services = std::env::var_os("CARGO_FEATURE_GRPC").is_some();
    tonic_prost_build::configure()
        .build_client(has_services)
        .build_server(has_services)
        .bytes(".")
        // The command line and the dashboard show these reports as JSON.
        .type_attribute(".hoplite.v1.LoadReport.Client", "#[derive(serde::Serialize)]")
        .type_attribute(".hoplite.v1.LoadReport.Link", "#[derive(serde::Serialize)]")
        .type_attribute(".hoplite.v1.LoadReport.Rail", "#[derive(serde::Serialize)]")
        .compile_fds(descriptors)?;
    println!("cargo::rerun-if-changed=hoplite");
    Ok(())
}
