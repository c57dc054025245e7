//! Tells the linker the version nodes of the shared object.

fn main() {
    let folder = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=symbols.map");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={folder}/symbols.map");
    // Threads of adapters run its code, so that it stays when a program closes it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
